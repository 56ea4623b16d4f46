"""What the rules of the runner's kit are made of: prompts, runners at work, and comparisons with the plain model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np
from msgspec.structs import replace

from tickertape.core.engine import paged_loop
from tickertape.core.loop import EngineLoop
from tickertape.plugins import Limits, LogitsProcessorSpec, SamplingParams
from tickertape.testing.checks import check_idle
from tickertape.testing.serving import Outcome, ask, serve
from tickertape.testing.stepper import Seat, Stepper
from tickertape.testing.subject import Subject

__all__ = [
    "BLOCK",
    "EDGES",
    "LENGTHS",
    "LIMITS",
    "NUM_OUTPUT",
    "POOL",
    "check_outcome",
    "check_scores",
    "check_seat",
    "greedy",
    "limits_with",
    "looping",
    "prompt_of",
    "serve_scarcely",
    "stepping",
]

BLOCK: Final = 16
LIMITS: Final = Limits(max_model_len=256, max_num_seqs=8, max_batch_tokens=256, block_tokens=BLOCK)
POOL: Final = 64  # blocks per group where the test does not need them scarce
LENGTHS: Final = (1, 5, 16, 17, 40, 70)
EDGES: Final = (15, 16, 17, 31, 32, 33)
NUM_OUTPUT: Final = 20


def prompt_of(subject: Subject, length: int) -> list[int]:
    """Always the same ids for a length, and no two lengths alike."""
    return np.random.default_rng(length).integers(2, subject.vocab_size, length).tolist()  # type: ignore[no-any-return]


def greedy(
    *, max_tokens: int = NUM_OUTPUT, logprobs: int | None = None, prompt_logprobs: int | None = None
) -> SamplingParams:
    return SamplingParams(
        max_tokens=max_tokens, seed=0, temperature=0.0, logprobs=logprobs, prompt_logprobs=prompt_logprobs
    )


def limits_with(*, max_batch_tokens: int = LIMITS.max_batch_tokens, block_tokens: int = BLOCK) -> Limits:
    return replace(LIMITS, max_batch_tokens=max_batch_tokens, block_tokens=block_tokens)


@contextmanager
def stepping(subject: Subject, order: Sequence[int] = tuple(range(POOL - 1, 0, -1))) -> Iterator[Stepper]:
    runner, plan = subject.loaded(LIMITS)
    runner.allocate([POOL] * len(plan.groups))
    subject.poison(runner)
    yield Stepper(runner, plan, LIMITS, [order] * len(plan.groups))
    runner.close()


@contextmanager
def looping(
    subject: Subject,
    limits: Limits = LIMITS,
    num_blocks: int = POOL,
    processors: Mapping[str, LogitsProcessorSpec] | None = None,
) -> Iterator[EngineLoop]:
    runner, _ = subject.loaded(limits)
    loop, _, _ = paged_loop(runner, limits, subject.capabilities, num_blocks=num_blocks, processors=processors)
    subject.poison(runner)
    yield loop
    loop.close()


def serve_scarcely(
    subject: Subject, prompts: Sequence[Sequence[int]], wanted: Sequence[SamplingParams]
) -> list[Outcome]:
    """Serves with the largest pool that forces a preemption: how many blocks that is depends on the cache groups."""
    limits = limits_with(block_tokens=4, max_batch_tokens=12)
    for num_blocks in range(40, 4, -3):
        with looping(subject, limits, num_blocks) as loop:
            requests = [
                ask(i, prompt, sampling) for i, (prompt, sampling) in enumerate(zip(prompts, wanted, strict=True))
            ]
            outcomes = serve(loop, requests)
            check_idle(loop.stats())
            if loop.stats().num_preemptions:
                return outcomes
    raise AssertionError("no pool was small enough to force a preemption")


def check_seat(subject: Subject, seat: Seat) -> None:
    subject.check_greedy(seat.tokens[: seat.num_prompt_tokens], seat.output)


def check_outcome(subject: Subject, prompt: Sequence[int], outcome: Outcome, num_tokens: int = NUM_OUTPUT) -> None:
    assert outcome.error is None, f"the request failed: {outcome.error}"
    assert len(outcome.tokens) == num_tokens
    subject.check_greedy(prompt, outcome.tokens)


def check_scores(subject: Subject, prompt: Sequence[int], outcome: Outcome) -> None:
    assert outcome.error is None, f"the request failed: {outcome.error}"
    assert len(outcome.prompt_logprobs) == len(prompt) - 1
    expected = subject.log_softmax(prompt)
    for position, found in enumerate(outcome.prompt_logprobs):
        line = expected[position]
        assert found.ids[0] == prompt[position + 1]
        above, below = line[found.ids[0]] + subject.near_tie, line[found.ids[0]] - subject.near_tie
        assert 1 + int((line > above).sum()) <= found.rank <= 1 + int((line > below).sum())
        np.testing.assert_allclose(found.values, line[list(found.ids)], atol=subject.tolerance, rtol=0)
