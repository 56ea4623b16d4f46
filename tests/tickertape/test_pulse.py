"""Progress on its way to the front: thinned out, never stuck on an old figure, repeated while it stands still."""

from __future__ import annotations

import threading

import pytest

from tickertape import pulse as module
from tickertape.core.ports import Progress
from tickertape.pulse import Pulse


def test_much_of_one_stage_is_thinned_out_and_its_end_is_not() -> None:
    sent: list[Progress] = []
    with Pulse(sent.append) as pulse:
        for done in range(1, 10_001):
            pulse.report(Progress("download", done, 10_000))
        pulse.report(Progress("verify", 0, 10_000))
    assert sent[0] == Progress("download", 1, 10_000)
    assert sent[-2:] == [Progress("download", 10_000, 10_000), Progress("verify", 0, 10_000)]
    assert len(sent) < 100


def test_the_latest_is_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_S", 0.01)
    monkeypatch.setattr(module, "_AGAIN_S", 0.02)
    sent: list[Progress] = []
    enough = threading.Event()

    def send(progress: Progress) -> None:
        sent.append(progress)
        if len(sent) == 5:
            enough.set()

    with Pulse(send) as pulse:
        pulse.report(Progress("load", 1, 9))
        pulse.report(Progress("load", 2, 9))  # held back, and then what is repeated
        assert enough.wait(30)
        pulse.quiet()
    assert sent[0].done == 1
    assert {progress.done for progress in sent[1:]} == {2}


def test_figures_are_told_when_they_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_S", 0.01)
    figures, told = [1], []
    changed = threading.Event()

    def tell(figure: int) -> None:
        told.append(figure)
        changed.set()

    with Pulse(lambda _: None, figures=lambda: figures[0], tell=tell) as pulse:
        assert changed.wait(30)
        pulse.flush()
        changed.clear()
        figures[0] = 2
        assert changed.wait(30)
        figures[0] = 3
        pulse.flush()
    assert told == [1, 2, 3]


def test_an_end_that_does_not_listen_stops_the_work_and_not_the_thread() -> None:
    def send(_: Progress) -> None:
        raise BrokenPipeError

    with Pulse(send) as pulse, pytest.raises(BrokenPipeError):
        pulse.report(Progress("load", 1, 2))
