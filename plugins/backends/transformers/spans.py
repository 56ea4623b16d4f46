"""A step as attention sees it: which tokens belong together, where they stand, in which blocks lies what they see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tickertape.plugins import Row
from tickertape.plugins.backends.transformers.patterns import Pattern

__all__ = ["Spans", "places_of", "spans_of"]


class Spans(NamedTuple):
    """What a step asks of one cache group, shared by its attentions. A span is a run of a sequence's tokens.

    `query_start` int32 [R + 1] bounds the spans in the flattened tokens; `start` int32 [R] is the position of each
    span's first token; `tables` int32 [R, max_blocks] are the block ids of each span's sequence. A token at q sees
    every k <= q, and with a `window` (0: none) only k > q - window.
    """

    query_start: torch.Tensor
    start: torch.Tensor
    tables: torch.Tensor
    window: int


def places_of(
    slots: NDArray[np.int64], positions: NDArray[np.int64], table: NDArray[np.int32], block_tokens: int
) -> torch.Tensor:
    """Where each token of a step is kept, int64 [T]: block * block_tokens + offset."""
    blocks = table[slots, positions // block_tokens].astype(np.int64)
    return torch.from_numpy(blocks * block_tokens + positions % block_tokens)


def spans_of(rows: Sequence[Row], table: NDArray[np.int32], pattern: Pattern, block_tokens: int) -> Spans:
    """`table` is the group's own, by slot; it is copied from, never kept."""
    if pattern.kind == "chunked":
        pieces = [piece for row in rows for piece in _chunks(row, pattern.size)]
    else:
        pieces = [(row.slot, 0, row.start, len(row.tokens)) for row in rows]
    slots, bases, starts, counts = np.array(pieces, dtype=np.int64).reshape(-1, 4).T
    width = int(-(-(starts - bases + counts).max() // block_tokens))
    columns = np.minimum(bases[:, None] // block_tokens + np.arange(width), table.shape[1] - 1)
    return Spans(
        query_start=torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)),
        start=torch.from_numpy((starts - bases).astype(np.int32)),
        tables=torch.from_numpy(np.ascontiguousarray(table[slots[:, None], columns])),
        window=pattern.size if pattern.kind == "sliding" else 0,
    )


def _chunks(row: Row, size: int) -> Iterator[tuple[int, int, int, int]]:
    """(slot, where the chunk begins, first position, tokens): to attention each chunk is a sequence by itself."""
    position, end = row.start, row.start + len(row.tokens)
    while position < end:
        base = position // size * size
        count = min(end, base + size) - position
        yield row.slot, base, position, count
        position += count
