"""One id for each line of logits that is sampled: edits, then argmax or a draw."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tickertape.core.bans import Bans
from tickertape.core.batch import Array, Masks, Opened
from tickertape.core.drawing import checked, draw, greedy
from tickertape.core.lines import Lines
from tickertape.core.mask_bits import MaskBits
from tickertape.core.penalties import Penalties
from tickertape.core.processing import Processing
from tickertape.core.slot_params import (
    BANNED,
    BIASED,
    EDITED,
    MIN_P,
    PENALISED,
    PROCESSED,
    RANDOM,
    RANKED,
    SEQUENCES,
    SlotParams,
)
from tickertape.core.token_bias import TokenBias

__all__ = ["Chooser", "chunks"]

_CPU_CHUNK: Final = 1 << 16
_ACCELERATOR_CHUNK: Final = 1 << 25


def chunks(lines: NDArray[np.int64], vocab_size: int, device: Any) -> Iterator[NDArray[np.int64]]:
    """The lines in portions that may be worked on at once: what stays in a CPU's cache, and elsewhere what bounds
    the workspace."""
    on_cpu = device is None or str(device).startswith("cpu")
    num_lines = max(1, (_CPU_CHUNK if on_cpu else _ACCELERATOR_CHUNK) // vocab_size)
    for start in range(0, len(lines), num_lines):
        yield lines[start : start + num_lines]


class Chooser:
    """Holds what the slots' sequences want of their logits. Lines that are neither edited nor random are an argmax of
    the logits as they are, masked or not; the others are worked on in float64."""

    def __init__(self, xp: Any, num_slots: int, vocab_size: int, params: SlotParams, device: Any) -> None:
        self._xp = xp
        self._device = device
        self._vocab_size = vocab_size
        self._params = params
        self._mask_bits = MaskBits(xp, vocab_size, device)
        self._bias = TokenBias(xp, num_slots, vocab_size, device)
        self._penalties = Penalties(xp, num_slots, vocab_size, device)
        self._bans = Bans(xp, vocab_size, device)
        self._processing = Processing()

    def open(self, opened: Opened) -> None:
        """The slot's params are open and its last tenant is closed."""
        uses = int(self._params.uses[opened.slot])
        if uses & BIASED:
            self._bias.open(opened.slot, opened.sampling)
        if uses & PENALISED:
            self._penalties.open(opened)
        if uses & BANNED:
            self._bans.open(opened)
        if uses & PROCESSED:
            self._processing.open(opened)

    def close(self, slot: int) -> None:
        self._bias.close(slot)
        self._penalties.close(slot)
        self._bans.close(slot)
        self._processing.close(slot)

    def choose(self, lines: Lines, logits: Array, masks: Masks | None) -> NDArray[np.int64]:
        """Per line [N] the id chosen from it, or a fault below 0; meaningless where nothing is sampled. Each line is
        chosen as if no other line of its row were."""
        xp = self._xp
        sampled = lines.position >= self._params.samples_from[lines.slot]
        worked = (self._params.uses[lines.slot] & (RANDOM | EDITED)) != 0
        chosen = xp.zeros(len(lines.row), dtype=xp.int64, device=self._device)
        masked = np.zeros_like(worked) if masks is None else MaskBits.masked(masks)
        for chunk in chunks(np.flatnonzero(sampled & ~worked & ~masked), self._vocab_size, self._device):
            where = self._on_device(chunk)
            chosen[where] = checked(xp, *greedy(xp, xp.take(logits, where, axis=0)))
        for chunk in chunks(np.flatnonzero(sampled & ~worked & masked), self._vocab_size, self._device):
            assert masks is not None
            where = self._on_device(chunk)
            addend = self._mask_bits.addend(masks, chunk, logits.dtype)
            chosen[where] = checked(xp, *greedy(xp, xp.take(logits, where, axis=0) + addend))
        for chunk in chunks(np.flatnonzero(sampled & worked), self._vocab_size, self._device):
            where = self._on_device(chunk)
            x = xp.astype(xp.take(logits, where, axis=0), xp.float64)
            self._edit(x, lines, chunk, masks)
            chosen[where] = self._draw(x, lines.slot[chunk], lines.position[chunk])
        return np.array(chosen.tolist(), dtype=np.int64)

    def accept(self, slots: NDArray[np.int64], positions: NDArray[np.int64], ids: NDArray[np.int64]) -> None:
        """`ids` [n] were accepted from the logits at `positions`; slots that count or remember have one each."""
        uses = self._params.uses[slots]
        if (penalised := (uses & PENALISED) != 0).any():
            self._penalties.accept(slots[penalised], ids[penalised])
        for i in np.flatnonzero(uses & SEQUENCES).tolist():
            self._bans.accept(int(slots[i]), int(positions[i]), int(ids[i]))
        for i in np.flatnonzero(uses & PROCESSED).tolist():
            self._processing.accept(int(slots[i]), int(positions[i]), int(ids[i]))

    def failure(self, slot: int) -> str | None:
        """Why no id could be chosen for a slot, where it was a logits processor that failed."""
        return self._processing.failure(slot)

    def _on_device(self, host: NDArray[Any]) -> Array:
        return self._xp.asarray(host, device=self._device)

    def _edit(self, x: Array, lines: Lines, chunk: NDArray[np.int64], masks: Masks | None) -> None:
        """Applies processors, masks, biases, bans and penalties to x [len(chunk), V], in place."""
        slots, positions = lines.slot[chunk], lines.position[chunk]
        uses = self._params.uses[slots]
        if len(at := np.flatnonzero(uses & PROCESSED)):
            self._processing.apply(x, at, slots[at], positions[at])
        if masks is not None:
            x += self._mask_bits.addend(masks, chunk, x.dtype)
        if len(at := np.flatnonzero(uses & BIASED)):
            self._bias.apply(x, at, slots[at])
        if len(at := np.flatnonzero(uses & BANNED)):
            self._bans.apply(x, at, slots[at], positions[at])
        if len(at := np.flatnonzero(uses & PENALISED)):
            self._penalties.apply(x, at, slots[at])

    def _draw(self, x: Array, slots: NDArray[np.int64], positions: NDArray[np.int64]) -> Array:
        """Ids or faults [n] for edited logits x [n, V], which are used up."""
        xp = self._xp
        ids, best = greedy(xp, x)
        if len(at := np.flatnonzero(self._params.uses[slots] & RANDOM)):
            slots, where = slots[at], self._on_device(at)
            uses = self._params.uses[slots]
            uniforms = self._params.uniforms(slots, positions[at])
            columns = self._on_device(np.concatenate([self._params.filters[slots], uniforms[:, None]], axis=1))
            ranked = np.flatnonzero(uses & RANKED)
            ids[where] = draw(
                xp,
                x if len(at) == len(ids) else xp.take(x, where, axis=0),
                xp.take(best, where, axis=0)[:, None],
                temperature=columns[:, 0:1],
                log_min_p=columns[:, 1:2] if (uses & MIN_P).any() else None,
                top_k=columns[:, 2:3],
                top_p=columns[:, 3:4],
                ranked=self._on_device(ranked) if len(ranked) else None,
                uniform=columns[:, 4:5],
            )
        return checked(xp, ids, best)
