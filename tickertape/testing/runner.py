"""RunnerConformance: what every ModelRunner must do, written once.

    class TestMine(RunnerConformance):
        @pytest.fixture(scope="class")
        @classmethod
        def subject(cls, tmp_path_factory):
            return Subject.of(MY_BACKEND, write_llama(tmp_path_factory.mktemp("model")))

Greedy text is compared with the plain model token for token; sampled text with itself, computed otherwise.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
from msgspec.structs import replace

from tickertape.core.engine import paged_loop
from tickertape.core.loop import EngineLoop
from tickertape.plugins import Limits, SamplingParams
from tickertape.testing.checks import check_idle
from tickertape.testing.serving import Outcome, ask, serve
from tickertape.testing.stepper import Seat, Stepper
from tickertape.testing.subject import Subject

__all__ = ["RunnerConformance"]

BLOCK = 16
LIMITS = Limits(max_model_len=256, max_num_seqs=8, max_batch_tokens=256, block_tokens=BLOCK)
POOL = 64  # blocks per group where the test does not need them scarce
LENGTHS = (1, 5, 16, 17, 40, 70)
EDGES = (15, 16, 17, 31, 32, 33)
NUM_OUTPUT = 20


class RunnerConformance:
    """Override `subject`. Every test makes a runner of its own and closes it."""

    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> Subject:
        raise pytest.UsageError("a subclass of RunnerConformance overrides the fixture `subject`")

    # -- batches made by hand --------------------------------------------------------------------------------------

    def test_alone_equals_the_plain_model(self, subject: Subject) -> None:
        for length in (1, 40):
            with _stepper(subject) as stepper:
                seat = stepper.sit(0, _prompt(subject, length))
                stepper.finish([seat], NUM_OUTPUT)
                _check(subject, seat)

    def test_a_batch_of_mixed_lengths_equals_the_plain_model(self, subject: Subject) -> None:
        """Sequences join while others are under way, so a step holds prompts, pieces and single tokens."""
        with _stepper(subject) as stepper:
            seats: list[Seat] = []
            for slot, length in enumerate(LENGTHS):
                seats.append(stepper.sit(slot, _prompt(subject, length)))
                stepper.step([(seat, 24) for seat in reversed(seats)])
            stepper.finish(seats, NUM_OUTPUT)
            for seat in seats:
                _check(subject, seat)

    @pytest.mark.parametrize("piece", [1, 2, 3, 5, 7, 16, 33])
    def test_a_prompt_in_pieces_equals_the_plain_model(self, subject: Subject, piece: int) -> None:
        if not subject.capabilities.chunked:
            pytest.skip("the backend takes whole prompts")
        with _stepper(subject) as stepper:
            seats = [stepper.sit(slot, _prompt(subject, length)) for slot, length in enumerate((40, 70))]
            stepper.finish(seats, NUM_OUTPUT, piece)
            for seat in seats:
                _check(subject, seat)

    def test_which_blocks_a_sequence_has_makes_no_difference(self, subject: Subject) -> None:
        prompts = [_prompt(subject, length) for length in LENGTHS]
        for seed in range(3):
            order = (1 + np.random.default_rng(seed).permutation(POOL - 1)).tolist()
            with _stepper(subject, order) as stepper:
                seats = [stepper.sit(slot, prompt) for slot, prompt in enumerate(prompts)]
                stepper.finish(seats, NUM_OUTPUT)
                for seat in seats:
                    _check(subject, seat)

    def test_blocks_of_others_stay_as_they_are(self, subject: Subject) -> None:
        """Canaries hold the blocks around those of the sequence under test; afterwards they go on as if alone."""
        order = (1 + np.random.default_rng(0).permutation(POOL - 1)).tolist()
        with _stepper(subject, order) as stepper:
            canaries = [stepper.sit(slot, _prompt(subject, 100 + slot)) for slot in range(1, 8)]
            for canary in canaries:
                stepper.step([(canary, 1 << 20)])
            guest = stepper.sit(0, _prompt(subject, 70))
            stepper.finish([guest], NUM_OUTPUT)
            _check(subject, guest)
            stepper.finish(canaries, NUM_OUTPUT // 2)
            for canary in canaries:
                _check(subject, canary)

    def test_a_slot_and_its_blocks_serve_the_next_sequence(self, subject: Subject) -> None:
        with _stepper(subject) as stepper:
            for length in (70, 17, 40):
                seat = stepper.sit(3, _prompt(subject, length))
                stepper.finish([seat], NUM_OUTPUT)
                _check(subject, seat)
                stepper.leave(seat)

    def test_log_probabilities_equal_the_plain_model(self, subject: Subject) -> None:
        if not subject.capabilities.logprobs:
            pytest.skip("the backend gives no log probabilities")
        prompt = _prompt(subject, 40)
        with _loop(subject) as loop:
            [outcome] = serve(loop, [ask(1, prompt, _greedy(logprobs=3))])
            check_idle(loop.stats())
        expected = subject.log_softmax([*prompt, *outcome.tokens])[len(prompt) - 1 : -1]
        assert len(outcome.logprobs) == len(outcome.tokens) == NUM_OUTPUT
        for token, found, line in zip(outcome.tokens, outcome.logprobs, expected, strict=True):
            assert found.ids[0] == token
            assert len(found.ids) == 4
            assert found.rank == 1 + int((line > line[token]).sum())
            np.testing.assert_allclose(found.values, line[list(found.ids)], atol=subject.tolerance, rtol=0)
            np.testing.assert_allclose(found.values[1:], np.sort(line)[:-4:-1], atol=subject.tolerance, rtol=0)

    # -- the scheduler's batches -----------------------------------------------------------------------------------

    @pytest.mark.parametrize("length", EDGES)
    def test_a_cached_prefix_makes_no_difference(self, subject: Subject, length: int) -> None:
        if not subject.capabilities.prefix_cache:
            pytest.skip("the backend does not share KV memory")
        prompt = _prompt(subject, length)
        longer = prompt + _prompt(subject, 21)
        with _loop(subject) as loop:
            for request_id, again in enumerate((prompt, prompt, longer, prompt)):
                [outcome] = serve(loop, [ask(request_id, again, _greedy())])
                _check_outcome(subject, again, outcome)
                expected = 0 if request_id == 0 else (length if again is longer else length - 1) // BLOCK * BLOCK
                assert outcome.num_cached_tokens == expected
                check_idle(loop.stats())

    def test_prompt_scores_equal_the_plain_model(self, subject: Subject) -> None:
        if not subject.capabilities.prompt_logprobs:
            pytest.skip("the backend does not score prompts")
        prompts = [_prompt(subject, length) for length in (1, 2, 33, 70)]
        for limits in (LIMITS, _limits(max_batch_tokens=29)):
            with _loop(subject, limits) as loop:
                wanted = [_greedy(prompt_logprobs=2), _greedy(max_tokens=0, prompt_logprobs=0)]
                requests = [ask(i, prompt, wanted[i % 2]) for i, prompt in enumerate(prompts)]
                for i, outcome in enumerate(serve(loop, requests)):
                    _check_scores(subject, prompts[i], outcome)
                    if i % 2 == 0:
                        _check_outcome(subject, prompts[i], outcome)
                check_idle(loop.stats())

    def test_preemption_makes_no_difference(self, subject: Subject) -> None:
        prompts = [_prompt(subject, length) for length in (21, 22, 23, 24)]
        outcomes = _serve_scarcely(subject, prompts, [_greedy(max_tokens=40)] * 4)
        for prompt, outcome in zip(prompts, outcomes, strict=True):
            _check_outcome(subject, prompt, outcome, 40)

    def test_a_seed_gives_the_same_text_in_any_company(self, subject: Subject) -> None:
        """Alone, batched, and preempted. Without `resume` only the first two are promised."""
        prompts = [_prompt(subject, length) for length in (21, 22, 23, 24)]
        wanted = [
            SamplingParams(max_tokens=40, seed=7, temperature=1.0),
            SamplingParams(max_tokens=40, seed=7, temperature=0.8, top_k=20, choice=1),
            SamplingParams(max_tokens=40, seed=1 << 63, temperature=1.5, top_p=0.9),
            SamplingParams(max_tokens=40, seed=0, temperature=1.0, repetition_penalty=1.3, presence_penalty=0.5),
        ]
        requests = [ask(i, prompt, sampling) for i, (prompt, sampling) in enumerate(zip(prompts, wanted, strict=True))]
        alone: list[list[int]] = []
        for request in requests:
            with _loop(subject) as loop:
                alone.append(serve(loop, [request])[0].tokens)
        with _loop(subject) as loop:
            assert [outcome.tokens for outcome in serve(loop, requests)] == alone
            check_idle(loop.stats())
        if subject.capabilities.resume:
            assert [outcome.tokens for outcome in _serve_scarcely(subject, prompts, wanted)] == alone
        with _loop(subject) as loop:
            [greedy] = serve(loop, [ask(0, prompts[0], _greedy(max_tokens=40))])
        assert greedy.tokens != alone[0], "a temperature of 1 gave the greedy text"

    # -- memory and life cycle -------------------------------------------------------------------------------------

    def test_takes_no_more_than_it_promised(self, subject: Subject) -> None:
        """As far as Python's allocator sees: numpy's arrays, not a device's memory."""
        tracemalloc.start()
        try:
            runner = subject.make()
            plan = runner.plan(LIMITS)
            start, _ = tracemalloc.get_traced_memory()
            for _ in runner.load(subject.weights()):
                pass
            loaded, _ = tracemalloc.get_traced_memory()
            runner.allocate([POOL] * len(plan.groups))
            allocated, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        runner.close()
        slack = 1 << 20
        cache_bytes = sum(POOL * group.block_bytes for group in plan.groups)
        assert loaded - start <= plan.private_bytes + slack, "load took more than private_bytes"
        promised = cache_bytes + plan.private_bytes + plan.workspace_bytes
        assert allocated - loaded <= promised + slack, "allocate took more than the plan"

    def test_a_plan_is_the_same_when_asked_again(self, subject: Subject) -> None:
        runner = subject.make()
        assert runner.plan(LIMITS) == runner.plan(LIMITS)
        assert all(group.block_tokens == BLOCK for group in runner.plan(LIMITS).groups)
        runner.close()

    def test_close_may_come_twice_and_at_any_time(self, subject: Subject) -> None:
        fresh = subject.make()
        fresh.close()
        fresh.close()
        with _stepper(subject) as stepper:
            stepper.finish([stepper.sit(0, _prompt(subject, 5))], 2)
            stepper.runner.close()  # and once more when the stepper ends


