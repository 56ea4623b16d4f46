"""Batches made by hand: drives a runner without the scheduler, with blocks and pieces of the test's own choosing."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np

from tickertape.plugins import (
    Batch,
    Limits,
    Masks,
    MemoryPlan,
    ModelRunner,
    Opened,
    Row,
    SamplingParams,
    StepOutput,
    pack_tokens,
)

__all__ = ["Seat", "Stepper"]

GREEDY = SamplingParams(max_tokens=1 << 20, seed=0, temperature=0.0)


@dataclass(eq=False)
class Seat:
    """A sequence in a slot. `tokens` are the prompt and what was sampled; KV of the first `num_computed` is there."""

    slot: int
    tokens: list[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    num_computed: int = 0
    opened: bool = False
    logprobs: list[float] = field(default_factory=list)  # of the sampled tokens, when asked for

    @property
    def output(self) -> list[int]:
        return self.tokens[self.num_prompt_tokens :]


class Stepper:
    """Owns an allocated runner's tables. `free` holds, per group, the block ids to hand out, the next one last.

    Every step checks what the port says of any step: the batch comes back as it was, and each row gives no more ids
    than it wanted logits, and none without an error to explain it.
    """

    def __init__(self, runner: ModelRunner, plan: MemoryPlan, limits: Limits, free: Sequence[Sequence[int]]) -> None:
        self.runner = runner
        self.free = [list(ids) for ids in free]
        self._groups = plan.groups
        self._limits = limits
        width = -(-limits.max_model_len // limits.block_tokens)
        self._tables = tuple(np.zeros((limits.max_num_seqs, width), np.int32) for _ in plan.groups)
        self._num_blocks = [[0] * limits.max_num_seqs for _ in plan.groups]
        self._seats: dict[int, Seat] = {}
        self._closed: list[int] = []
        self._step = 0

    def sit(self, slot: int, prompt: Sequence[int], sampling: SamplingParams = GREEDY) -> Seat:
        """Takes a sequence into a slot that is free."""
        assert slot not in self._seats
        seat = self._seats[slot] = Seat(slot, list(prompt), len(prompt), sampling)
        return seat

    def leave(self, seat: Seat) -> None:
        """Its blocks are free, its slot closes with the next step."""
        del self._seats[seat.slot]
        self._closed.append(seat.slot)
        for group, table in enumerate(self._tables):
            self.free[group] += [int(block) for block in table[seat.slot] if block]
            table[seat.slot] = 0
            self._num_blocks[group][seat.slot] = 0

    def step(self, pieces: Sequence[tuple[Seat, int]], masks: Masks | None = None) -> StepOutput:
        """Computes the next `count` tokens of each seat, at most those known, and takes in what was sampled."""
        rows, opened = [], []
        for seat, count in pieces:
            known = seat.tokens[seat.num_computed : seat.num_computed + count]
            end = seat.num_computed + len(known)
            self._page(seat, end)
            rows.append(Row(seat.slot, known, seat.num_computed, int(end == len(seat.tokens))))
            if not seat.opened:
                seat.opened = True
                history = pack_tokens(seat.tokens)
                opened.append(Opened(seat.slot, seat.sampling, history, seat.num_prompt_tokens))
        self._step += 1
        batch = Batch(self._step, tuple(rows), tuple(opened), tuple(self._closed), self._tables)
        self._closed = []
        before, asked = [table.copy() for table in self._tables], deepcopy((batch.rows, batch.opened, batch.closed))
        self.runner.forward(batch)
        output = self.runner.sample(masks)
        assert (batch.rows, batch.opened, batch.closed) == asked, "the runner changed the batch"
        for table, copy in zip(self._tables, before, strict=True):
            np.testing.assert_array_equal(table, copy, "the runner wrote to a block table")
        self._take(pieces, rows, output)
        return output

    def finish(self, seats: Sequence[Seat], num_tokens: int, piece: int = 1 << 20) -> None:
        """Steps all seats together, prompts in pieces of `piece`, until each has `num_tokens` of output."""
        while hungry := [seat for seat in seats if len(seat.output) < num_tokens]:
            self.step([(seat, piece) for seat in hungry])

    def _page(self, seat: Seat, end: int) -> None:
        size = self._limits.block_tokens
        for group, table, counts, free in zip(self._groups, self._tables, self._num_blocks, self.free, strict=True):
            if group.window is not None:
                gone = table[seat.slot, : max(0, seat.num_computed - group.window + 1) // size]
                free += [int(block) for block in gone if block]
                gone[:] = 0
            for index in range(counts[seat.slot], -(-end // size)):
                table[seat.slot, index] = free.pop()
                counts[seat.slot] = index + 1

    def _take(self, pieces: Sequence[tuple[Seat, int]], rows: Sequence[Row], output: StepOutput) -> None:
        assert not output.errors, f"rows failed: {output.errors}"
        assert len(output.tokens) == len(rows), f"{len(output.tokens)} answers for {len(rows)} rows"
        counts = output.logprobs.counts if output.logprobs is not None else [0] * len(rows)
        line = 0
        for (seat, _), row, ids, count in zip(pieces, rows, output.tokens, counts, strict=True):
            assert len(ids) == row.num_logits, f"{len(ids)} ids for a row that wanted {row.num_logits}"
            seat.num_computed = row.start + len(row.tokens)
            seat.tokens += [int(token) for token in ids]
            if output.logprobs is not None:
                seat.logprobs += [float(value) for value in output.logprobs.values[line : line + count, 0]]
            line += count
