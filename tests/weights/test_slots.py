"""Slots in simulated time: K at most, back in time, one cool-down for all. The heavy suite explores more of it."""

from __future__ import annotations

import pytest

from tests.sim.contenders import Cluster, check_throttle
from tests.sim.slot_faults import explore
from tickertape.weights.slots.lease import Terms


def test_whatever_befalls_servers_and_network_there_are_never_more_than_k_holders() -> None:
    tally = explore(num_runs=200, num_steps=12)
    assert tally.num_runs >= 200
    assert tally.num_requests > 2000
    assert min(tally.num_refused, tally.num_late, tally.num_returned, tally.num_halved) > 0, "nothing was tried"


@pytest.mark.parametrize("how", ["kill", "stop"])
@pytest.mark.parametrize("num_waiting", [1, 6])
def test_a_slot_is_back_within_a_lease_and_two_seconds(how: str, num_waiting: int) -> None:
    returns: list[float] = []
    for seed in range(25):
        cluster = Cluster(seed, num_slots=1, num_contenders=1 + num_waiting, skew=1e-4)
        cluster.world.advance(20 + cluster.world.random.uniform(0, 5))
        while not (holders := [one for one in cluster.contenders if one.held]):
            cluster.world.advance(0.1)
        (cluster.kill if how == "kill" else cluster.stop)(holders[0])
        cluster.world.advance(cluster.terms.lease_s + 3)
        returns += cluster.returns
        cluster.close()
    assert len(returns) == 25
    assert max(returns) <= Terms().lease_s + 2


def test_slots_come_back_one_a_clean_minute() -> None:
    cluster = Cluster(1, num_slots=4, num_contenders=6)
    cluster.world.advance(10)
    cluster.refuse(20)
    cluster.world.advance(60 * 6)
    numbers = [record.num_slots for _, record in cluster.throttle.history]
    assert [number for number, before in zip(numbers[1:], numbers, strict=False) if number != before] == [2, 3, None]
    check_throttle(cluster.throttle.history, 4)
    cluster.close()


def test_a_server_that_comes_after_a_cooldown_does_not_wait_for_it() -> None:
    """The record of it is still there: what says that it is over is another record, not a clock."""
    cluster = Cluster(2, num_slots=1, num_contenders=2)
    cluster.world.advance(5)
    cluster.refuse(300)
    cluster.world.advance(400)
    assert cluster.num_refused > 0
    for contender in cluster.contenders:
        cluster.kill(contender)
    before = cluster.num_requests
    cluster.join()
    cluster.world.advance(cluster.terms.lease_s * 1.1)
    assert cluster.num_requests > before
    cluster.close()


def test_nobody_acts_on_a_network_that_is_down() -> None:
    cluster = Cluster(3, num_slots=2, num_contenders=4)
    cluster.world.advance(10)
    assert any(contender.held for contender in cluster.contenders)
    cluster.trouble(down=True)
    cluster.world.advance(12)  # the renew deadline, and a buffer
    before = cluster.num_requests
    cluster.world.advance(30)
    assert cluster.num_requests == before
    assert {contender.slots.trouble for contender in cluster.contenders} == {"no answer"}
    cluster.trouble()
    cluster.world.advance(20)
    assert cluster.num_requests > before
    assert {contender.slots.trouble for contender in cluster.contenders} == {None}
    cluster.close()
