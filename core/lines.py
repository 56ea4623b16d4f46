"""The wanted logits of a step, line by line."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tickertape.core.batch import Row

__all__ = ["Lines"]


class Lines(Struct, frozen=True):
    """One entry per line of the logits [N, V], rows in batch order: the index of its row, that row's slot, and the
    absolute position of the token that the logits come after. `first` [num_rows] is where each row's lines begin;
    `one_each`: every row has exactly one line, and there are rows."""

    row: NDArray[np.int64]
    slot: NDArray[np.int64]
    position: NDArray[np.int64]
    first: NDArray[np.int64]
    one_each: bool

    @classmethod
    def of(cls, rows: Sequence[Row], slots: NDArray[np.int64]) -> Lines:
        widths = np.array([row.num_logits for row in rows], dtype=np.int64)
        past = np.array([row.start + len(row.tokens) for row in rows], dtype=np.int64)
        ends = np.cumsum(widths)
        row = np.repeat(np.arange(len(rows)), widths)
        return cls(
            row=row,
            slot=slots[row],
            position=np.arange(len(row)) + (past - ends)[row],
            first=ends - widths,
            one_each=len(row) == len(rows) > 0 and bool((widths == 1).all()),
        )
