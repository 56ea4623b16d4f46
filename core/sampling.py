"""The sampler: a step's logits in, accepted ids and log probabilities out. One per runner.

Written over the array API plus indexed assignment, which numpy and torch share; the namespace is handed in. What is
per slot and small lives on the host as columns; what is as wide as the vocabulary lives on the device, and only for
the slots that use it. A row's result depends on its own logits, parameters and history alone, in any company.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tickertape.core.acceptance import FAULTS, accept
from tickertape.core.batch import Array, Masks, Opened, Row, StepOutput
from tickertape.core.choosing import Chooser
from tickertape.core.drawing import checked, greedy
from tickertape.core.lines import Lines
from tickertape.core.logprobs import score_step
from tickertape.core.slot_params import SlotParams

__all__ = ["Sampler"]


class Sampler:
    """Call from one thread, in step order: `close`, `open`, then `sample`.

    `last` is an int64 array [num_slots] on the device: the last id each slot has sampled, which is what LAST stands
    for. It is written before `sample` returns, and means nothing for a slot that has not sampled since it was opened
    or whose row just failed.
    """

    def __init__(self, xp: Any, num_slots: int, vocab_size: int, *, device: Any = None) -> None:
        self._xp = xp
        self._device = device
        self._vocab_size = vocab_size
        self._params = SlotParams(num_slots, vocab_size)
        self._chooser = Chooser(xp, num_slots, vocab_size, self._params, device)
        self.last: Array = xp.zeros(num_slots, dtype=xp.int64, device=device)

    def open(self, opened: Opened) -> None:
        """Takes a sequence into its slot; a tenant that is still there is closed first."""
        self.close(opened.slot)
        self._params.open(opened)
        self._chooser.open(opened)

    def close(self, slot: int) -> None:
        """Forgets the slot's sequence; no error when there is none."""
        self._params.close(slot)
        self._chooser.close(slot)

    def sample(self, rows: Sequence[Row], logits: Array, masks: Masks | None) -> StepOutput:
        """Chooses the next ids. `logits` [sum of num_logits, V] of any floating dtype, in row order; not changed.

        A row that wants several lines carries drafts at the end of its tokens: it accepts the ids that one step per
        token would have given, as far as the drafts foretold them, and one more (slots with penalties, bad sequences
        or logits processors accept one). With prompt_logprobs, positions whose next id is known are scored and not
        sampled; max_tokens 0 samples nothing. A row whose logits are not finite or all masked has an entry in `errors`
        and no ids. `logprobs` holds arrays of the namespace, on the device. Raises ValueError when shapes do not
        fit the rows.
        """
        num_logits = [row.num_logits for row in rows]
        self._check(logits, masks, sum(num_logits))
        slots = np.array([row.slot for row in rows], dtype=np.int64)
        if not rows:
            return StepOutput([], None, {})
        if masks is None and num_logits.count(1) == len(rows) and not self._params.uses[slots].any():
            return self._sample_plainly(slots, logits)

        lines = Lines.of(rows, slots)
        with np.errstate(invalid="ignore", over="ignore"):  # NaN and infinities are that row's error, not a warning
            chosen = self._chooser.choose(lines, logits, masks)
            accepted = accept(rows, lines, chosen, self._params)
            if len(at := accepted.lines):
                self._remember(lines.slot[at], lines.position[at], chosen[at])
            logprobs, errors = score_step(self._xp, lines, logits, accepted, self._params, device=self._device)
        tokens = [[] if row.slot in errors else ids for row, ids in zip(rows, accepted.tokens, strict=True)]
        failed = {slot: self._chooser.failure(slot) or message for slot, message in accepted.errors.items()}
        return StepOutput(tokens, logprobs, failed | errors)

    def _sample_plainly(self, slots: NDArray[np.int64], logits: Array) -> StepOutput:
        """The fast path: greedy, one line per row, nothing else."""
        ids, best = greedy(self._xp, logits)
        self.last[self._xp.asarray(slots, device=self._device)] = ids
        host = checked(self._xp, ids, best).tolist()
        if min(host) >= 0:
            return StepOutput([[token] for token in host], None, {})
        errors = {slot: FAULTS[token] for slot, token in zip(slots.tolist(), host, strict=True) if token < 0}
        return StepOutput([[token] if token >= 0 else [] for token in host], None, errors)

    def _remember(self, slots: NDArray[np.int64], positions: NDArray[np.int64], ids: NDArray[np.int64]) -> None:
        """Accepted ids [m] in line order, so that a slot's last comes last."""
        self._chooser.accept(slots, positions, ids)
        is_last = np.append(slots[1:] != slots[:-1], True)
        where, latest = (self._xp.asarray(host[is_last], device=self._device) for host in (slots, ids))
        self.last[where] = latest

    def _check(self, logits: Array, masks: Masks | None, num_lines: int) -> None:
        if (found := tuple(logits.shape)) != (expected := (num_lines, self._vocab_size)):
            raise ValueError(f"logits are {found}, the rows want {expected}")
        if masks is not None and (found := tuple(masks.bits.shape)) != (expected := (num_lines, -(-expected[1] // 32))):
            raise ValueError(f"masks are {found}, the rows want {expected}")
