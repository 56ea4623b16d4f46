"""Constraints in the engine's loop: when they are compiled, asked and fed, whatever happens to their sequences."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tickertape.core.backend import Capabilities
from tickertape.core.batch import Masks, StepOutput
from tickertape.core.driver import Driver
from tickertape.core.engine import paged_loop
from tickertape.core.errors import InvalidRequest, Overloaded, RowError, TickertapeError
from tickertape.core.loop import EngineLoop
from tickertape.core.memory import Limits
from tickertape.core.ports import EngineStats
from tickertape.core.request import Finish, Grammar, Request, SamplingParams, TokenDelta, pack_tokens
from tickertape.core.step import StepEvents
from tickertape.testing.oracle import OracleRunner

LIMITS = Limits(max_model_len=120, max_num_seqs=4, max_batch_tokens=24, block_tokens=4)
VOCAB = 97


class Ladder:
    """The k-th token (0 the first) is one of those whose rest by 5 is (first + k) % 5; done after `count`."""

    def __init__(self, first: int, count: int, stop_tokens: Collection[int]) -> None:
        self.num_accepted = 0
        self.is_done = count == 0
        self.costly_at = -1
        self.spent_at = -1
        self._first = first
        self._count = count
        self._stop_tokens = stop_tokens

    def allows(self, token: int) -> bool:
        return token % 5 == (self._first + self.num_accepted) % 5

    def accept(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if self.num_accepted == self.spent_at:
                raise InvalidRequest("too costly to move", param="grammar")
            if self.is_done or not self.allows(token):
                raise RowError(f"token {token} is not the {self.num_accepted}th")
            self.num_accepted += 1
            self.is_done = self.num_accepted == self._count

    def fill(self, line: NDArray[np.int32]) -> None:
        assert not self.is_done
        line[:] = 0
        if self.num_accepted == self.costly_at:
            raise InvalidRequest("too costly", param="grammar")
        for token in range(VOCAB):
            if self.allows(token) or token in self._stop_tokens:
                line.view(np.uint32)[token // 32] |= np.uint32(1 << token % 32)


class Ladders:
    """A compiler of `first,count` and, to go wrong, `bad`, `panic`, `costly` or `spent` at k; `held` ones wait for
    `let_go`."""

    mask_words = -(-VOCAB // 32)

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.made: list[Ladder] = []

    def compile(self, grammar: Grammar, stop_tokens: Collection[int]) -> Ladder:
        source, _, fault = grammar.source.partition(" ")
        first, count = map(int, source.split(","))
        if fault == "held":
            assert self.let_go.wait(10)
        elif fault == "bad":
            raise InvalidRequest("it is bad", param="grammar")
        elif fault == "panic":
            raise KeyboardInterrupt  # what a library's panic is: no Exception
        ladder = Ladder(first, count, stop_tokens)
        if fault.startswith("costly"):
            ladder.costly_at = int(fault.removeprefix("costly"))
        if fault.startswith("spent"):
            ladder.spent_at = int(fault.removeprefix("spent"))
        self.made.append(ladder)
        return ladder


class Obedient(OracleRunner):
    """Gives the first id from the digest on that its mask allows."""

    def sample(self, masks: Masks | None) -> StepOutput:
        batch = self.batches[-1] if len(self._outputs) == 1 else self.batches[-len(self._outputs)]
        output = super().sample(masks)
        if masks is None:
            return output
        assert masks.bits.shape == (sum(row.num_logits for row in batch.rows), Ladders.mask_words)
        tokens = []
        line = 0
        for row, ids in zip(batch.rows, output.tokens, strict=True):
            line += row.num_logits
            if ids:
                allowed = np.unpackbits(masks.bits[line - 1].view(np.uint8), bitorder="little")[:VOCAB]
                ids = [next(id % VOCAB for id in range(ids[0], ids[0] + VOCAB) if allowed[id % VOCAB])]
                self._last[row.slot] = ids[0]
            tokens.append(ids)
        return StepOutput(tokens, None, output.errors)


class World:
    """A loop with its compiler, stepped until nobody waits."""

    def __init__(self, *, ahead: bool = False, num_blocks: int = 40, masks: bool = True) -> None:
        self.runner = Obedient()
        self.compiler = Ladders()
        self.now = 0.0
        self.told: dict[int, list[int]] = {}
        self.finished: dict[int, Finish] = {}
        self.failed: dict[int, TickertapeError] = {}
        self.loop, _, _ = paged_loop(
            self.runner,
            LIMITS,
            Capabilities(ahead=ahead, masks=masks),
            num_blocks=num_blocks,
            grammars=self.compiler,
            clock=lambda: self.now,
        )

    def submit(self, number: int, prompt: list[int], max_tokens: int, grammar: str | None = None, **more: Any) -> None:
        replayed = more.pop("replayed", 0)
        self.loop.submit(
            Request(
                id=number,
                prompt=pack_tokens(prompt),
                num_prompt_tokens=len(prompt) - replayed,
                sampling=SamplingParams(max_tokens=max_tokens, seed=0, **more),
                grammar=None if grammar is None else Grammar("regex", grammar),
            )
        )

    def step(self) -> None:
        events = self.loop.step()
        for number, delta in events.deltas:
            assert number not in self.finished
            self.told.setdefault(number, []).extend(delta.tokens)
            if delta.finish is not None:
                self.finished[number] = delta.finish
        self.failed.update(events.failures)

    def run(self, *, while_compiling: bool = True) -> None:
        deadline = time.monotonic() + 10
        while self.loop.has_work() or (while_compiling and self.loop.num_compiling):
            assert time.monotonic() < deadline
            if self.loop.has_work():
                self.step()
        stats = self.loop.stats()
        assert (stats.num_running, stats.num_used_blocks) == (0, 0)


def climbs(tokens: Sequence[int], first: int) -> bool:
    return all(token % 5 == (first + k) % 5 for k, token in enumerate(tokens))


@pytest.fixture(params=[False, True], ids=["in step", "ahead"])
def ahead(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def world(ahead: bool) -> Iterator[World]:
    made = World(ahead=ahead)
    yield made
    made.compiler.let_go.set()
    made.loop.close()


def test_an_answer_follows_its_grammar_and_its_neighbour_does_not_notice(world: World) -> None:
    world.submit(1, [1, 2, 3], 20, "3,7")
    world.submit(2, [1, 2, 3], 7)
    world.run()
    assert len(world.told[1]) == 7
    assert climbs(world.told[1], 3)
    assert world.finished[1] == Finish("stop"), "nothing can follow, so no stop token is needed"
    assert world.told[2] == world.runner.expected([1, 2, 3], 7)
    assert not climbs(world.told[2], 3)


def test_length_and_stop_tokens_end_it_too(world: World) -> None:
    world.submit(1, [1], 3, "0,9")
    world.submit(2, [2], 50, "1,50", stop_tokens=tuple(range(0, VOCAB, 5)))
    world.run()
    assert (len(world.told[1]), world.finished[1]) == (3, Finish("length"))
    stop = world.finished[2].stop_token
    assert stop is not None
    assert world.told[2][-1] == stop
    assert climbs(world.told[2][:-1], 1)


def test_preempted_it_goes_on_where_it_was(ahead: bool) -> None:
    wide, narrow = World(ahead=ahead), World(ahead=ahead, num_blocks=14)
    for world in (wide, narrow):
        for number in range(4):
            world.submit(number, [number, 5, 6], 25, f"{number},20")
        world.run()
        world.loop.close()
    assert narrow.loop.stats().num_preemptions > 0
    assert narrow.told == wide.told
    assert all(len(tokens) == 20 and climbs(tokens, number) for number, tokens in wide.told.items())


def test_replayed_output_is_fed_to_it(world: World) -> None:
    world.submit(1, [1, 2, 3], 12, "2,10")
    world.run()
    whole = world.told[1]
    world.submit(2, [1, 2, 3, *whole[:4]], 12, "2,10", replayed=4)
    world.submit(3, [1, 2, 3, *whole], 12, "2,10", replayed=10)
    world.submit(4, [1, 2, 3, whole[0], whole[0]], 12, "2,10", replayed=2)
    world.run()
    assert world.told[2] == whole[4:]
    assert (world.told[3], world.finished[3]) == ([], Finish("stop")), "it was complete before it was cut off"
    assert isinstance(world.failed[4], RowError)


def test_scored_prompts_are_not_masked(ahead: bool) -> None:
    class Lines(Obedient):
        def sample(self, masks: Masks | None) -> StepOutput:
            if masks is not None:
                seen.append(masks.bits.copy())
            return super().sample(masks)

    seen: list[NDArray[np.int32]] = []
    compiler = Ladders()
    loop, _, _ = paged_loop(Lines(), LIMITS, Capabilities(ahead=ahead), num_blocks=40, grammars=compiler)
    sampling = SamplingParams(max_tokens=2, seed=0, prompt_logprobs=0)
    loop.submit(
        Request(
            id=1, prompt=pack_tokens([1, 2, 3]), num_prompt_tokens=3, sampling=sampling, grammar=Grammar("regex", "0,2")
        )
    )
    while not loop.has_work():
        time.sleep(0.001)
    loop.step()
    assert (seen[0][:2] == -1).all()
    assert (seen[0][2] != -1).any()
    loop.close()


def test_who_compiles_is_in_nobodys_way_and_can_be_aborted(world: World) -> None:
    world.submit(1, [1], 5, "0,3 held")
    world.submit(2, [2], 5, "0,3 held")
    world.submit(3, [3], 5)
    world.run(while_compiling=False)
    assert len(world.told[3]) == 5
    assert world.loop.stats().num_waiting == 2
    world.loop.abort(1)
    assert world.loop.stats().num_waiting == 1
    world.compiler.let_go.set()
    world.run()
    assert set(world.told) == {2, 3}
    assert world.loop.stats().num_waiting == 0


def test_one_that_takes_too_long_is_refused_and_so_is_who_finds_no_thread(world: World) -> None:
    for number in (1, 2, 3):
        world.submit(number, [1], 5, "0,3 held")
    world.submit(4, [1], 5)
    time.sleep(0.05)  # the pool's threads have taken theirs
    world.run(while_compiling=False)
    assert world.loop.num_compiling == 3
    world.now += 11
    world.run()
    assert [type(world.failed[number]) for number in (1, 2, 3)] == [InvalidRequest, InvalidRequest, Overloaded]
    assert len(world.told[4]) == 5
    world.compiler.let_go.set()
    world.submit(5, [1], 5, "0,3")
    world.run()
    assert len(world.told[5]) == 3


def test_what_cannot_be_compiled_fails_alone(world: World) -> None:
    world.submit(1, [1], 5, "0,3 bad")
    world.submit(2, [1], 5, "0,3 panic")
    world.submit(3, [1], 5, "0,3")
    world.run()
    assert (type(world.failed[1]), world.failed[1].message) == (InvalidRequest, "it is bad")
    assert isinstance(world.failed[2], RowError)
    assert len(world.told[3]) == 3


def test_one_that_gives_out_on_its_way_fails_alone(world: World) -> None:
    world.submit(1, [1], 9, "0,9 costly4")
    world.submit(2, [1], 9, "0,9")
    world.submit(3, [1], 9)
    world.run()
    assert (type(world.failed[1]), world.failed[1].message) == (InvalidRequest, "too costly")
    assert climbs(world.told[1], 0)
    assert len(world.told[1]) == 4
    assert (len(world.told[2]), climbs(world.told[2], 0)) == (9, True)
    assert world.told[3] == world.runner.expected([1], 9)


def test_one_that_gives_out_as_it_moves_fails_alone(world: World) -> None:
    world.submit(1, [1], 9, "0,9 spent4")
    world.submit(2, [1], 9, "0,9")
    world.run()
    assert (type(world.failed[1]), world.failed[1].message) == (InvalidRequest, "too costly to move")
    assert len(world.told[1]) == 4
    assert len(world.told[2]) == 9


def test_a_runner_without_masks_refuses_it() -> None:
    world = World(masks=False)
    world.submit(1, [1], 3, "0,3")
    world.run()
    assert (world.failed[1].code, world.failed[1].param) == ("unsupported_value", "grammar")


def test_failing_steps_and_rows_leave_the_others_right(world: World) -> None:
    world.runner.fail_steps = {4}
    world.runner.fail_slots = {9: {0, 1}}
    for number in range(6):
        world.submit(number, [number], 12, f"{number},10" if number % 2 else None)
    world.run()
    assert world.failed
    assert all(climbs(world.told[number], number) for number in (1, 3, 5) if number in world.told)
    assert set(world.finished) | set(world.failed) == set(range(6))
    assert all(len(world.told[number]) == 10 for number in world.finished if number % 2)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_in_whatever_order(seed: int, ahead: bool) -> None:
    rng = random.Random(seed)
    world = World(ahead=ahead, num_blocks=rng.choice([12, 20, 40]))
    wanted: dict[int, tuple[int, int]] = {}
    for number in range(12):
        first, count = rng.randrange(5), rng.randrange(1, 15)
        prompt = [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 12))]
        if rng.random() < 0.7:
            wanted[number] = (first, count)
            world.submit(number, prompt, 16, f"{first},{count}")
        else:
            world.submit(number, prompt, 16)
        for _ in range(rng.randrange(6)):
            if world.loop.has_work():
                world.step()
        if rng.random() < 0.2:
            gone = rng.randrange(number + 1)
            world.loop.abort(gone)
            if gone not in world.finished:
                wanted.pop(gone, None)
    world.run()
    assert not world.failed
    for number, (first, count) in wanted.items():
        assert (len(world.told[number]), climbs(world.told[number], first)) == (count, True)
    world.loop.close()


def test_the_driver_wakes_for_a_grammar_and_says_when_it_is_idle_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tickertape.core.driver._OVERDUE_S", 60.0)
    compiler = Ladders()
    loop, _, _ = paged_loop(Obedient(), LIMITS, Capabilities(), num_blocks=40, grammars=compiler)
    told: list[TokenDelta] = []
    stats: list[EngineStats] = []
    done = threading.Event()

    def sink(events: StepEvents, now: EngineStats) -> None:
        told.extend(delta for _, delta in events.deltas)
        stats.append(now)
        if told and not events:
            done.set()

    driver = Driver(loop, sink)
    thread = threading.Thread(target=driver.run)
    thread.start()
    try:
        driver.submit(request(1, "0,3 held"))
        time.sleep(0.05)
        assert not told
        assert stats[-1].num_waiting == 1
        compiler.let_go.set()
        assert done.wait(5)
        assert told[-1].finish is not None
        assert (stats[-1].num_waiting, stats[-1].num_running, stats[-1].num_used_blocks) == (0, 0, 0)
    finally:
        driver.stop()
        thread.join(5)
        loop.close()


def request(number: int, grammar: str) -> Request:
    return Request(
        id=number,
        prompt=pack_tokens([1]),
        num_prompt_tokens=1,
        sampling=SamplingParams(max_tokens=9, seed=0),
        grammar=Grammar("regex", grammar),
    )


def test_a_closed_loop_waits_for_no_compilation() -> None:
    compiler = Ladders()
    loop, _, _ = paged_loop(Obedient(), LIMITS, Capabilities(), num_blocks=40, grammars=compiler)
    assert isinstance(loop, EngineLoop)
    loop.submit(request(1, "0,3 held"))
    started = time.monotonic()
    loop.close()
    assert time.monotonic() - started < 1
    compiler.let_go.set()
