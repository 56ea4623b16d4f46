"""What the log says on the way to ready."""

from __future__ import annotations

import logging

import pytest

from tickertape.core.ports import Progress
from tickertape.progress import ProgressLog


@pytest.mark.parametrize(
    "progress",
    [
        Progress("cooldown", 0, 0, source="origin", detail="patience"),
        Progress("slot", 0, 7),
        Progress("verify", 7, 7),
    ],
)
def test_a_stage_that_stands_still_is_a_line_every_few_seconds(
    caplog: pytest.LogCaptureFixture, progress: Progress
) -> None:
    caplog.set_level(logging.INFO, logger="tickertape.progress")
    times = [number * 0.5 for number in range(120)]  # a minute, as often as a fetch reports
    clock = iter(times)
    log = ProgressLog(lambda: next(clock))
    for _ in times:
        log.show("m", progress)
    assert len(caplog.records) == 12


def test_each_stage_begins_and_ends_with_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="tickertape.progress")
    log = ProgressLog(lambda: 1.0)
    for progress in [Progress("download", done, 3, "files") for done in (0, 1, 2, 3)] + [Progress("load", 0, 0)]:
        log.show("m", progress)
    assert [record.getMessage() for record in caplog.records] == [
        "m: download 0/3 files",
        "m: download 3/3 files",
        "m: load ",
    ]
