"""What a request adds to the logits at every position: logit_bias, allowed_tokens, single bad tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tickertape.core.batch import Array
from tickertape.core.dense_rows import DenseRows
from tickertape.core.request import SamplingParams

__all__ = ["TokenBias"]


class TokenBias:
    """One float32 row [V] per slot that has any of these: the bias, and -inf where an id must not be sampled.

    Ids outside the vocabulary have no effect. Adding -inf, rather than writing it, keeps a NaN visible.
    """

    def __init__(self, xp: Any, num_slots: int, vocab_size: int, device: Any) -> None:
        self._xp = xp
        self._device = device
        self._vocab_size = vocab_size
        self._bias = DenseRows(xp, num_slots, vocab_size, xp.float32, device)

    @staticmethod
    def wanted(sampling: SamplingParams) -> bool:
        return (
            bool(sampling.logit_bias)
            or sampling.allowed_tokens is not None
            or any(len(sequence) == 1 for sequence in sampling.bad_tokens)
        )

    def open(self, slot: int, sampling: SamplingParams) -> None:
        bias = np.zeros(self._vocab_size, dtype=np.float32)
        for token, value in sampling.logit_bias:
            if token < self._vocab_size:
                bias[token] += value
        if sampling.allowed_tokens is not None:
            banned = np.ones(self._vocab_size, dtype=bool)
            banned[[token for token in sampling.allowed_tokens if token < self._vocab_size]] = False
            bias[banned] = -np.inf
        for sequence in sampling.bad_tokens:
            if len(sequence) == 1 and sequence[0] < self._vocab_size:
                bias[sequence[0]] = -np.inf
        self._bias.put(slot, bias)

    def close(self, slot: int) -> None:
        self._bias.free(slot)

    def apply(self, x: Array, lines: NDArray[np.int64], slots: NDArray[np.int64]) -> None:
        """Adds the slots' rows to the given lines of x [n, V], in place."""
        where = self._xp.asarray(lines, device=self._device)
        x[where] += self._xp.take(self._bias.matrix, self._bias.index(slots), axis=0)
