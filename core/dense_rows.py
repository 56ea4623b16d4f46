"""Rows as wide as the vocabulary, for the few slots that need one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tickertape.core.batch import Array

__all__ = ["DenseRows"]


class DenseRows:
    """A device matrix [capacity, width] that holds a row for each slot that asked for one.

    Nothing is allocated before the first `put`; the capacity doubles up to `num_slots` and does not shrink; a freed
    row is written over in full by its next tenant. `matrix` is replaced when it grows: do not keep it.
    """

    def __init__(self, xp: Any, num_slots: int, width: int, dtype: Any, device: Any) -> None:
        self._xp = xp
        self._device = device
        self._num_slots = num_slots
        self._row_of: dict[int, int] = {}
        self._free: list[int] = []
        self.matrix: Array = xp.zeros((0, width), dtype=dtype, device=device)

    def __contains__(self, slot: int) -> bool:
        return slot in self._row_of

    def put(self, slot: int, values: NDArray[Any]) -> None:
        """Gives `slot` a row with these values [width]."""
        row = self._row_of.get(slot)
        if row is None:
            if not self._free:
                self._grow()
            row = self._row_of[slot] = self._free.pop()
        self.matrix[row, :] = self._xp.asarray(values, device=self._device)

    def free(self, slot: int) -> None:
        """Takes the row back; no error when the slot has none."""
        row = self._row_of.pop(slot, None)
        if row is not None:
            self._free.append(row)

    def index(self, slots: NDArray[np.int64]) -> Array:
        """Where the rows of these slots are in `matrix`: int64 [n] on the device. KeyError when one has none."""
        rows = np.array([self._row_of[slot] for slot in slots.tolist()], dtype=np.int64)
        return self._xp.asarray(rows, device=self._device)

    def _grow(self) -> None:
        capacity, width = self.matrix.shape
        grown = min(max(2 * capacity, 4), self._num_slots)
        matrix = self._xp.zeros((grown, width), dtype=self.matrix.dtype, device=self._device)
        matrix[:capacity, :] = self.matrix
        self.matrix = matrix
        self._free.extend(range(grown - 1, capacity - 1, -1))
