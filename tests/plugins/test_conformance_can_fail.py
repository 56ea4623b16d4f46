"""Every rule of the kit can fail: for each, a runner that breaks it alone is caught by the test of that rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace as changed

from tickertape.plugins import (
    LAST,
    BackendOptions,
    Batch,
    Limits,
    Masks,
    MemoryPlan,
    ModelSpec,
    Progress,
    StepOutput,
    WeightSet,
)
from tickertape.plugins.backends.reference.runner import ReferenceRunner, make
from tickertape.plugins.manager import Plugins
from tickertape.testing.models import write_llama
from tickertape.testing.runner import RunnerConformance
from tickertape.testing.subject import Subject


class Twin:
    """A good runner with one fault: subclasses spoil one of the six calls."""

    def __init__(self, spec: ModelSpec) -> None:
        self.good: ReferenceRunner = make(spec, BackendOptions())

    def plan(self, limits: Limits) -> MemoryPlan:
        return self.good.plan(limits)

    def load(self, weights: WeightSet) -> Iterator[Progress]:
        return self.good.load(weights)

    def allocate(self, num_blocks: Sequence[int]) -> None:
        self.good.allocate(num_blocks)
        for cache in self.good._caches:  # what a fault reads of it must not depend on who had that memory before
            cache.fill(0.0)

    def forward(self, batch: Batch) -> None:
        self.good.forward(batch)

    def sample(self, masks: Masks | None) -> StepOutput:
        return self.good.sample(masks)

    def close(self) -> None:
        self.good.close()


class IgnoresTheWindow(Twin):
    """Attends to everything, though it plans a sliding group: reads blocks that were given back."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(changed(spec, config={**spec.config, "sliding_window": None}))
        self._window = spec.config["sliding_window"]

    def plan(self, limits: Limits) -> MemoryPlan:
        plan = self.good.plan(limits)
        return changed(plan, groups=tuple(changed(g, kind="sliding", window=self._window) for g in plan.groups))


class DecodesOnePositionLate(Twin):
    def forward(self, batch: Batch) -> None:
        rows = tuple(changed(row, start=row.start + (len(row.tokens) == 1 and row.start > 0)) for row in batch.rows)
        self.good.forward(changed(batch, rows=rows))


class ForgetsWhatCameBeforeAPiece(Twin):
    """Computes each piece of a prompt as if it stood at the beginning."""

    def forward(self, batch: Batch) -> None:
        rows = tuple(changed(row, start=row.start if len(row.tokens) == 1 else 0) for row in batch.rows)
        self.good.forward(changed(batch, rows=rows))


class WritesToTheNextBlock(Twin):
    def forward(self, batch: Batch) -> None:
        self.good.forward(batch)
        block = int(batch.tables[0][0, 0]) + 1
        for cache in self.good._caches:
            cache[block * 16 : block * 16 + 4] = 1.0


class TakesBlocksInOrder(Twin):
    """Reads the first block id of a slot and counts on from there."""

    def forward(self, batch: Batch) -> None:
        tables = tuple(np.where(t > 0, (t[:, :1] - 1 + np.arange(t.shape[1])) % 63 + 1, 0) for t in batch.tables)
        self.good.forward(changed(batch, tables=tables))


class SharesRandomness(Twin):
    """One generator for the batch: what a sequence gets depends on who else is there."""

    def forward(self, batch: Batch) -> None:
        drawn = len(batch.rows) + batch.step
        opened = tuple(changed(o, sampling=changed(o.sampling, seed=o.sampling.seed ^ drawn)) for o in batch.opened)
        self.good.forward(changed(batch, opened=opened))


class SamplesGreedily(Twin):
    def forward(self, batch: Batch) -> None:
        opened = tuple(changed(o, sampling=changed(o.sampling, temperature=0.0)) for o in batch.opened)
        self.good.forward(changed(batch, opened=opened))


class MixesRows(Twin):
    """Gives a row its neighbour's token when there are several."""

    def sample(self, masks: Masks | None) -> StepOutput:
        output = self.good.sample(masks)
        if all(len(ids) == 1 for ids in output.tokens):
            return changed(output, tokens=[*output.tokens[1:], output.tokens[0]])
        return output


