"""The order in which a runner is called, one step at a time and one step ahead."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tickertape.core.backend import Capabilities
from tickertape.core.batch import LAST, Batch, Masks, StepOutput
from tickertape.core.engine import paged_loop
from tickertape.core.loop import EngineLoop
from tickertape.core.memory import Limits
from tickertape.core.request import Request, SamplingParams, pack_tokens
from tickertape.testing.oracle import OracleRunner

LIMITS = Limits(max_model_len=120, max_num_seqs=4, max_batch_tokens=24, block_tokens=4)


class Watched(OracleRunner):
    """Notes the order of calls, and what the batch was."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def forward(self, batch: Batch) -> None:
        self.calls.append(f"forward {batch.step}")
        super().forward(batch)

    def sample(self, masks: Masks | None) -> StepOutput:
        self.calls.append("sample")
        return super().sample(masks)


def request(number: int, prompt: Sequence[int], max_tokens: int, **sampling: object) -> Request:
    return Request(
        id=number,
        prompt=pack_tokens(tuple(prompt)),
        num_prompt_tokens=len(prompt),
        sampling=SamplingParams(max_tokens=max_tokens, seed=0, **sampling),  # type: ignore[arg-type]
    )


def run(loop: EngineLoop) -> dict[int, list[int]]:
    told: dict[int, list[int]] = {}
    while loop.has_work():
        events = loop.step()
        assert not events.failures
        for number, delta in events.deltas:
            told.setdefault(number, []).extend(delta.tokens)
    return told


def test_alone_a_step_is_forward_then_sample() -> None:
    runner = Watched()
    loop, _, _ = paged_loop(runner, LIMITS, Capabilities(), num_blocks=40)
    loop.submit(request(1, [1, 2], 3))
    assert run(loop) == {1: runner.expected([1, 2], 3)}
    assert runner.calls == ["forward 1", "sample", "forward 2", "sample", "forward 3", "sample"]
    assert all(LAST not in row.tokens for batch in runner.batches for row in batch.rows)


def test_ahead_the_next_step_is_launched_before_the_last_is_told() -> None:
    runner = Watched()
    loop, _, _ = paged_loop(runner, LIMITS, Capabilities(ahead=True), num_blocks=40)
    loop.submit(request(1, [1, 2], 3))
    told: list[tuple[int, ...]] = []
    while loop.has_work():
        launched = len(runner.batches)
        told.extend(delta.tokens for _, delta in loop.step().deltas)
        assert len(runner.batches) >= launched
        if len(told) == 1:
            assert len(runner.batches) == 2, "step 2 was not launched before step 1 was told"
    assert [token for tokens in told for token in tokens] == runner.expected([1, 2], 3)
    assert runner.batches[1].rows[0].tokens == (LAST,)
    # max_tokens is certain before it is seen, so nothing ran past it
    assert runner.calls == ["forward 1", "sample", "forward 2", "sample", "forward 3", "sample"]


def test_slots_are_told_once_and_reused() -> None:
    runner = Watched()
    loop, _, _ = paged_loop(runner, LIMITS, Capabilities(ahead=True), num_blocks=40)
    for number in range(9):
        loop.submit(request(number, [number], 1 + number % 3))
    run(loop)
    loop.submit(request(9, [9], 1))
    run(loop)
    opened = [opened.slot for batch in runner.batches for opened in batch.opened]
    closed = [slot for batch in runner.batches for slot in batch.closed]
    assert len(opened) == 10
    assert set(opened) <= set(range(LIMITS.max_num_seqs))
    assert len(closed) >= 9
    history = [o.history for batch in runner.batches for o in batch.opened]
    assert history == [pack_tokens([number]) for number in range(10)]


def test_what_a_runner_raises_beside_runner_errors_ends_the_engine() -> None:
    class Broken(OracleRunner):
        def forward(self, batch: Batch) -> None:
            raise ZeroDivisionError

    loop, _, _ = paged_loop(Broken(), LIMITS, Capabilities(), num_blocks=40)
    loop.submit(request(1, [1], 1))
    with pytest.raises(ZeroDivisionError):
        loop.step()


def test_a_runner_that_gives_no_token_where_one_is_due_fails_that_row() -> None:
    class Forgetful(OracleRunner):
        def sample(self, masks: Masks | None) -> StepOutput:
            output = super().sample(masks)
            return StepOutput([[], *output.tokens[1:]], None, {})

    loop, _, _ = paged_loop(Forgetful(), LIMITS, Capabilities(), num_blocks=40)
    loop.submit(request(1, [1], 2))
    loop.submit(request(2, [2], 1))
    events = loop.step()
    assert [number for number, _ in events.failures] == [1]
    assert [number for number, _ in events.deltas] == [2]


def test_step_times_are_reported() -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 0.5
        return now[0]

    loop, _, _ = paged_loop(OracleRunner(), LIMITS, Capabilities(), num_blocks=40, clock=clock)
    loop.submit(request(1, [1], 100))
    run(loop)
    assert loop.stats().step_p99_s == 0.5
