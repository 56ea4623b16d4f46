"""The rules of leases and cool-downs, and slots without a cluster: what needs no network to be seen."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tickertape.core.messages import FetchOptions
from tickertape.weights.fetch.ports import SlotLost
from tickertape.weights.slots.choose import choose_slots
from tickertape.weights.slots.cooldown import Cooldown
from tickertape.weights.slots.files import FileRegister
from tickertape.weights.slots.lease import LeaseRecord, Term, Terms, Watch
from tickertape.weights.slots.local import LocalSlots
from tickertape.weights.slots.throttle import Pacing, ThrottleRecord, ThrottleWatch


class Hand:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def local(store: Path, clock: Hand, *, jitter: float = 0.0) -> LocalSlots:
    register = FileRegister(
        store / "origin", "cooldown", empty=ThrottleRecord(), unreadable=ThrottleRecord(), make=True
    )
    cooldown = Cooldown(register, ThrottleWatch(1, Pacing(), lambda: 0.5), clock, fresh_s=2.0)
    return LocalSlots(cooldown, clock=clock, rng=lambda: jitter)


@pytest.mark.parametrize("terms", [(10, 10, 2), (15, 10, 10), (15, 10, 0)])
def test_terms_that_cannot_work_are_refused(terms: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="outlasts"):
        Terms(*terms)


def test_a_lease_is_over_when_nothing_changed_for_its_whole_length_on_our_clock() -> None:
    watch, record = Watch(15.0), LeaseRecord().claimed("a", 15.0, 10**9)
    assert not watch.claimable(record, 100.0)
    assert not watch.claimable(record, 114.9)
    record = record.renewed(0)  # the holder's wall clock went back
    assert not watch.claimable(record, 115.1)
    assert watch.left_s(120.0) == pytest.approx(10.1)
    assert watch.claimable(record, 130.2)
    assert watch.claimable(record.freed(), 130.3)


def test_a_holder_s_own_length_counts_where_it_differs_from_ours() -> None:
    watch, record = Watch(15.0), LeaseRecord().claimed("a", 30.0, 1)
    assert not watch.claimable(record, 0.0)
    assert not watch.claimable(record, 29.9)
    assert watch.claimable(record, 30.0)


def test_every_holder_has_a_higher_epoch() -> None:
    first = LeaseRecord().claimed("a", 15.0, 5)
    second = first.renewed(6).freed().claimed("b", 15.0, 7)
    assert (first.epoch, second.epoch) == (1, 2)


def test_a_term_counts_from_what_was_sent_and_does_not_begin_again() -> None:
    term = Term(10.0, sent_at=100.0)
    term.extend(105.0)
    assert term.end == 115.0
    term.extend(115.0)
    assert term.end == 115.0


@pytest.mark.parametrize(
    ("retry_after_s", "streak", "pause_s"),
    [
        (7.0, 5, 7.0),
        (10**9, 0, 3600.0),
        (None, 0, 10.0),
        (None, 3, 80.0),
        (None, 10**6, 300.0),
        (0.0, 0, 10.0),
        (-5.0, 1, 20.0),
        (math.nan, 0, 10.0),
        (math.inf, 0, 10.0),
    ],
)
def test_how_long_a_429_means(retry_after_s: float | None, streak: int, pause_s: float) -> None:
    assert Pacing().pause_s(retry_after_s, streak) == pause_s


def test_pauses_that_nobody_named_grow_with_cool_downs_not_with_429s() -> None:
    watch = ThrottleWatch(8, Pacing(), lambda: 0.0)
    now = 0.0
    for expected in (10.0, 20.0, 40.0):
        for _ in range(3):
            wanted = watch.wanted_s(None, now)
            assert wanted == expected
            record = watch.struck(wanted, now)
            if record is not None:
                watch.wrote(record, now)
        now += expected
        over = watch.due(now)
        assert over is not None
        watch.wrote(over, now)
    assert watch.num_slots == 1
    for expected_slots in range(2, 9):
        assert watch.due(now + 59.9) is None
        now += 60
        more = watch.due(now)
        assert more is not None
        watch.wrote(more, now)
        assert watch.num_slots == expected_slots
    assert watch.due(now + 1000) is None, "at rest"
    assert watch.wanted_s(None, now) == 10.0


def test_an_origin_counts_as_throttled_for_a_clean_minute_after_the_pause() -> None:
    rest, alone = ThrottleWatch(1, Pacing(), lambda: 0.0), ThrottleWatch(1, Pacing(), lambda: 0.0)
    assert not rest.is_throttled(0.0)
    rest.observe(ThrottleRecord(1, 0.0, 1, 1), 100.0)
    assert rest.is_throttled(100.0), "the pause was over when this one came"
    rest.observe(ThrottleRecord(1, 0.0), 160.0)
    assert not rest.is_throttled(160.0)
    alone.pause(10.0, 0.0)
    assert alone.is_throttled(69.9), "though it could tell nobody"
    assert not alone.is_throttled(70.1)


def test_a_longer_429_of_the_same_cool_down_extends_it_and_halves_nothing() -> None:
    watch = ThrottleWatch(8, Pacing(), lambda: 0.0)
    watch.wrote(ThrottleRecord(1, 10.0, 4, 1), 0.0)
    assert watch.struck(5.0, 3.0) is None
    assert watch.struck(30.0, 3.0) == ThrottleRecord(2, 30.0, 4, 1)


def test_everybody_adds_up_to_a_tenth_of_his_own() -> None:
    least, most = ThrottleWatch(1, Pacing(), lambda: 0.0), ThrottleWatch(1, Pacing(), lambda: 1.0)
    for watch in (least, most):
        watch.observe(ThrottleRecord(1, 100.0), 50.0)
    assert (least.pause_s(50.0), most.pause_s(50.0)) == pytest.approx((100.0, 110.0))


def test_without_a_cluster_everybody_reads_after_a_jitter_of_his_own(tmp_path: Path) -> None:
    clock = Hand()
    slots = local(tmp_path, clock, jitter=0.5)
    assert slots.acquire() is None
    assert 0 < slots.retry_s <= 0.125
    clock.now += slots.retry_s
    some = [slots.acquire() for _ in range(3)]
    assert [slot.epoch for slot in some if slot is not None] == [1, 2, 3]
    assert some[0] is not None
    some[0].check()
    some[0].release()
    with pytest.raises(SlotLost):
        some[0].check()
    assert list(tmp_path.iterdir()) == [], "who only reads writes nothing"


def test_without_a_cluster_a_node_cools_down_together(tmp_path: Path) -> None:
    clock = Hand()
    one, other = local(tmp_path, clock), local(tmp_path, clock)
    one.throttled(60.0)
    assert one.cooldown_s() == pytest.approx(63.0)
    assert other.acquire() is None
    assert other.cooldown_s() == pytest.approx(63.0)
    clock.now += 63.1
    assert other.acquire() is not None
    assert local(tmp_path, clock).cooldown_s() == 0.0, "it is over for those who come now, too"


def test_a_store_that_cannot_be_written_is_no_obstacle(tmp_path: Path) -> None:
    store = tmp_path / "file"
    store.touch()
    clock = Hand()
    slots = local(store, clock)
    assert slots.acquire() is not None
    slots.throttled(60.0)
    assert slots.acquire() is None
    clock.now += 66
    assert slots.acquire() is not None


def test_local_is_what_one_gets_without_asking(tmp_path: Path) -> None:
    assert isinstance(choose_slots(FetchOptions(), tmp_path), LocalSlots)