class CountsReplayedTokensAsPrompt(Twin):
    """After a preemption the output so far is taken for prompt, so random positions and penalties start again."""

    def forward(self, batch: Batch) -> None:
        opened = tuple(changed(o, num_prompt_tokens=len(o.history) // 4) for o in batch.opened)
        self.good.forward(changed(batch, opened=opened))


class LosesReplayedOutput(Twin):
    """When a sequence comes back, computes zeros in place of what it had said before."""

    def forward(self, batch: Batch) -> None:
        ends = {opened.slot: opened.num_prompt_tokens for opened in batch.opened}
        rows = tuple(
            changed(
                row,
                tokens=(*row.tokens[: max(0, ends[row.slot] - row.start)], *[0] * len(row.tokens))[: len(row.tokens)],
            )
            if row.slot in ends
            else row
            for row in batch.rows
        )
        self.good.forward(changed(batch, rows=rows))


class SkipsCachedBlocks(Twin):
    """Does not look at blocks that it did not fill itself."""

    def forward(self, batch: Batch) -> None:
        for opened, row in ((o, r) for o in batch.opened for r in batch.rows if r.slot == o.slot):
            for table, cache in ((t, c) for t in batch.tables for c in self.good._caches):
                for block in table[opened.slot, : row.start // 16]:
                    cache[block * 16 : block * 16 + 16] = 0.0
        self.good.forward(batch)


class KeepsTheFirstTenant(Twin):
    """Never opens a slot again."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self._first: dict[int, tuple[int, ...]] = {}

    def forward(self, batch: Batch) -> None:
        rows = []
        for row in batch.rows:
            if len(row.tokens) > 1:
                self._first.setdefault(row.slot, tuple(row.tokens))
                first = self._first[row.slot][: len(row.tokens)]
                rows.append(changed(row, tokens=first + tuple(row.tokens[len(first) :])))
            else:
                rows.append(row)
        self.good.forward(changed(batch, rows=tuple(rows)))


class WritesToTheTable(Twin):
    def forward(self, batch: Batch) -> None:
        self.good.forward(batch)
        batch.tables[0][batch.rows[0].slot, -1] = 1


class GivesTokensTooEarly(Twin):
    """Samples in the middle of a prompt as well."""

    def forward(self, batch: Batch) -> None:
        self.good.forward(changed(batch, rows=tuple(changed(row, num_logits=1) for row in batch.rows)))


class ScoresTheWrongPosition(Twin):
    def sample(self, masks: Masks | None) -> StepOutput:
        output = self.good.sample(masks)
        if output.logprobs is None:
            return output
        return changed(output, logprobs=changed(output.logprobs, values=np.roll(output.logprobs.values, 1, axis=0)))


class ScoresAfterTemperature(Twin):
    def sample(self, masks: Masks | None) -> StepOutput:
        output = self.good.sample(masks)
        if output.logprobs is None:
            return output
        return changed(output, logprobs=changed(output.logprobs, values=output.logprobs.values * 0.9))


class PlansTooLittle(Twin):
    def plan(self, limits: Limits) -> MemoryPlan:
        plan = self.good.plan(limits)
        halved = tuple(changed(group, block_bytes=group.block_bytes // 2) for group in plan.groups)
        return changed(plan, groups=halved, private_bytes=0, workspace_bytes=0)

    def allocate(self, num_blocks: Sequence[int]) -> None:
        super().allocate([count * 4 for count in num_blocks])


class CopiesItsWeights(Twin):
    def load(self, weights: WeightSet) -> Iterator[Progress]:
        self.copies = [np.copy(weights.open(name)) for name in weights.names() for _ in range(4)]
        return self.good.load(weights)


class PlansAnewEachTime(Twin):
    asked = 0

    def plan(self, limits: Limits) -> MemoryPlan:
        self.asked += 1
        return changed(self.good.plan(limits), private_bytes=self.asked)


class ExaggeratesBlocks(Twin):
    """Promises memory that it never takes, so that half of the machine stays empty."""

    def plan(self, limits: Limits) -> MemoryPlan:
        plan = self.good.plan(limits)
        return changed(plan, groups=tuple(changed(group, block_bytes=group.block_bytes * 3) for group in plan.groups))


class KeepsWhatItLoads(Twin):
    """Copies out of the allocator's sight: as bytes of one object, held by a closure."""

    def load(self, weights: WeightSet) -> Iterator[Progress]:
        copies = [np.copy(weights.open(name)) for name in weights.names()]
        self.remember = lambda: copies
        return self.good.load(weights)


class SortsItsBatch(Twin):
    def forward(self, batch: Batch) -> None:
        self.good.forward(batch)
        for row in batch.rows:
            if isinstance(row.tokens, list):
                row.tokens.sort()


class IgnoresMasks(Twin):
    def sample(self, masks: Masks | None) -> StepOutput:
        return self.good.sample(None)


class FailsTheWholeBatch(Twin):
    """One row without an id, and nobody gets one."""

    def sample(self, masks: Masks | None) -> StepOutput:
        output = self.good.sample(masks)
        if output.errors:
            return changed(output, tokens=[() for _ in output.tokens], errors=dict.fromkeys(range(8), "a row failed"))
        return output


class HidesTheError(Twin):
    """Gives a row that has nothing to sample from some id."""

    def sample(self, masks: Masks | None) -> StepOutput:
        output = self.good.sample(masks)
        return changed(output, tokens=[ids or (0,) for ids in output.tokens], errors={})


class ForgetsProcessors(Twin):
    def forward(self, batch: Batch) -> None:
        self.good.forward(changed(batch, opened=tuple(changed(opened, processors=()) for opened in batch.opened)))


class Ahead(Twin):
    """Good: puts the last ids where LAST stands."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self._last: dict[int, int] = {}

    def forward(self, batch: Batch) -> None:
        rows = tuple(changed(row, tokens=[self.known(row.slot, t) for t in row.tokens]) for row in batch.rows)
        self._slots = [row.slot for row in rows]
        self.good.forward(changed(batch, rows=rows))

    def sample(self, masks: Masks | None) -> StepOutput:
        output = self.good.sample(masks)
        self._last |= {slot: ids[-1] for slot, ids in zip(self._slots, output.tokens, strict=True) if ids}
        return output

    def known(self, slot: int, token: int) -> int:
        return self._last[slot] if token == LAST else token


class TakesLastForAnId(Ahead):
    def known(self, slot: int, token: int) -> int:
        return max(token, 0)


class ClaimsADtype(Twin):
    def __init__(self, spec: ModelSpec, options: BackendOptions | None = None) -> None:
        super().__init__(spec)
        self._options = options

    def forward(self, batch: Batch) -> None:
        assert self._options is None or self._options.dtype != "float32", "float32 was never tried"
        self.good.forward(batch)


class ClosesOnce(Twin):
    closed = False

    def close(self) -> None:
        assert not self.closed, "closed twice"
        self.closed = True


BROKEN: list[tuple[type[Twin], Callable[..., None], tuple[Any, ...]]] = [
    (IgnoresTheWindow, RunnerConformance.test_alone_equals_the_plain_model, ()),
    (DecodesOnePositionLate, RunnerConformance.test_alone_equals_the_plain_model, ()),
    (GivesTokensTooEarly, RunnerConformance.test_a_prompt_in_pieces_equals_the_plain_model, (7,)),
    (ForgetsWhatCameBeforeAPiece, RunnerConformance.test_a_prompt_in_pieces_equals_the_plain_model, (16,)),
    (MixesRows, RunnerConformance.test_a_batch_of_mixed_lengths_equals_the_plain_model, ()),
    (TakesBlocksInOrder, RunnerConformance.test_which_blocks_a_sequence_has_makes_no_difference, ()),
    (WritesToTheNextBlock, RunnerConformance.test_blocks_of_others_stay_as_they_are, ()),
    (WritesToTheTable, RunnerConformance.test_alone_equals_the_plain_model, ()),
    (KeepsTheFirstTenant, RunnerConformance.test_a_slot_and_its_blocks_serve_the_next_sequence, ()),
    (ScoresAfterTemperature, RunnerConformance.test_log_probabilities_equal_the_plain_model, ()),
    (SkipsCachedBlocks, RunnerConformance.test_a_cached_prefix_makes_no_difference, (33,)),
    (ScoresTheWrongPosition, RunnerConformance.test_prompt_scores_equal_the_plain_model, ()),
    (LosesReplayedOutput, RunnerConformance.test_preemption_makes_no_difference, ()),
    (SharesRandomness, RunnerConformance.test_a_seed_gives_the_same_text_in_any_company, ()),
    (SamplesGreedily, RunnerConformance.test_a_seed_gives_the_same_text_in_any_company, ()),
    (CountsReplayedTokensAsPrompt, RunnerConformance.test_a_seed_gives_the_same_text_in_any_company, ()),
    (PlansTooLittle, RunnerConformance.test_takes_no_more_than_it_promised, ()),
    (CopiesItsWeights, RunnerConformance.test_takes_no_more_than_it_promised, ()),
    (SortsItsBatch, RunnerConformance.test_a_batch_comes_back_as_it_was, ()),
    (WritesToTheTable, RunnerConformance.test_a_batch_comes_back_as_it_was, ()),
    (IgnoresMasks, RunnerConformance.test_masks_are_obeyed, ()),
    (FailsTheWholeBatch, RunnerConformance.test_a_row_that_fails_fails_alone, ()),
    (HidesTheError, RunnerConformance.test_a_row_that_fails_fails_alone, ()),
    (ForgetsProcessors, RunnerConformance.test_logits_processors_are_applied, ()),
    (TakesLastForAnId, RunnerConformance.test_steps_ahead_make_no_difference, ()),
    (KeepsWhatItLoads, RunnerConformance.test_holds_the_arrays_it_promised, ()),
    (PlansTooLittle, RunnerConformance.test_holds_the_arrays_it_promised, ()),
    (ExaggeratesBlocks, RunnerConformance.test_holds_the_arrays_it_promised, ()),
    (ClaimsADtype, RunnerConformance.test_everything_it_declares_computes, ()),
    (PlansAnewEachTime, RunnerConformance.test_a_plan_is_the_same_when_asked_again, ()),
    (ClosesOnce, RunnerConformance.test_close_may_come_twice_and_at_any_time, ()),
]


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelSpec, Subject]:
    return _subject(write_llama(tmp_path_factory.mktemp("full")))


@pytest.fixture(scope="module")
def sliding(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelSpec, Subject]:
    config: dict[str, Any] = {"architectures": ["MistralForCausalLM"], "sliding_window": 11}
    return _subject(write_llama(tmp_path_factory.mktemp("sliding"), **config))


def _subject(spec: ModelSpec) -> tuple[ModelSpec, Subject]:
    return spec, Subject.of(Plugins.load().backend("reference"), spec)


@pytest.mark.parametrize(
    ("twin", "rule", "arguments"), BROKEN, ids=[f"{rule.__name__}-{twin.__name__}" for twin, rule, _ in BROKEN]
)
def test_a_broken_runner_is_caught(
    twin: type[Twin],
    rule: Callable[..., None],
    arguments: tuple[Any, ...],
    full: tuple[ModelSpec, Subject],
    sliding: tuple[ModelSpec, Subject],
) -> None:
    spec, subject = sliding if twin is IgnoresTheWindow else full
    if twin is TakesLastForAnId:
        subject = replace(subject, make=lambda: Ahead(spec), capabilities=changed(subject.capabilities, ahead=True))
    rule(RunnerConformance(), subject, *arguments)  # the good runner passes

    def make_with(options: BackendOptions) -> Twin:
        return ClaimsADtype(spec, options) if twin is ClaimsADtype else twin(spec)

    with pytest.raises(AssertionError):
        rule(RunnerConformance(), replace(subject, make=lambda: twin(spec), make_with=make_with), *arguments)


def test_every_rule_has_a_runner_that_breaks_it() -> None:
    rules = {name for name in vars(RunnerConformance) if name.startswith("test_")}
    assert {rule.__name__ for _, rule, _ in BROKEN} == rules
