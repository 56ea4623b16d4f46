"""Policies order requests; they know nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickertape.core.errors import StartupError
from tickertape.core.policy import POLICIES, ArrivalPolicy, FairPolicy, Policy, PriorityPolicy, make_policy
from tickertape.core.request import Request, SamplingParams, pack_tokens
from tickertape.core.sequence import Sequence
from tickertape.core.waiting import WaitingQueue


def request(number: int, *, arrival: float = 0.0, priority: int = 0, tenant: str = "") -> Request:
    return Request(
        id=number,
        prompt=pack_tokens([1]),
        num_prompt_tokens=1,
        sampling=SamplingParams(max_tokens=1, seed=0),
        arrival=arrival,
        priority=priority,
        tenant=tenant,
    )


REQUESTS = st.builds(
    request,
    st.integers(0, 10**6),
    arrival=st.floats(0, 1e6),
    priority=st.integers(-5, 5),
    tenant=st.sampled_from("abc"),
)


@pytest.mark.parametrize("policy", [make_policy(name) for name in POLICIES], ids=list(POLICIES))
@given(first=REQUESTS, second=REQUESTS)
def test_preemption_follows_the_order_so_two_can_never_take_turns(
    policy: Policy, first: Request, second: Request
) -> None:
    if policy.outranks(first, second):
        assert policy.rank(first) < policy.rank(second)
        assert not policy.outranks(second, first)


@given(arrival=st.floats(0, 1e5), gap=st.floats(60.1, 1e5))
def test_priority_ages_by_thirty_seconds_a_level(arrival: float, gap: float) -> None:
    policy = PriorityPolicy(ageing_s=30)
    old = request(1, arrival=arrival, priority=2)
    assert policy.rank(old) < policy.rank(request(2, arrival=arrival + gap, priority=0))
    assert policy.rank(request(3, arrival=arrival + 59, priority=0)) < policy.rank(old)


def test_a_tenant_back_from_idleness_has_no_credit() -> None:
    policy = FairPolicy()
    policy.joined("busy", [])
    policy.served("busy", 100, 50)
    policy.joined("idle", ["busy"])
    assert policy.level("idle") == policy.level("busy") == 200.0


def test_departed_tenants_do_not_pile_up() -> None:
    policy = FairPolicy()
    for i in range(1000):
        policy.joined(f"tenant-{i}", [])
        policy.served(f"tenant-{i}", 1, 1)
    assert len(policy._counters) == 1


def test_an_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(StartupError, match="'lottery'; there are arrival, priority, fair"):
        make_policy("lottery")


@given(st.lists(st.tuples(st.floats(0, 100), st.sampled_from(["keep", "abort", "park"])), max_size=30))
def test_the_queue_gives_everybody_once_in_order(entries: list[tuple[float, str]]) -> None:
    policy = ArrivalPolicy()
    queue = WaitingQueue(policy)
    kept: list[tuple[float, ...]] = []
    parked = 0
    for number, (arrival, fate) in enumerate(entries):
        seq = Sequence(request(number, arrival=arrival), 1)
        seq.rank = policy.rank(seq.request)
        queue.push(seq)
        if fate == "abort":
            queue.remove(seq)
            continue
        kept.append(seq.rank)
        if fate == "park" and queue.head() is seq:
            queue.park(seq, b"digest")
            parked += 1
    assert len(queue) == len(kept), "a parked sequence still counts as waiting"
    queue.wake([b"digest"])
    given_out = []
    while (head := queue.head()) is not None:
        queue.take(head)
        given_out.append(head.rank)
    assert given_out == sorted(kept)
    assert len(queue) == 0
