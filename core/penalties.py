"""Repetition, frequency and presence penalties: how often a slot has met each id."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tickertape.core.batch import Array, Opened
from tickertape.core.dense_rows import DenseRows
from tickertape.core.request import SamplingParams

__all__ = ["Penalties"]

_IN_PROMPT: Final = 1 << 30
"""Added to the count of an id that stands in the prompt: non-zero means seen, the bits below count the output."""


class Penalties:
    """The counts of the slots that use a penalty, on the device, and the penalties' effect on their logits."""

    def __init__(self, xp: Any, num_slots: int, vocab_size: int, device: Any) -> None:
        self._xp = xp
        self._device = device
        self._vocab_size = vocab_size
        self._counts = DenseRows(xp, num_slots, vocab_size, xp.int32, device)
        self._strengths = np.zeros((num_slots, 3))  # repetition, frequency, presence

    @staticmethod
    def wanted(sampling: SamplingParams) -> bool:
        return sampling.repetition_penalty != 1.0 or bool(sampling.frequency_penalty or sampling.presence_penalty)

    def open(self, opened: Opened) -> None:
        """Counts the slot's history; what follows the prompt is output."""
        history = np.frombuffer(opened.history, dtype="<u4").astype(np.int64)
        prompt, output = history[: opened.num_prompt_tokens], history[opened.num_prompt_tokens :]
        counts = np.bincount(output[output < self._vocab_size], minlength=self._vocab_size).astype(np.int32)
        counts[prompt[prompt < self._vocab_size]] += _IN_PROMPT  # indexed: once, however often an id stands there
        self._counts.put(opened.slot, counts)
        sampling = opened.sampling
        self._strengths[opened.slot] = (
            sampling.repetition_penalty,
            sampling.frequency_penalty,
            sampling.presence_penalty,
        )

    def close(self, slot: int) -> None:
        self._counts.free(slot)

    def apply(self, x: Array, lines: NDArray[np.int64], slots: NDArray[np.int64]) -> None:
        """Changes the given lines of x [n, V] in place. Positive logits are divided by the repetition penalty,
        negative ones multiplied; then frequency and presence are subtracted."""
        xp = self._xp
        where = xp.asarray(lines, device=self._device)
        strengths = xp.asarray(self._strengths[slots], device=self._device)
        repetition, frequency, presence = (strengths[:, i : i + 1] for i in range(3))
        counts = xp.take(self._counts.matrix, self._counts.index(slots), axis=0)
        logits = xp.take(x, where, axis=0)
        repeated = xp.where(logits > 0, logits / repetition, logits * repetition)
        logits = xp.where(counts != 0, repeated, logits)
        output = xp.astype(counts & (_IN_PROMPT - 1), xp.float64)
        x[where] = logits - frequency * output - presence * xp.astype(output > 0, xp.float64)

    def accept(self, slots: NDArray[np.int64], ids: NDArray[np.int64]) -> None:
        """Counts one sampled id per slot; the slots are distinct."""
        rows = self._counts.index(slots)
        self._counts.matrix[rows, self._xp.asarray(ids, device=self._device)] += 1
