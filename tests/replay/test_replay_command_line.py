"""What the command accepts and refuses, without ranks."""

from __future__ import annotations

import lzma
import sys
from pathlib import Path

import pytest
from replay_command import Ended, run_replay
from replay_setup import ReplaySetup

from tiering.cli.app import main

COUNT = ("--no-bytes", "--concurrency", "1", "--primary-rows", "300")
LINE = '{"timestamp":0,"input_length":700,"output_length":3,"hash_ids":[%s]}\n'


@pytest.fixture
def replay(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Runs the command in this process: quicker, where no other process is concerned."""

    def run(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["tiering", "replay", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "400")
        with pytest.raises(SystemExit) as exited:
            main()
        return Ended(int(exited.value.code or 0), *capsys.readouterr())

    return run


def test_counts_as_a_process_of_its_own() -> None:
    ended = run_replay(*COUNT, "--secondary-rows", 1000)
    report = ended.report
    assert ended.errors == ""
    assert (report["requests"], report["accesses"], report["prefix_hits"]) == (500, 11755, 6957)
    assert report["hits"] == {"cpu": 3603, "memory": 3354}
    assert (report["mismatches"], report["leaks"]) == (0, 0)


@pytest.mark.parametrize(
    ("arguments", "hits"),
    [
        ((), {"cpu": 3603}),
        (("--policy", "arc"), {"cpu": 3880}),
        (("--secondary-rows", "inf"), {"cpu": 3603, "memory": 3716}),
        (("--secondary-rows", "1000", "--no-forward-touch"), {"cpu": 3603, "memory": 3313}),
    ],
)
def test_options_reach_the_replay(replay, arguments: tuple[str, ...], hits: dict[str, int]) -> None:
    ended = replay(*COUNT, *arguments, "--format", "json")
    assert ended.report["hits"] == hits


def test_more_at_a_time_than_there_are_requests(replay) -> None:
    ended = replay("--no-bytes", "--primary-rows", 300, "--generate", 3, "--concurrency", 10**18, "--format", "json")
    assert ended.report["requests"] == 3


def test_more_rows_than_memory_holds(replay) -> None:
    ended = replay("--no-bytes", "--primary-rows", 10**15, "--generate", 3)
    assert (ended.code, ended.errors) == (1, "error: this takes more memory than there is\n")


def test_text_for_people(replay) -> None:
    ended = replay(*COUNT)
    assert ended.code == 0
    assert "3,603 of 11,755 blocks (30.7%)" in ended.output


def test_limit_and_trace(replay, tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl.xz"
    file.write_bytes(lzma.compress((LINE % "1,2" + LINE % "1,2,3" + "wrong\n").encode()))
    ended = replay(*COUNT, "--trace", file, "--limit", "2", "--format", "json")
    assert (ended.report["requests"], ended.report["accesses"], ended.report["prefix_hits"]) == (2, 5, 2)
    ended = replay(*COUNT, "--trace", file)
    assert (ended.code, ended.output) == (1, "")
    assert ended.errors.startswith(f"error: {file}:3: is not JSON")


def test_traces_that_hold_nothing(replay, tmp_path: Path) -> None:
    missing, empty = tmp_path / "missing.jsonl", tmp_path / "empty.jsonl"
    empty.touch()
    ended = replay(*COUNT, "--trace", missing)
    assert (ended.code, ended.errors) == (1, f"error: {missing}: cannot be read: No such file or directory\n")
    ended = replay(*COUNT, "--trace", empty)
    assert (ended.code, ended.errors) == (1, f"error: {empty}: holds no requests\n")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "--config is missing; or count hits only, with --no-bytes"),
        (("--no-bytes",), "--no-bytes needs --primary-rows"),
        (("--no-bytes", "--config", "x.yaml"), "--no-bytes replays without a configuration"),
        (("--config", "x.yaml", "--secondary-rows", "5"), "--secondary-rows and --no-forward-touch go with --no-bytes"),
        (("--config", "x.yaml", "--no-forward-touch"), "--secondary-rows and --no-forward-touch go with --no-bytes"),
        ((*COUNT, "--secondary-rows", "0"), "'0' is not a positive number or inf"),
        ((*COUNT, "--secondary-rows", "many"), "'many' is not a positive number or inf"),
        ((*COUNT, "--secondary-rows", "²"), "'²' is not a positive number or inf"),
        ((*COUNT, "--secondary-rows", "٣"), "'--secondary-rows': '٣' is not a positive number or inf"),
        ((*COUNT, "--ranks", "2"), "--ranks, --row-bytes and --groups go with --config"),
        ((*COUNT, "--trace", "x.jsonl", "--seed", "1"), "--generate and --seed go without --trace"),
        ((*COUNT, "--row-bytes", "3XB"), "'3XB' has the unknown unit 'XB'"),
        ((*COUNT, "--ranks", "0"), "Invalid value for '--ranks'"),
        ((*COUNT, "--generate", "0"), "Invalid value for '--generate'"),
        ((*COUNT, "--limit", "-1"), "Invalid value for '--limit'"),
        ((*COUNT, "--policy", "lrx"), "unknown eviction policy 'lrx', did you mean 'lru'"),
        ((*COUNT, "--nonsense"), "No such option: --nonsense"),
        (("--config", "/nonexistent/x.yaml"), "/nonexistent/x.yaml: cannot be read: No such file or directory"),
    ],
)
def test_wrong_usage(replay, arguments: tuple[str, ...], problem: str) -> None:
    ended = replay(*arguments)
    assert (ended.code, ended.output) == (2, "")
    assert problem in ended.errors


def test_wrong_configurations(replay, setup: ReplaySetup) -> None:
    file = setup.write_config(f"{{type: disk, root_dirs: [{setup.root}], capacity: 300MiB, thread: 3}}")
    ended = replay(*setup.arguments(60))
    assert (ended.code, ended.output) == (2, "")
    assert ended.errors.startswith(f"error: {file}:4")
    assert "did you mean 'threads'" in ended.errors
    setup.write_config(f"{{type: disk, root_dirs: [{setup.root}], capacity: 300MiB}}")
    ended = replay(*setup.arguments(60), "--row-bytes", "100")
    assert ended.code == 2
    assert ended.errors.startswith("error: row bytes: 100: must be a multiple of 64")
    ended = replay(*setup.arguments(60), "--row-bytes", "1GiB", "--ranks", "2")
    assert ended.code == 2
    assert "do not hold one row of 1073741824 bytes" in ended.errors
    assert not setup.root.exists()
    assert setup.region_files() == []


def test_folders_that_are_not_there(replay, setup: ReplaySetup, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as environment:
        environment.setenv("TIERING__region__directory", str(setup.directory / "missing"))
        ended = replay(*setup.arguments(60))
    assert (ended.code, ended.output) == (1, "")
    assert ended.errors.startswith(f"error: cannot create region {setup.directory}/missing/")
    assert ended.errors.endswith(": No such file or directory\n")
    setup.root.touch()  # a file where the disk tier's directory should be
    ended = replay(*setup.arguments(60))
    assert (ended.code, ended.output) == (1, "")
    assert ended.errors.startswith("error: disk tier 'disk' cannot be opened: ")
    assert str(setup.root) in ended.errors
    assert setup.region_files() == []
