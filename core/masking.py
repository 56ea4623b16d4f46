"""The masks of a step, filled on a thread of its own while the runner computes the step."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from tickertape.core.batch import Masks
from tickertape.core.errors import TickertapeError
from tickertape.core.grammar import Constraint
from tickertape.core.step import Step

__all__ = ["Masker"]

_Filled = tuple[Masks | None, Mapping[int, TickertapeError]]


class Masker:
    """One step at a time: `begin`, then `take`, on one thread. In between nobody else may touch the constraints of the
    step's sequences; dropping them does no harm."""

    def __init__(self, mask_words: int) -> None:
        self._mask_words = mask_words
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="masks")
        self._filling: Future[_Filled] | None = None

    def begin(self, step: Step) -> None:
        """Starts on the masks of a step: the constraints have accepted every id that comes before it. Only the last
        wanted logits of a row are sampled from; the lines of a prompt that is scored are left alone."""
        wanted: list[tuple[int, int, Constraint]] = []
        line = 0
        for seq, row, samples in zip(step.sequences, step.batch.rows, step.samples, strict=True):
            line += row.num_logits
            if seq.constraint is not None and samples and seq.status != "finished":
                wanted.append((line - 1, row.slot, seq.constraint))
        self._filling = self._thread.submit(self._fill, wanted, line) if wanted else None

    def take(self) -> _Filled:
        """The masks of the step begun last, None when no row of it is constrained; and by slot, why a row's constraint
        gave out. Such a row has nothing masked, and is to be failed."""
        filling, self._filling = self._filling, None
        return (None, {}) if filling is None else filling.result()

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _fill(self, wanted: list[tuple[int, int, Constraint]], num_lines: int) -> _Filled:
        bits: NDArray[np.int32] = np.full((num_lines, self._mask_words), -1, dtype=np.int32)
        faults: dict[int, TickertapeError] = {}
        for line, slot, constraint in wanted:
            try:
                constraint.fill(bits[line])
            except TickertapeError as error:
                faults[slot] = error
                bits[line] = -1
        return Masks(bits), faults
