from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tiering.cli.app import main
from tiering.config_file import load_config
from tiering.region import reclaim_dead_regions
from tiering.registry import installed_tiers


class Ran:
    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", ["tiering", *arguments])
        with pytest.raises(SystemExit) as exited:
            main()
        self.code = exited.value.code
        self.output, self.errors = capsys.readouterr()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    return lambda *arguments: Ran(capsys, monkeypatch, *arguments)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    file = tmp_path / "good.yaml"
    file.write_text("cpu_bytes_to_use: 8GiB\nsecondary_tiers:\n- {type: box, root_dirs: [/x]}\n")
    return file


def test_validate(run, good: Path) -> None:
    ran = run("config", "validate", str(good))
    assert (ran.code, ran.output, ran.errors) == (0, f"{good}: valid\n", "")
    ran = run("config", "validate", str(good), "--format", "json")
    assert json.loads(ran.output) == {"file": str(good), "valid": True, "tiers": ["box"]}


def test_show_prints_what_can_be_loaded_again(run, good: Path, tmp_path: Path) -> None:
    ran = run("config", "show", str(good))
    shown = tmp_path / "shown.yaml"
    shown.write_text(ran.output)
    assert ran.code == 0
    assert load_config(shown) == load_config(good)
    assert json.loads(run("config", "show", str(good), "--format", "json").output) == yaml.safe_load(ran.output)


def test_schema_holds_the_settings_of_installed_tiers(run) -> None:
    ran = run("config", "schema")
    schema = json.loads(ran.output)
    entries = schema["properties"]["secondary_tier_configs"]["items"]["anyOf"]
    (box,) = [entry for entry in entries if entry["properties"]["type"]["const"] == "box"]
    assert ran.code == 0
    assert schema["required"] == ["cpu_bytes_to_use"]
    assert "root_dirs" in schema["$defs"][box["$ref"].rpartition("/")[2]]["properties"]


def test_list_tiers(run) -> None:
    ran = run("tiers", "list")
    assert ran.code == 0
    assert ["box", "box-tier", "0.1", "box_tier"] in [line.split() for line in ran.output.splitlines()]
    listed = json.loads(run("tiers", "list", "--format", "json").output)
    assert {"name": "box", "distribution": "box-tier", "version": "0.1", "module": "box_tier"} in listed


def test_collecting_garbage_where_there_is_none(run, tmp_path: Path) -> None:
    (tmp_path / "tiering_mine.mmap").write_bytes(b"not a region")
    ran = run("gc", "regions", str(tmp_path))
    assert (ran.code, ran.output) == (0, f"0 dead regions in {tmp_path}\n")
    assert json.loads(run("gc", "regions", str(tmp_path), "--format", "json").output) == {"removed": []}
    assert reclaim_dead_regions(tmp_path) == []
    assert (tmp_path / "tiering_mine.mmap").read_bytes() == b"not a region"


def test_a_configuration_error_is_one_message_and_code_2(run, tmp_path: Path) -> None:
    ran = run("config", "validate", str(tmp_path / "absent.yaml"))
    assert (ran.code, ran.output) == (2, "")
    assert ran.errors == f"error: {tmp_path / 'absent.yaml'}: cannot be read: No such file or directory\n"


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["config", "validate"], ["tiers", "list", "--format", "xml"], ["gc", "regions", "/absent"]],
)
def test_wrong_usage_is_code_2(run, arguments: list[str]) -> None:
    ran = run(*arguments)
    assert (ran.code, ran.output) == (2, "")
    assert ran.errors


def installed(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    """Run the installed command, its standard output and error as ``options`` say."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("TIERING__")}
    command = [Path(sys.executable).with_name("tiering"), *map(str, arguments)]
    return subprocess.run(
        command, text=True, check=False, stderr=subprocess.PIPE, env=environ | {"PYTHONIOENCODING": "ascii"}, **options
    )


def test_a_terminal_that_knows_ascii_only() -> None:
    done = installed("replay", "--help", stdout=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--primary-rows" in done.stdout


def test_output_that_cannot_be_written_is_one_message(good: Path) -> None:
    (shown := good.with_name("shown.yaml")).write_text("cpu_bytes_to_use: 1")
    with Path("/dev/full").open("w") as full:
        for arguments in (("config", "show", shown), ("tiers", "list")):
            done = installed(*arguments, stdout=full)
            assert (done.returncode, done.stderr) == (1, "error: [Errno 28] No space left on device\n")


def test_a_narrow_table_keeps_every_letter(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "24")
    output = run("tiers", "list").output
    assert "…" not in output
    assert sorted("".join(output.split())) == sorted(
        "namedistributionversionmodule"
        + "".join(f"{p.name}{p.distribution}{p.version}{p.module}" for p in installed_tiers())
    )


@pytest.mark.parametrize("command", [(), ("config",), ("gc", "objects")])
def test_help_is_where_people_look_for_it(run, command: tuple[str, ...]) -> None:
    ran = run(*command, "-h")
    assert (ran.code, ran.errors) == (0, "")
    assert "Usage: " in ran.output


def test_the_installed_command() -> None:
    done = installed("--version", stdout=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("tiering ")
