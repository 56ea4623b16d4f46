"""The rules that a fetch waits by: backoff, Retry-After, slow start, patience, room."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.weights.fetch_kit import ScriptedSlots, SimulatedClock
from tickertape.core.errors import OriginBusy, StartupError
from tickertape.weights.fetch.backoff import Backoff, after
from tickertape.weights.fetch.fetching import check_room
from tickertape.weights.fetch.gate import OriginGate
from tickertape.weights.fetch.patience import Patience
from tickertape.weights.ledger import Ledger
from tickertape.weights.objects import Objects


@given(st.integers(0, 2**32), st.integers(1, 40))
def test_waits_are_decorrelated_and_bounded(seed: int, num_waits: int) -> None:
    backoff = Backoff(random.Random(seed).random, shortest_s=0.5, longest_s=20.0)
    last = 0.5
    for _ in range(num_waits):
        wait = backoff.next_s()
        assert 0.5 <= wait <= min(20.0, last * 3)
        last = wait
    backoff.reset()
    assert backoff.next_s() <= 1.5


@given(st.floats(0, 1e6), st.floats(0, 0.999))
def test_a_retry_after_is_never_cut_short(seconds: float, lot: float) -> None:
    assert seconds <= after(seconds, lambda: lot) <= seconds * 1.1


def gate_of(most: int, clock: SimulatedClock | None = None) -> tuple[OriginGate, ScriptedSlots]:
    clock = clock or SimulatedClock()
    slots = ScriptedSlots(clock)
    gate = OriginGate(slots, most, clock, lambda: 0.5)
    gate.slot = slots.acquire()
    return gate, slots


def opened(gate: OriginGate) -> int:
    """How many requests begin now."""
    count = 0
    while gate.is_open:
        gate.num_active += 1
        count += 1
    return count


def test_requests_start_slowly_and_again_after_a_429() -> None:
    clock = SimulatedClock()
    gate, _ = gate_of(4, clock)
    found = []
    for _ in range(5):
        opened(gate)
        found.append(gate.num_active)
        gate.answered()
    assert found == [1, 2, 3, 4, 4]
    gate.busy(OriginBusy("busy", retry_after_s=10.0))
    gate.num_active = 0
    assert not gate.is_open
    assert gate.cooling_s == pytest.approx(10.5)
    clock.advance_to(clock.now() + 10.6)
    assert opened(gate) == 1


def test_an_origin_that_said_429_lately_is_asked_one_thing_at_a_time() -> None:
    gate, slots = gate_of(4)
    slots.is_throttled = True
    for _ in range(5):
        opened(gate)
        assert gate.num_active == 1
        gate.answered()
    slots.is_throttled = False
    found = []
    for _ in range(4):
        gate.answered()
        opened(gate)
        found.append(gate.num_active)
    assert found == [2, 3, 4, 4]


def test_without_a_slot_nothing_is_asked() -> None:
    gate, _ = gate_of(8)
    gate.lose()
    assert not gate.is_open


def test_patience_counts_only_idle_time_and_not_that_of_a_sleeping_machine() -> None:
    clock = SimulatedClock()
    patience = Patience(60.0, clock)
    for gained in [True] * 50 + [False] * 5:
        clock.advance_to(clock.now() + 5)
        patience.tick(gained=gained)
    assert patience.left_s == 35
    clock.advance_to(clock.now() + 86_400)
    patience.tick(gained=False)
    assert patience.left_s == 25
    patience.check(None)
    for _ in range(3):
        clock.advance_to(clock.now() + 10)
        patience.tick(gained=False)
    with pytest.raises(StartupError, match="60 s: the disk is full") as caught:
        patience.check(StartupError("the disk is full", code="NoSpace"))
    assert caught.value.code == "NoSpace"


def test_room_is_what_is_to_come_and_the_reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = SimpleNamespace(f_bavail=100, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda _: free)
    check = check_room(tmp_path / "not" / "yet", reserve_bytes=4096 * 40)
    check(0)
    check(4096 * 60)
    with pytest.raises(StartupError) as caught:
        check(4096 * 60 + 1)
    assert caught.value.code == "NoSpace"
    assert str(tmp_path) not in caught.value.message


def test_hashing_an_object_again_is_counted(tmp_path: Path) -> None:
    ledger = Ledger()
    objects = Objects(tmp_path, ledger=ledger)
    sha256 = hashlib.sha256(b"abc").hexdigest()
    (tmp_path / "draft").write_bytes(b"abc")
    objects.adopt(tmp_path / "draft", sha256)
    assert objects.intact(sha256)
    assert ledger.counts().num_hashed_bytes == 0
    os.utime(objects.path(sha256), (1, 1))
    assert objects.intact(sha256)
    assert ledger.counts().num_hashed_bytes == 3
