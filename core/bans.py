"""Ids that are banned at some positions only: the ends of bad sequences, and stop tokens before min_tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tickertape.core.batch import Array, Opened
from tickertape.core.request import SamplingParams, unpack_tokens

__all__ = ["Bans"]


class _Rules(Struct):
    """`sequences` are (the ids before, the id banned after them); `history` is kept only when there are any."""

    num_prompt_tokens: int
    min_tokens: int
    stop_tokens: tuple[int, ...]
    sequences: list[tuple[list[int], int]]
    history: list[int]

    def banned(self, position: int) -> list[int]:
        """What must not follow the token at `position`."""
        num_known = position + 1
        found = [
            last
            for before, last in self.sequences
            if self.history[max(0, num_known - len(before)) : num_known] == before
        ]
        if num_known - self.num_prompt_tokens < self.min_tokens:
            found.extend(self.stop_tokens)
        return found


class Bans:
    """Kept on the host, slot by slot: these are rare, short, and depend on the text so far."""

    def __init__(self, xp: Any, vocab_size: int, device: Any) -> None:
        self._xp = xp
        self._device = device
        self._vocab_size = vocab_size
        self._rules: dict[int, _Rules] = {}

    @staticmethod
    def has_sequences(sampling: SamplingParams) -> bool:
        return any(len(sequence) > 1 for sequence in sampling.bad_tokens)

    @classmethod
    def wanted(cls, sampling: SamplingParams) -> bool:
        return cls.has_sequences(sampling) or bool(sampling.min_tokens and sampling.stop_tokens)

    def open(self, opened: Opened) -> None:
        sampling = opened.sampling
        sequences = [
            (list(sequence[:-1]), sequence[-1])
            for sequence in sampling.bad_tokens
            if len(sequence) > 1 and sequence[-1] < self._vocab_size
        ]
        self._rules[opened.slot] = _Rules(
            num_prompt_tokens=opened.num_prompt_tokens,
            min_tokens=sampling.min_tokens,
            stop_tokens=tuple(token for token in sampling.stop_tokens if token < self._vocab_size),
            sequences=sequences,
            history=unpack_tokens(opened.history) if sequences else [],
        )

    def close(self, slot: int) -> None:
        self._rules.pop(slot, None)

    def apply(self, x: Array, lines: NDArray[np.int64], slots: NDArray[np.int64], positions: NDArray[np.int64]) -> None:
        """Adds -inf to the banned ids of the given lines of x [n, V], in place; `positions` are those of the logits."""
        pairs = [
            (line, token)
            for line, slot, position in zip(lines.tolist(), slots.tolist(), positions.tolist(), strict=True)
            for token in sorted(set(self._rules[slot].banned(position)))
        ]
        if pairs:
            where, banned = self._xp.asarray(np.array(pairs, dtype=np.int64).T.copy(), device=self._device)
            x[where, banned] += -np.inf

    def accept(self, slot: int, position: int, token: int) -> None:
        """`token` was sampled from the logits at `position`."""
        rules = self._rules[slot]
        if rules.sequences:
            rules.history[position + 1 :] = [token]
