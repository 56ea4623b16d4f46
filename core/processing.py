"""The logits processors of the slots that have some, and the ids they look at."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tickertape.core.batch import Array, Opened
from tickertape.core.logits_processor import LogitsProcessor
from tickertape.core.request import unpack_tokens

__all__ = ["Processing"]

_log = logging.getLogger(__name__)


class _Chain(Struct):
    """One slot's processors, with their names, and all ids so far."""

    processors: tuple[tuple[str, LogitsProcessor], ...]
    tokens: list[int]


class Processing:
    """Kept on the host, slot by slot, like the bans: rare, and dependent on the text so far."""

    def __init__(self) -> None:
        self._chains: dict[int, _Chain] = {}
        self._failures: dict[int, str] = {}

    def open(self, opened: Opened) -> None:
        names = (call.name for call in opened.sampling.logits_processors)
        self._chains[opened.slot] = _Chain(
            tuple(zip(names, opened.processors, strict=True)), unpack_tokens(opened.history)
        )

    def close(self, slot: int) -> None:
        self._chains.pop(slot, None)
        self._failures.pop(slot, None)

    def apply(self, x: Array, lines: NDArray[np.int64], slots: NDArray[np.int64], positions: NDArray[np.int64]) -> None:
        """Lets the slots' processors edit their lines of x [n, V]. One that raises bans every id of its line."""
        for line, slot, position in zip(lines.tolist(), slots.tolist(), positions.tolist(), strict=True):
            chain = self._chains[slot]
            known = position + 1
            tokens: Sequence[int] = chain.tokens if len(chain.tokens) == known else chain.tokens[:known]
            for name, processor in chain.processors:
                try:
                    processor.apply(tokens, x[line])
                except Exception as error:
                    self._fail(slot, name, error)
                    x[line] = -np.inf
                    break

    def accept(self, slot: int, position: int, token: int) -> None:
        """`token` was sampled from the logits at `position`."""
        self._chains[slot].tokens[position + 1 :] = [token]

    def failure(self, slot: int) -> str | None:
        """Why a processor of the slot failed, if one did."""
        return self._failures.get(slot)

    def _fail(self, slot: int, name: str, error: Exception) -> None:
        self._failures[slot] = f"logits processor {name!r} failed: {type(error).__name__}"
        _log.warning("logits processor %r failed: %s: %s", name, type(error).__name__, error)