# -- parts of the tests ----------------------------------------------------------------------------------------------


def _prompt(subject: Subject, length: int) -> list[int]:
    """Always the same ids for a length, and no two lengths alike."""
    return np.random.default_rng(length).integers(2, subject.vocab_size, length).tolist()  # type: ignore[no-any-return]


def _greedy(
    *, max_tokens: int = NUM_OUTPUT, logprobs: int | None = None, prompt_logprobs: int | None = None
) -> SamplingParams:
    return SamplingParams(
        max_tokens=max_tokens, seed=0, temperature=0.0, logprobs=logprobs, prompt_logprobs=prompt_logprobs
    )


def _limits(*, max_batch_tokens: int = LIMITS.max_batch_tokens, block_tokens: int = BLOCK) -> Limits:
    return replace(LIMITS, max_batch_tokens=max_batch_tokens, block_tokens=block_tokens)


@contextmanager
def _stepper(subject: Subject, order: Sequence[int] = tuple(range(POOL - 1, 0, -1))) -> Iterator[Stepper]:
    runner, plan = subject.loaded(LIMITS)
    runner.allocate([POOL] * len(plan.groups))
    subject.poison(runner)
    yield Stepper(runner, plan, LIMITS, [order] * len(plan.groups))
    runner.close()


@contextmanager
def _loop(subject: Subject, limits: Limits = LIMITS, num_blocks: int = POOL) -> Iterator[EngineLoop]:
    runner, _ = subject.loaded(limits)
    loop, _, _ = paged_loop(runner, limits, subject.capabilities, num_blocks=num_blocks)
    subject.poison(runner)
    yield loop
    loop.close()


