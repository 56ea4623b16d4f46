"""The scheduler against a runner that reads back what was paged, on a simulated clock.

Whatever is submitted, aborted or failed in whatever order: the books balance after every step, no block has two
writers, every request ends exactly once, and its text is what an engine without memory limits would have given.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tickertape.core.backend import Capabilities
from tickertape.core.blocks import NULL_BLOCK
from tickertape.core.engine import paged_loop
from tickertape.core.errors import ContextLengthExceeded, InvalidRequest, RowError, RunnerError, TickertapeError
from tickertape.core.loop import EngineLoop
from tickertape.core.memory import Limits
from tickertape.core.request import Finish, Grammar, Request, SamplingParams, TokenDelta, pack_tokens
from tickertape.core.sequence import Sequence
from tickertape.testing.oracle import OracleRunner

LIMITS = Limits(max_model_len=120, max_num_seqs=4, max_batch_tokens=24, block_tokens=4)
PREFIX = [7, 3, 9, 1, 4, 4, 2, 8, 6, 5, 0, 3, 1, 1, 2, 7, 9, 9, 8, 6]


@dataclass
class World:
    """An engine loop over an oracle, and what clients have been told."""

    runner: OracleRunner
    loop: EngineLoop
    now: float = 0.0
    submitted: dict[int, Request] = field(default_factory=dict)
    expected: dict[int, list[int]] = field(default_factory=dict)
    told: dict[int, list[int]] = field(default_factory=dict)
    finished: dict[int, Finish] = field(default_factory=dict)
    failed: dict[int, TickertapeError] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)
    first_token_order: list[int] = field(default_factory=list)

    @classmethod
    def make(
        cls,
        *,
        windows: tuple[int | None, ...] = (None,),
        ahead: bool = False,
        num_blocks: int = 40,
        policy: str = "arrival",
        limits: Limits = LIMITS,
        chunked: bool = True,
    ) -> World:
        runner = OracleRunner(windows=windows)
        capabilities = Capabilities(ahead=ahead, chunked=chunked)
        loop, _, _ = paged_loop(runner, limits, capabilities, num_blocks=num_blocks, policy=policy)
        return cls(runner, loop)

    def submit(
        self,
        prompt: list[int],
        max_tokens: int,
        *,
        stop_tokens: tuple[int, ...] = (),
        priority: int = 0,
        tenant: str = "",
        cache_key: bytes = b"",
        replayed: int = 0,
        grammar: Grammar | None = None,
    ) -> int:
        number = len(self.submitted)
        request = Request(
            id=number,
            prompt=pack_tokens(prompt),
            num_prompt_tokens=len(prompt) - replayed,
            sampling=SamplingParams(max_tokens=max_tokens, seed=0, stop_tokens=stop_tokens),
            priority=priority,
            tenant=tenant,
            cache_key=cache_key,
            arrival=self.now,
            grammar=grammar,
        )
        self.submitted[number] = request
        self.told[number] = []
        count = min(max_tokens - replayed, self.loop.stats().max_model_len - len(prompt))
        expected = self.runner.expected(prompt, max(0, count)) if prompt else []
        for i, token in enumerate(expected):
            if token in stop_tokens:
                expected = expected[: i + 1]
                break
        self.expected[number] = expected
        self.loop.submit(request)
        return number

    def abort(self, number: int) -> None:
        if number not in self.finished and number not in self.failed:
            self.aborted.add(number)
        self.loop.abort(number)

    def step(self) -> None:
        self.now += 0.01
        events = self.loop.step()
        for number, delta in events.deltas:
            self._note(number, delta)
        for number, error in events.failures:
            assert number not in self.finished
            assert number not in self.failed
            assert number not in self.aborted
            self.failed[number] = error

    def _note(self, number: int, delta: TokenDelta) -> None:
        assert number not in self.finished, "something was told after the end"
        assert number not in self.failed, "something was told after a failure"
        assert number not in self.aborted, "something was told after an abort"
        if delta.tokens and not self.told[number]:
            self.first_token_order.append(number)
        self.told[number].extend(delta.tokens)
        if delta.finish is not None:
            self.finished[number] = delta.finish

    def run(self, most_steps: int = 2000) -> None:
        for _ in range(most_steps):
            if not self.loop.has_work():
                break
            self.step()
        assert not self.loop.has_work(), "work is left that never ends"

    def check(self) -> None:
        """The common end check: nothing runs, nothing waits, no block is held, and the texts are right."""
        stats = self.loop.stats()
        assert (stats.num_running, stats.num_waiting, stats.num_used_blocks) == (0, 0, 0)
        assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_blocks
        self.balanced()
        for number, expected in self.expected.items():
            told = self.told[number]
            if number in self.finished:
                held = len(self.submitted[number].prompt) // 4 + len(told)
                if self.finished[number].reason == "length" and held > stats.kv_capacity_tokens:
                    expected = expected[: len(told)]  # as long as the pool allows
                assert told == expected, f"request {number}"
            else:
                assert number in self.failed or number in self.aborted, f"request {number} never ended"
                assert told == expected[: len(told)], f"request {number}"

    def sequences(self) -> list[Sequence]:
        roster = self.loop._scheduler._roster
        return list(roster._sequences.values())

    def balanced(self) -> None:
        kv = self.loop._scheduler._kv
        kv.check()
        for group, pool in enumerate(kv.pools):
            holders: Counter[int] = Counter()
            writable: Counter[int] = Counter()
            for seq in self.sequences():
                held = [block for block in seq.blocks[group] if block != NULL_BLOCK]
                holders.update(held)
                # Blocks from the first position still to be computed on will be written.
                writable.update(seq.blocks[group][seq.num_computed // LIMITS.block_tokens :])
                line = kv.tables[group][seq.slot, : len(seq.blocks[group])].tolist()
                assert line == seq.blocks[group] or not seq.blocks[group], "a table differs from what is held"
            assert pool.num_held == len(holders)
            for block, count in writable.items():
                assert block == NULL_BLOCK or holders[block] == count == 1, f"block {block} is writable by two"


class Life(RuleBasedStateMachine):
    @initialize(
        windows=st.sampled_from([(None,), (5,), (None, 7), (1,), (None, None)]),
        ahead=st.booleans(),
        num_blocks=st.sampled_from([14, 17, 24, 60]),
        policy=st.sampled_from(["arrival", "priority", "fair"]),
        chunked=st.booleans(),
    )
    def start(self, windows: tuple[int | None, ...], ahead: bool, num_blocks: int, policy: str, chunked: bool) -> None:
        self.world = World.make(windows=windows, ahead=ahead, num_blocks=num_blocks, policy=policy, chunked=chunked)

    @rule(
        shared=st.integers(0, 20),
        own=st.lists(st.integers(0, 96), max_size=12),
        max_tokens=st.integers(0, 25),
        stop=st.booleans(),
        priority=st.integers(0, 2),
        tenant=st.sampled_from(["a", "b", "c"]),
        salted=st.booleans(),
    )
    def submit(
        self,
        shared: int,
        own: list[int],
        max_tokens: int,
        stop: bool,
        priority: int,
        tenant: str,
        salted: bool,
    ) -> None:
        self.world.submit(
            PREFIX[:shared] + own,
            max_tokens,
            stop_tokens=(5, 6, 7, 8, 9, 10) if stop else (),
            priority=priority,
            tenant=tenant,
            cache_key=tenant.encode() if salted else b"",
        )

    @rule(data=st.data(), replayed=st.integers(1, 6))
    def resume(self, data: st.DataObject, replayed: int) -> None:
        """A request that comes with output replayed goes on as if it had never been interrupted."""
        prompt = PREFIX[: data.draw(st.integers(1, 20))]
        self.world.submit(prompt + self.world.runner.expected(prompt, replayed), replayed + 4, replayed=replayed)

    @precondition(lambda self: self.world.submitted)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.world.abort(data.draw(st.sampled_from(sorted(self.world.submitted))))

    @rule(count=st.integers(1, 5))
    def step(self, count: int) -> None:
        for _ in range(count):
            if self.world.loop.has_work():
                self.world.step()

    @rule()
    def fail_a_step(self) -> None:
        self.world.runner.fail_steps.add(self.world.loop.stats().num_steps + 2)

    @rule(slot=st.integers(0, 3))
    def fail_a_row(self, slot: int) -> None:
        self.world.runner.fail_slots.setdefault(self.world.loop.stats().num_steps + 2, set()).add(slot)

    @rule(seconds=st.floats(0, 100))
    def wait(self, seconds: float) -> None:
        self.world.now += seconds

    @invariant()
    def balanced(self) -> None:
        if hasattr(self, "world"):
            self.world.balanced()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.run()
            self.world.check()


TestLife = Life.TestCase
TestLife.settings = settings(
    max_examples=120, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("windows", [(None,), (6,), (None, 9)])
def test_prefix_hits_at_block_edges_change_nothing(windows: tuple[int | None, ...], ahead: bool) -> None:
    world = World.make(windows=windows, ahead=ahead, num_blocks=200)
    for length in (3, 4, 5, 7, 8, 9, 15, 16, 17, 20):
        world.submit(PREFIX[:length], 9)
        world.run()
    assert world.loop.stats().num_cached_tokens > 0
    world.check()


def test_a_hit_covers_all_full_blocks_but_never_the_last_token() -> None:
    world = World.make()
    for _ in range(2):
        world.submit(PREFIX[:16], 1)
        world.run()
    stats = world.loop.stats()
    assert stats.num_cached_tokens == 12
    assert stats.num_prompt_tokens == 32
    world.check()


def test_salts_do_not_share_blocks() -> None:
    world = World.make()
    for key in (b"a", b"b", b""):
        world.submit(PREFIX, 1, cache_key=key)
        world.run()
    assert world.loop.stats().num_cached_tokens == 0
    world.submit(PREFIX, 1, cache_key=b"a")
    world.run()
    assert world.loop.stats().num_cached_tokens == 16
    world.check()


def test_a_prefix_in_the_making_is_computed_once() -> None:
    world = World.make(num_blocks=100)
    for i in range(4):
        world.submit([*PREFIX, i], 3)
    world.run()
    assert sum(row.start == 0 for batch in world.runner.batches for row in batch.rows) == 1
    assert world.loop.stats().num_cached_tokens == 3 * 20
    world.check()


def test_who_waits_for_a_prefix_goes_on_when_its_maker_is_aborted() -> None:
    world = World.make(
        num_blocks=100, limits=Limits(max_model_len=120, max_num_seqs=4, max_batch_tokens=4, block_tokens=4)
    )
    maker = world.submit([*PREFIX, 1], 3)
    world.submit([*PREFIX, 2], 3)
    world.step()
    world.abort(maker)
    world.run()
    world.check()


@pytest.mark.parametrize("ahead", [False, True])
def test_preemption_recomputes_and_the_text_is_the_same(ahead: bool) -> None:
    world = World.make(ahead=ahead, num_blocks=17)
    for i in range(4):
        world.submit([i, *PREFIX[:10]], 25)
    world.run()
    assert world.loop.stats().num_preemptions > 0
    world.check()
    assert {finish.reason for finish in world.finished.values()} == {"length"}


def test_alone_with_a_full_pool_a_sequence_ends_with_length_and_never_preempts_itself() -> None:
    """Case 087."""
    world = World.make(num_blocks=8)
    number = world.submit(PREFIX, 100)
    world.run()
    assert world.finished[number] == Finish("length")
    assert world.loop.stats().num_preemptions == 0
    assert len(world.told[number]) == 7 * 4 + 1 - 20
    assert world.told[number] == world.expected[number][:9]


def test_a_prompt_that_can_never_fit_is_refused_at_once_and_blocks_nobody() -> None:
    world = World.make(num_blocks=5)
    too_long = world.submit(PREFIX, 1)
    fits = world.submit(PREFIX[:10], 2)
    world.run()
    assert isinstance(world.failed[too_long], ContextLengthExceeded)
    assert "20 tokens" in world.failed[too_long].message
    assert "16 tokens" in world.failed[too_long].message
    assert world.told[fits] == world.expected[fits]


def test_bad_requests_fail_alone() -> None:
    world = World.make()
    empty = world.submit([], 3)
    constrained = world.submit(PREFIX, 3, grammar=Grammar("regex", "a+"))
    good = world.submit(PREFIX, 3)
    world.run()
    assert isinstance(world.failed[empty], InvalidRequest)
    assert world.failed[constrained].param == "grammar"
    assert world.told[good] == world.expected[good]
    world.check()


@pytest.mark.parametrize("ahead", [False, True])
def test_a_failed_row_costs_one_request_a_failed_step_its_rows(ahead: bool) -> None:
    world = World.make(ahead=ahead, num_blocks=100)
    world.runner.fail_slots = {3: {1}}
    numbers = [world.submit([i, *PREFIX[:3]], 8) for i in range(3)]
    world.run()
    assert [number in world.failed for number in numbers] == [False, True, False]
    assert isinstance(world.failed[1], RowError)
    world.runner.fail_steps = {world.loop.stats().num_steps + 3}
    numbers = [world.submit([i, *PREFIX[:3]], 8) for i in range(3)]
    world.run()
    assert all(isinstance(world.failed[number], RunnerError) for number in numbers)
    number = world.submit(PREFIX, 4)
    world.run()
    assert world.told[number] == world.expected[number]
    world.check()


@pytest.mark.parametrize("state", ["queued", "prefilling", "decoding"])
def test_an_abort_frees_everything_before_the_next_step(state: str) -> None:
    limits = Limits(max_model_len=120, max_num_seqs=1, max_batch_tokens=8, block_tokens=4)
    world = World.make(limits=limits)
    first = world.submit(PREFIX, 50)
    second = world.submit(PREFIX[::-1], 5)
    for _ in range({"queued": 1, "prefilling": 1, "decoding": 6}[state]):
        world.step()
    world.abort(second if state == "queued" else first)
    stats = world.loop.stats()
    if state == "queued":
        assert (stats.num_running, stats.num_waiting) == (1, 0)
    else:
        assert (stats.num_running, stats.num_used_blocks) == (0, 0)
    world.run()
    world.check()


def test_nobody_passes_an_old_long_request() -> None:
    """Case 089: short requests keep coming, the pool is tight, the oldest still ends in bounded time."""
    world = World.make(num_blocks=17)
    long = world.submit(PREFIX, 40)
    for i in range(300):
        world.submit([i % 97, *PREFIX[:6]], 3)
        world.step()
        if long in world.finished:
            break
    assert long in world.finished, "the oldest request starved"
    assert len(world.runner.batches) <= 60
    world.run()
    world.check()


def test_equal_requests_are_served_in_order_of_arrival() -> None:
    limits = Limits(max_model_len=120, max_num_seqs=2, max_batch_tokens=24, block_tokens=4)
    world = World.make(limits=limits)
    for i in range(10):
        world.submit([i, i, i], 3)
        world.now += 1
    world.run()
    assert world.first_token_order == sorted(world.first_token_order)


def test_a_high_priority_preempts_and_both_texts_are_undisturbed() -> None:
    """Case 090."""
    world = World.make(num_blocks=14, policy="priority")
    low = world.submit(PREFIX, 25, priority=5)
    for _ in range(4):
        world.step()
    high = world.submit(PREFIX[::-1], 25, priority=0)
    world.run()
    assert world.loop.stats().num_preemptions > 0
    assert list(world.finished) == [high, low]
    world.check()


def test_ageing_lets_the_low_priority_in() -> None:
    limits = Limits(max_model_len=120, max_num_seqs=1, max_batch_tokens=24, block_tokens=4)
    world = World.make(limits=limits, policy="priority")
    low = world.submit([1, 2, 3], 2, priority=1)
    for i in range(40):
        world.now += 1  # one level of priority is worth 30 s
        world.submit([i, 3, 3], 4, priority=0)
        world.step()
    world.run()
    # It goes before everybody who came more than 30 s after it, and after everybody who came before that.
    assert world.first_token_order.index(low) == 29
    world.check()


def test_a_light_tenant_is_not_behind_a_heavy_ones_queue() -> None:
    limits = Limits(max_model_len=120, max_num_seqs=1, max_batch_tokens=24, block_tokens=4)
    world = World.make(limits=limits, policy="fair")
    for i in range(20):
        world.submit([i, 2, 3], 8, tenant="heavy")
    world.step()
    light = world.submit([90, 2, 3], 4, tenant="light")
    world.run()
    assert world.first_token_order.index(light) <= 2
    world.check()


def test_whole_prompts_only_for_a_runner_that_takes_no_pieces() -> None:
    world = World.make(chunked=False, num_blocks=60)
    for i in range(6):
        world.submit([i, *PREFIX[:12]], 5)
    too_long = world.submit(PREFIX + PREFIX, 1)
    world.run()
    assert all(row.start == 0 for b in world.runner.batches for row in b.rows if len(row.tokens) > 1)
    assert isinstance(world.failed[too_long], ContextLengthExceeded)


def test_one_step_ahead_hides_the_host_and_drops_what_ran_past_the_end() -> None:
    world = World.make(ahead=True)
    number = world.submit(PREFIX[:5], 20, stop_tokens=tuple(range(40)))
    world.run()
    assert any(-1 in row.tokens for batch in world.runner.batches for row in batch.rows)
    assert world.finished[number].reason == "stop"
    world.check()


def test_max_tokens_zero_computes_the_prompt_and_gives_nothing() -> None:
    for ahead in (False, True):
        world = World.make(ahead=ahead)
        number = world.submit(PREFIX, 0)
        world.run()
        assert world.finished[number] == Finish("length")
        assert world.told[number] == []
        assert all(row.num_logits == 0 for batch in world.runner.batches for row in batch.rows)
        world.check()
