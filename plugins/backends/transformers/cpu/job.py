"""What the attention kernel is told: plain memory that Python fills in and compiled code reads."""

from __future__ import annotations

import ctypes
from typing import Final

__all__ = ["COLUMNS", "MAX_SPLITS", "SPLIT_TOKENS", "Job", "rows_of", "scratch_words", "wide"]

COLUMNS: Final = 64
"""Key positions that are scored at once."""

SPLIT_TOKENS: Final = 512
"""A span of few tokens is read in pieces of this many positions (so that threads share a long one), or of a power of
two times as many where that would make more than MAX_SPLITS pieces."""

MAX_SPLITS: Final = 32

_ROWS: Final = 64


class Job(ctypes.Structure):
    """Addresses are of contiguous memory but for q and out, whose steps over tokens and heads are given. Strides and
    sizes count elements. `ticket` and `entrants` are 0 before a run and shared by its threads; `pending` is 0 between
    runs. A run that finds fewer partials (of one query each) than it needs does nothing but say how many."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("ticket", "entrants", "needed_partials")),
        *((name, ctypes.c_int64) for name in ("q", "k", "v", "out", "sinks", "query_start", "start", "tables")),
        *((name, ctypes.c_int64) for name in ("scratch", "scratch_stride", "partials", "num_partials", "pending")),
        *((name, ctypes.c_int64) for name in ("num_spans", "rows", "table_stride", "block_tokens", "window")),
        *((name, ctypes.c_int64) for name in ("num_heads", "num_kv_heads", "key_dim", "value_dim")),
        *((name, ctypes.c_int64) for name in ("q_token", "q_head", "out_token", "out_head")),
        *((name, ctypes.c_double) for name in ("scale", "softcap")),
    )


def rows_of(group: int) -> int:
    """Rows of a tile: the queries of one kv head, token by token, as many tokens as fit."""
    return max(_ROWS, -(-group // 16) * 16)


def scratch_words(rows: int, key_dim: int, value_dim: int) -> int:
    """What one thread computes in, in words of 8 bytes: queries, turned keys, scores, mixed values, four columns, and
    three lists of offsets."""
    wide_key, wide_value = wide(key_dim), wide(value_dim)
    return rows * (wide_key + COLUMNS + wide_value + 4) + wide_key * COLUMNS + 2 * COLUMNS + wide_key


def wide(dim: int) -> int:
    """A row of `dim` numbers in scratch, rounded up to whole vectors of any width."""
    return -(-dim // 16) * 16
