"""What the process of a tier logs and prints becomes log records of the engine, and not too many."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import pytest
from isolation_rig import isolated, keys, wait_until
from test_process_deaths import hostile

from tiering.isolation.process_output import LineHandler, ProcessOutput

PRINTED = "tiering.isolation.process_output"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def output(clock: Clock) -> ProcessOutput:
    return ProcessOutput("far", clock)


def logger_that_writes() -> tuple[logging.Logger, io.BytesIO]:
    written = io.BytesIO()
    logger = logging.Logger("over.there")
    logger.addHandler(LineHandler(written))
    return logger, written


def test_records_keep_their_logger_level_and_text(output: ProcessOutput, caplog: pytest.LogCaptureFixture) -> None:
    logger, written = logger_that_writes()
    logger.warning("tier %s: grüße", "far")
    logger.error("in two\nlines \x1e")
    for number in range(0, len(written.getvalue()), 7):
        output.take(written.getvalue()[number : number + 7])
    assert caplog.record_tuples == [
        ("over.there", logging.WARNING, "tier far: grüße"),
        ("over.there", logging.ERROR, "tier far: in two\nlines \x1e"),
    ]


def test_printed_lines_and_damaged_records(output: ProcessOutput, caplog: pytest.LogCaptureFixture) -> None:
    logger, written = logger_that_writes()
    logger.error("a word")
    output.take(b"no end of line " + written.getvalue() + b'\n \n\x1e["over", 30\n\x1e[1, "", 2]\n\x00\xff\x1b[1mbold')
    output.end()
    assert caplog.record_tuples == [
        (PRINTED, logging.WARNING, "tier far: printed: no end of line "),
        ("over.there", logging.ERROR, "tier far: a word"),
        (PRINTED, logging.WARNING, 'tier far: printed: ["over", 30'),
        (PRINTED, logging.WARNING, 'tier far: printed: [1, "", 2]'),
        (PRINTED, logging.WARNING, "tier far: printed: \ufffd\ufffd\ufffd[1mbold"),
    ]


def test_a_line_without_an_end_is_cut(output: ProcessOutput, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(100):
        output.take(b"x" * 10_000)
    assert 10 <= len(caplog.records) <= 20
    assert max(len(record.getMessage()) for record in caplog.records) < 5_000


def test_there_are_so_many_lines_a_minute(
    output: ProcessOutput, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(1_000):
        output.take(b"line %d\nli" % number)
        output.take(b"ne\n")
    assert len(caplog.records) == 200
    clock.now = 60.0
    output.take(b"the ")
    output.take(b"next minute\n")
    assert [record.getMessage() for record in caplog.records[200:]] == [
        "tier far: 1800 more lines of its process are not shown",
        "tier far: printed: the next minute",
    ]


def test_what_is_unsaid_is_told_at_the_end(output: ProcessOutput, caplog: pytest.LogCaptureFixture) -> None:
    output.take(b"line\n" * 300 + b"the last one")
    output.end()
    assert caplog.messages[200:] == ["tier far: 101 more lines of its process are not shown"]


def test_a_tiers_log_is_the_engines(shared_memory: Path, trap: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hostile.words")
    with isolated(hostile("log", trap), shared_memory) as rig:
        rig.store(keys([0]))
        rig.forget_rows()
        assert rig.load(keys([0])) == 1
        trap.unlink()
    said = [record for record in caplog.records if record.name == "hostile.words"]
    assert [record.levelno for record in said] == [logging.INFO, logging.ERROR]
    assert said[0].message == "tier hostile: as the engine asks for it"
    assert said[1].message.startswith("tier hostile: went wrong in load 1\nTraceback (most recent call last):\n")
    assert said[1].message.endswith("ValueError: in two\nlines")
    assert "tier hostile: printed: and printed, " in caplog.messages, "also without an end of the line"


def test_a_crash_says_where(shared_memory: Path, trap: Path, caplog: pytest.LogCaptureFixture) -> None:
    with isolated(hostile("segfault", trap), shared_memory) as rig:
        rig.store(keys([0]))
        rig.forget_rows()
        assert rig.load(keys([0])) == 0
        wait_until(lambda: rig.tier.num_ends)
        trap.unlink()
    texts = caplog.messages
    where = next(number for number, text in enumerate(texts) if "printed: Fatal Python error: Segmentation" in text)
    assert any("hostile_tier.py" in text for text in texts[where:])
    assert "its process ended with SIGSEGV" in next(text for text in texts[where:] if "next start" in text)
