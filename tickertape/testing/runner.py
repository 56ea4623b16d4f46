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
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from tickertape.plugins import (
    BackendOptions,
    InvalidRequest,
    LogitsContext,
    LogitsProcessorCall,
    LogitsProcessorSpec,
    Masks,
    RowError,
    SamplingParams,
)
from tickertape.testing.checks import check_idle
from tickertape.testing.held import held_bytes
from tickertape.testing.serving import ask, serve
from tickertape.testing.stepper import Seat
from tickertape.testing.subject import Subject
from tickertape.testing.trials import (
    BLOCK,
    EDGES,
    LENGTHS,
    LIMITS,
    NUM_OUTPUT,
    POOL,
    check_outcome,
    check_scores,
    check_seat,
    greedy,
    limits_with,
    looping,
    prompt_of,
    serve_scarcely,
    stepping,
)

__all__ = ["RunnerConformance"]


class RunnerConformance:
    """Override `subject`. Every test makes a runner of its own and closes it."""

    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> Subject:
        raise pytest.UsageError("a subclass of RunnerConformance overrides the fixture `subject`")

    # -- batches made by hand --------------------------------------------------------------------------------------

    def test_alone_equals_the_plain_model(self, subject: Subject) -> None:
        for length in (1, 40):
            with stepping(subject) as stepper:
                seat = stepper.sit(0, prompt_of(subject, length))
                stepper.finish([seat], NUM_OUTPUT)
                check_seat(subject, seat)

    def test_a_batch_of_mixed_lengths_equals_the_plain_model(self, subject: Subject) -> None:
        """Sequences join while others are under way, so a step holds prompts, pieces and single tokens."""
        with stepping(subject) as stepper:
            seats: list[Seat] = []
            for slot, length in enumerate(LENGTHS):
                seats.append(stepper.sit(slot, prompt_of(subject, length)))
                stepper.step([(seat, 24) for seat in reversed(seats)])
            stepper.finish(seats, NUM_OUTPUT)
            for seat in seats:
                check_seat(subject, seat)

    @pytest.mark.parametrize("piece", [1, 2, 3, 5, 7, 16, 33])
    def test_a_prompt_in_pieces_equals_the_plain_model(self, subject: Subject, piece: int) -> None:
        if not subject.capabilities.chunked:
            pytest.skip("the backend takes whole prompts")
        with stepping(subject) as stepper:
            seats = [stepper.sit(slot, prompt_of(subject, length)) for slot, length in enumerate((40, 70))]
            stepper.finish(seats, NUM_OUTPUT, piece)
            for seat in seats:
                check_seat(subject, seat)

    def test_which_blocks_a_sequence_has_makes_no_difference(self, subject: Subject) -> None:
        prompts = [prompt_of(subject, length) for length in LENGTHS]
        for seed in range(3):
            order = (1 + np.random.default_rng(seed).permutation(POOL - 1)).tolist()
            with stepping(subject, order) as stepper:
                seats = [stepper.sit(slot, prompt) for slot, prompt in enumerate(prompts)]
                stepper.finish(seats, NUM_OUTPUT)
                for seat in seats:
                    check_seat(subject, seat)

    def test_blocks_of_others_stay_as_they_are(self, subject: Subject) -> None:
        """Canaries hold the blocks around those of the sequence under test; afterwards they go on as if alone."""
        order = (1 + np.random.default_rng(0).permutation(POOL - 1)).tolist()
        with stepping(subject, order) as stepper:
            canaries = [stepper.sit(slot, prompt_of(subject, 100 + slot)) for slot in range(1, 8)]
            for canary in canaries:
                stepper.step([(canary, 1 << 20)])
            guest = stepper.sit(0, prompt_of(subject, 70))
            stepper.finish([guest], NUM_OUTPUT)
            check_seat(subject, guest)
            stepper.finish(canaries, NUM_OUTPUT // 2)
            for canary in canaries:
                check_seat(subject, canary)

    def test_a_slot_and_its_blocks_serve_the_next_sequence(self, subject: Subject) -> None:
        with stepping(subject) as stepper:
            for length in (70, 17, 40):
                seat = stepper.sit(3, prompt_of(subject, length))
                stepper.finish([seat], NUM_OUTPUT)
                check_seat(subject, seat)
                stepper.leave(seat)

    def test_a_batch_comes_back_as_it_was(self, subject: Subject) -> None:
        """Rows, ids, histories and block tables belong to the scheduler. (Every step of the kit checks it.)"""
        with stepping(subject) as stepper:
            seats = [stepper.sit(slot, prompt_of(subject, length)) for slot, length in enumerate(LENGTHS)]
            stepper.finish(seats, 3, 24)
            stepper.leave(seats.pop())
            stepper.finish(seats, 5)

    def test_masks_are_obeyed(self, subject: Subject) -> None:
        if not subject.capabilities.masks:
            pytest.skip("the backend takes no grammars")
        with stepping(subject) as stepper:
            seats = [stepper.sit(slot, prompt_of(subject, length)) for slot, length in enumerate((5, 17, 40))]
            only = [7, subject.vocab_size - 1]
            allowed = np.ones((3, -(-subject.vocab_size // 32) * 32), dtype=bool)
            allowed[:2] = False
            allowed[[0, 1], only] = True
            bits = np.packbits(allowed, axis=1, bitorder="little").view("<i4")
            stepper.step([(seat, 1 << 20) for seat in seats], Masks(bits))
            assert [seat.output[0] for seat in seats[:2]] == only
            check_seat(subject, seats[2])

    def test_log_probabilities_equal_the_plain_model(self, subject: Subject) -> None:
        if not subject.capabilities.logprobs:
            pytest.skip("the backend gives no log probabilities")
        prompt = prompt_of(subject, 40)
        with looping(subject) as loop:
            [outcome] = serve(loop, [ask(1, prompt, greedy(logprobs=3))])
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
        prompt = prompt_of(subject, length)
        longer = prompt + prompt_of(subject, 21)
        with looping(subject) as loop:
            for request_id, again in enumerate((prompt, prompt, longer, prompt)):
                [outcome] = serve(loop, [ask(request_id, again, greedy())])
                check_outcome(subject, again, outcome)
                expected = 0 if request_id == 0 else (length if again is longer else length - 1) // BLOCK * BLOCK
                assert outcome.num_cached_tokens == expected
                check_idle(loop.stats())

    def test_a_row_that_fails_fails_alone(self, subject: Subject) -> None:
        """A request that allows no token at all has nothing to sample from."""
        prompts = [prompt_of(subject, length) for length in (21, 22, 23)]
        wanted = [greedy(), replace(greedy(), allowed_tokens=()), greedy()]
        with looping(subject) as loop:
            requests = [
                ask(i, prompt, sampling) for i, (prompt, sampling) in enumerate(zip(prompts, wanted, strict=True))
            ]
            first, failed, last = serve(loop, requests)
            # RowError from a sampler of its own, InvalidRequest where the host knows what the request ruled out.
            assert isinstance(failed.error, RowError | InvalidRequest), f"it gave {failed.tokens or failed.error!r}"
            check_outcome(subject, prompts[0], first)
            check_outcome(subject, prompts[2], last)
            check_idle(loop.stats())

    def test_logits_processors_are_applied(self, subject: Subject) -> None:
        if not subject.capabilities.logits_processors:
            pytest.skip("the backend applies no logits processors")
        prompts = [prompt_of(subject, length) for length in (21, 22)]
        banning = replace(greedy(), logits_processors=(LogitsProcessorCall("ban", "{}"),))
        with looping(subject, processors={"ban": LogitsProcessorSpec(name="ban", make=_BanLast)}) as loop:
            banned, plain = serve(loop, [ask(0, prompts[0], banning), ask(1, prompts[1], greedy())])
            check_outcome(subject, prompts[1], plain)
            check_idle(loop.stats())
        ids = [prompts[0][-1], *banned.tokens]
        assert len(banned.tokens) == NUM_OUTPUT
        lines = subject.plain([*prompts[0], *banned.tokens])[len(prompts[0]) - 1 : -1]
        for before, token, line in zip(ids, banned.tokens, lines, strict=False):
            line[before] = -np.inf
            assert line.max() - line[token] <= subject.near_tie, "an id was sampled as if nothing had edited its logits"

    def test_steps_ahead_make_no_difference(self, subject: Subject) -> None:
        """A batch made before the last one's ids are known holds LAST in their place."""
        if not subject.capabilities.ahead:
            pytest.skip("the backend takes no steps ahead")
        prompts = [prompt_of(subject, length) for length in (5, 16, 40)]
        with looping(subject) as loop:
            requests = [ask(i, prompt, greedy()) for i, prompt in enumerate(prompts)]
            for prompt, outcome in zip(prompts, serve(loop, requests), strict=True):
                check_outcome(subject, prompt, outcome)
            check_idle(loop.stats())

    def test_prompt_scores_equal_the_plain_model(self, subject: Subject) -> None:
        if not subject.capabilities.prompt_logprobs:
            pytest.skip("the backend does not score prompts")
        prompts = [prompt_of(subject, length) for length in (1, 2, 33, 70)]
        for limits in (LIMITS, limits_with(max_batch_tokens=29)):
            with looping(subject, limits) as loop:
                wanted = [greedy(prompt_logprobs=2), greedy(max_tokens=0, prompt_logprobs=0)]
                requests = [ask(i, prompt, wanted[i % 2]) for i, prompt in enumerate(prompts)]
                for i, outcome in enumerate(serve(loop, requests)):
                    check_scores(subject, prompts[i], outcome)
                    if i % 2 == 0:
                        check_outcome(subject, prompts[i], outcome)
                check_idle(loop.stats())

    def test_preemption_makes_no_difference(self, subject: Subject) -> None:
        prompts = [prompt_of(subject, length) for length in (21, 22, 23, 24)]
        outcomes = serve_scarcely(subject, prompts, [greedy(max_tokens=40)] * 4)
        for prompt, outcome in zip(prompts, outcomes, strict=True):
            check_outcome(subject, prompt, outcome, 40)

    def test_a_seed_gives_the_same_text_in_any_company(self, subject: Subject) -> None:
        """Alone, batched, and preempted. Without `resume` only the first two are promised."""
        prompts = [prompt_of(subject, length) for length in (21, 22, 23, 24)]
        wanted = [
            SamplingParams(max_tokens=40, seed=7, temperature=1.0),
            SamplingParams(max_tokens=40, seed=7, temperature=0.8, top_k=20, choice=1),
            SamplingParams(max_tokens=40, seed=1 << 63, temperature=1.5, top_p=0.9),
            SamplingParams(max_tokens=40, seed=0, temperature=1.0, repetition_penalty=1.3, presence_penalty=0.5),
        ]
        requests = [ask(i, prompt, sampling) for i, (prompt, sampling) in enumerate(zip(prompts, wanted, strict=True))]
        alone: list[list[int]] = []
        for request in requests:
            with looping(subject) as loop:
                alone.append(serve(loop, [request])[0].tokens)
        with looping(subject) as loop:
            assert [outcome.tokens for outcome in serve(loop, requests)] == alone
            check_idle(loop.stats())
        if subject.capabilities.resume:
            assert [outcome.tokens for outcome in serve_scarcely(subject, prompts, wanted)] == alone
        with looping(subject) as loop:
            [likeliest] = serve(loop, [ask(0, prompts[0], greedy(max_tokens=40))])
        assert likeliest.tokens != alone[0], "a temperature of 1 gave the greedy text"

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

    def test_holds_the_arrays_it_promised(self, subject: Subject) -> None:
        """Every array and tensor that can be reached from the runner, on any device. Twice the blocks are twice the
        bytes that the plan names for a block."""
        held: list[tuple[int, int]] = []
        for num_blocks in (POOL, 2 * POOL):
            runner = subject.make()
            plan = runner.plan(LIMITS)
            weights = subject.weights()
            for _ in runner.load(weights):
                pass
            loaded = held_bytes(runner, weights)
            runner.allocate([num_blocks] * len(plan.groups))
            held.append((loaded, held_bytes(runner, weights)))
            runner.close()
            weights.close()
        (loaded, allocated), (_, twice) = held
        slack = 1 << 16
        cache_bytes = sum(POOL * group.block_bytes for group in plan.groups)
        assert loaded <= plan.private_bytes + slack, "load holds more than private_bytes"
        promised = cache_bytes + plan.private_bytes + plan.workspace_bytes
        assert allocated <= promised + slack, "allocate holds more than the plan"
        grown = twice - allocated
        assert grown <= cache_bytes * 1.01 + slack, f"{POOL} blocks hold {grown} bytes, the plan says {cache_bytes}"
        assert not grown or grown >= cache_bytes / 2, f"{POOL} blocks hold {grown} bytes, the plan says {cache_bytes}"

    def test_everything_it_declares_computes(self, subject: Subject) -> None:
        """Each dtype, and each quantization, that the capabilities name, on the CPU."""
        make, able = subject.make_with, subject.capabilities
        if make is None or "cpu" not in able.devices:
            pytest.skip("the subject cannot be made with other options")
        wanted = [BackendOptions(dtype=dtype) for dtype in able.dtypes]
        wanted += [BackendOptions(quantization=quantization) for quantization in able.quantizations]
        for options in wanted:
            with stepping(subject.made_by(partial(make, options))) as stepper:
                seats = [stepper.sit(slot, prompt_of(subject, length)) for slot, length in enumerate((1, 17))]
                stepper.finish(seats, 3)
                ids = [token for seat in seats for token in seat.output]
                assert all(0 <= token < subject.vocab_size for token in ids), f"{options} gives {ids}"

    def test_a_plan_is_the_same_when_asked_again(self, subject: Subject) -> None:
        runner = subject.make()
        assert runner.plan(LIMITS) == runner.plan(LIMITS)
        assert all(group.block_tokens == BLOCK for group in runner.plan(LIMITS).groups)
        runner.close()

    def test_close_may_come_twice_and_at_any_time(self, subject: Subject) -> None:
        fresh = subject.make()
        fresh.close()
        fresh.close()
        with stepping(subject) as stepper:
            stepper.finish([stepper.sit(0, prompt_of(subject, 5))], 2)
            stepper.runner.close()  # and once more when the stepper ends


class _BanLast:
    """Bans the id that came last."""

    def __init__(self, arguments: Mapping[str, Any], context: LogitsContext) -> None:
        pass

    def apply(self, tokens: Sequence[int], logits: Any) -> None:
        logits[tokens[-1]] = -np.inf