def _serve_scarcely(
    subject: Subject, prompts: Sequence[Sequence[int]], wanted: Sequence[SamplingParams]
) -> list[Outcome]:
    """Serves with the largest pool that forces a preemption: how many blocks that is depends on the cache groups."""
    limits = _limits(block_tokens=4, max_batch_tokens=12)
    for num_blocks in range(40, 4, -3):
        with _loop(subject, limits, num_blocks) as loop:
            requests = [
                ask(i, prompt, sampling) for i, (prompt, sampling) in enumerate(zip(prompts, wanted, strict=True))
            ]
            outcomes = serve(loop, requests)
            check_idle(loop.stats())
            if loop.stats().num_preemptions:
                return outcomes
    raise AssertionError("no pool was small enough to force a preemption")


def _check(subject: Subject, seat: Seat) -> None:
    subject.check_greedy(seat.tokens[: seat.num_prompt_tokens], seat.output)


def _check_outcome(subject: Subject, prompt: Sequence[int], outcome: Outcome, num_tokens: int = NUM_OUTPUT) -> None:
    assert outcome.error is None, f"the request failed: {outcome.error}"
    assert len(outcome.tokens) == num_tokens
    subject.check_greedy(prompt, outcome.tokens)


def _check_scores(subject: Subject, prompt: Sequence[int], outcome: Outcome) -> None:
    assert outcome.error is None, f"the request failed: {outcome.error}"
    assert len(outcome.prompt_logprobs) == len(prompt) - 1
    expected = subject.log_softmax(prompt)
    for position, found in enumerate(outcome.prompt_logprobs):
        line = expected[position]
        assert found.ids[0] == prompt[position + 1]
        above, below = line[found.ids[0]] + subject.near_tie, line[found.ids[0]] - subject.near_tie
        assert 1 + int((line > above).sum()) <= found.rank <= 1 + int((line > below).sum())
        np.testing.assert_allclose(found.values, line[list(found.ids)], atol=subject.tolerance, rtol=0)
