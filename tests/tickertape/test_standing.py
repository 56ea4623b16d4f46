"""What the probes say on the way to ready: the reason, figures that can be believed, and whether it gets on."""

from __future__ import annotations

import pytest

from tickertape.api.health import Readiness
from tickertape.api.warmup import STATES, Warmup
from tickertape.core.messages import WarmupCounts
from tickertape.core.ports import Progress
from tickertape.standing import Standing


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class View:
    """A ProgressView that counts."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, str]] = []
        self.num_closed = 0

    def show(self, model: str, progress: Progress) -> None:
        self.shown.append((model, progress.stage))

    def close(self) -> None:
        self.num_closed += 1


class Made:
    def __init__(self, *names: str) -> None:
        self.clock, self.view, self.warmup = Clock(), View(), Warmup()
        self.readiness = Readiness(self.clock)
        self.standing = Standing(
            self.readiness, self.view, names or ("m",), self.warmup, fetch_patience_s=600, clock=self.clock
        )

    @property
    def seen(self) -> tuple[str, str]:
        return self.readiness.state, self.readiness.reason


@pytest.mark.parametrize(
    ("stage", "reason"),
    [
        ("plan", "Planning"), ("wait", "Queued"), ("slot", "Queued"), ("peer", "DownloadingPeer"),
        ("download", "DownloadingOrigin"), ("unpack", "DownloadingOrigin"), ("verify", "Verifying"),
        ("cooldown", "Cooldown"), ("space", "NoSpace"), ("convert", "Converting"), ("cast", "Casting"),
        ("quantize", "Quantizing"),
    ],
)  # fmt: skip
def test_each_stage_of_a_fetch_has_its_reason(stage: str, reason: str) -> None:
    made = Made()
    assert made.seen == ("loading", "Planning")
    made.standing.fetching(0, Progress(stage, 1, 2, source="origin", detail="x"))
    assert made.seen == ("loading", reason)
    assert made.warmup.states == {"m": stage}
    assert made.readiness.progress["source"] == "origin"


@pytest.mark.parametrize(
    ("stage", "reason"),
    [("turn", "Queued"), ("prefault", "Prefaulting"), ("load", "Loading"), ("compile", "Loading"), ("warm", "Warming")],
)
def test_each_stage_of_a_load_has_its_reason(stage: str, reason: str) -> None:
    made = Made()
    made.standing.resolved(0, "m", complete=True)
    assert made.seen == ("loading", "Loading")
    made.standing.loading("m", Progress(stage, 1, 2))
    assert made.seen == ("loading", reason)
    assert made.warmup.states == {"m": stage if stage in STATES else "load"}


def test_while_files_come_that_is_what_it_does() -> None:
    made = Made()
    made.standing.fetching(0, Progress("download", 10, 100))
    made.standing.resolved(0, "m", complete=False)
    made.standing.loading("m", Progress("load", 1, 100))
    assert made.seen == ("loading", "DownloadingOrigin")
    assert made.readiness.progress["done"] == 10
    made.standing.resolved(0, "m", complete=True)
    assert made.seen == ("loading", "Loading")
    assert made.readiness.progress["done"] == 1


def test_the_time_left_is_that_of_the_last_seconds() -> None:
    made = Made()
    standing, clock = made.standing, made.clock
    standing.fetching(0, Progress("download", 500, 10_000))  # what was there before does not count as rate
    assert made.readiness.eta_s is None
    for second in range(1, 61):
        clock.now += 1
        standing.fetching(0, Progress("download", 500 + second, 10_000))
    assert made.readiness.progress["rate"] == 1.0
    for second in range(1, 31):
        clock.now += 1
        standing.fetching(0, Progress("download", 560 + 100 * second, 10_000))
    assert made.readiness.progress["rate"] == 100.0
    assert made.readiness.eta_s == pytest.approx((10_000 - 3560) / 100, rel=0.01)
    standing.fetching(0, Progress("verify", 1, 10_000))  # another stage, another rate
    assert made.readiness.eta_s is None
    standing.fetching(0, Progress("slot", 30, 0, "seconds"))
    clock.now += 1
    standing.fetching(0, Progress("slot", 31, 0, "seconds"))
    assert made.readiness.eta_s is None  # nobody knows


def test_what_a_fetch_knows_is_shown() -> None:
    made = Made()
    made.standing.fetching(0, Progress("cooldown", 0, 0, source="origin", eta_s=39.96))
    assert made.readiness.eta_s == 40.0  # the origin said so
    assert (made.readiness.progress["slot"], made.readiness.progress["peers"]) == (None, None)
    made.standing.fetching(0, Progress("peer", 0, 9, source="peer", has_slot=False, num_peers=3))
    assert (made.readiness.progress["slot"], made.readiness.progress["peers"]) == (False, 3)


def test_a_single_early_burst_promises_nothing() -> None:
    made = Made()
    made.standing.fetching(0, Progress("download", 0, 1 << 40))
    made.clock.now += 0.01
    made.standing.fetching(0, Progress("download", 1 << 30, 1 << 40))
    assert made.readiness.eta_s is None


@pytest.mark.parametrize("stage", ["wait", "slot", "cooldown", "space"])
def test_waiting_for_others_is_progress_for_ever(stage: str) -> None:
    made = Made()
    for _ in range(1000):
        made.clock.now += 50
        made.standing.fetching(0, Progress(stage, 1, 0, "seconds"))
        assert made.readiness.alive


def test_a_fetch_that_repeats_itself_is_no_progress_after_its_patience() -> None:
    made = Made()
    made.standing.fetching(0, Progress("download", 1, 2))
    for _ in range(13):
        made.clock.now += 50
        made.standing.fetching(0, Progress("download", 1, 2))
        assert made.readiness.alive
    for _ in range(2):
        made.clock.now += 50
        made.standing.fetching(0, Progress("download", 1, 2))
    assert not made.readiness.alive
    made.standing.fetching(0, Progress("download", 2, 2))
    assert made.readiness.alive


def test_silence_is_none() -> None:
    made = Made()
    made.clock.now += 61
    assert not made.readiness.alive


def test_a_load_that_repeats_itself_is_long_and_no_more() -> None:
    made = Made()
    made.standing.resolved(0, "m", complete=True)
    for _ in range(1000):
        made.clock.now += 50
        made.standing.loading("m", Progress("load", 0, 1))
        assert made.readiness.alive
    made.clock.now += 61
    assert not made.readiness.alive


def test_the_first_that_is_not_ready_speaks_for_all() -> None:
    made = Made("a", "guessed")
    made.standing.fetching(0, Progress("download", 1, 2))
    made.standing.resolved(0, "a", complete=True)
    made.standing.fetching(1, Progress("peer", 1, 2))
    assert made.seen == ("loading", "Loading")
    assert made.standing.ready("a") is False
    assert made.seen == ("loading", "DownloadingPeer")
    made.standing.resolved(1, "b", complete=True)
    made.standing.loading("b", Progress("warm", 0, 1))
    assert made.seen == ("loading", "Warming")
    assert made.warmup.states == {"a": "ready", "b": "warm"}  # under the name it turned out to have
    assert made.standing.ready("b") is True
    assert made.seen == ("ready", "Ready")
    assert made.view.num_closed == 1
    made.standing.lost("a")
    assert made.seen == ("loading", "WorkerRestarting")
    assert made.standing.ready("a") is True


def test_what_it_cost_is_shown() -> None:
    made = Made()
    counts = WarmupCounts(num_bytes={"origin": 7, "peer": 5}, slot_wait_s=1.26, num_origin_requests=3, num_origin_429=1)
    made.standing.counted(counts)
    made.standing.fetching(0, Progress("download", 7, 12))
    shown = made.readiness.progress
    assert (shown["bytes"], shown["slot_wait_s"]) == ({"origin": 7, "peer": 5}, 1.3)
    assert (shown["origin_requests"], shown["origin_429"]) == (3, 1)


def test_the_end_is_final() -> None:
    made = Made()
    made.standing.failed("NotFound")
    made.standing.fetching(0, Progress("download", 1, 2))
    made.standing.draining()
    assert made.standing.ready("m") is False
    assert made.seen == ("failed", "NotFound")
    assert made.warmup.states == {"m": "failed"}
    assert made.readiness.alive
