"""The kernel behind linear layers: rows of activations times rows of weights, both read where they lie.

Weights stay as the file has them (mapped, shared between processes, tied to an embedding): nothing is repacked. Every
number of the result is the same sequence of operations however many rows there are, so a row's result does not depend
on its batch, to the bit.
"""

from __future__ import annotations

import ctypes
from typing import Final

from numba import njit

from tickertape.plugins.backends.transformers.cpu.lanes import (
    address_of,
    at,
    fetch_add,
    int64_at,
    pointer_like,
    scratch_like,
    store,
    width_of,
)
from tickertape.plugins.backends.transformers.cpu.products import TILE_ROWS, multiply_tile, sum_tile

__all__ = ["SCRATCH_BYTES", "LinearJob", "Part", "multiply_all"]

_BLOCK_ROWS: Final = 64  # rows of x that go over a group of weights while it is near
_PANEL: Final = 32  # rows of w that make one item of work
_DEPTH: Final = 1024  # columns at once: 4 rows of x and of w, this long, fit the first cache together

_TILE_BYTES: Final = 16 * 64
SCRATCH_BYTES: Final = (_BLOCK_ROWS // TILE_ROWS + 1) * _TILE_BYTES
"""Per thread."""


class Part(ctypes.Structure):
    """Addresses of one weight [out_features, in_features], of its bias (0: none), and of where the result goes."""

    _fields_ = tuple((name, ctypes.c_int64) for name in ("weight", "bias", "out", "out_features"))


class LinearJob(ctypes.Structure):
    """`x` [num_rows, in_features] is of the type that is computed in. `ticket` and `entrants` are 0 before a run."""

    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in ("ticket", "entrants", "x", "num_rows", "in_features", "scratch", "num_parts", "parts")
    )


_TICKET, _ENTRANTS = LinearJob.ticket.offset // 8, LinearJob.entrants.offset // 8
_X, _NUM_ROWS, _IN_FEATURES = LinearJob.x.offset // 8, LinearJob.num_rows.offset // 8, LinearJob.in_features.offset // 8
_SCRATCH, _NUM_PARTS, _PARTS = (
    LinearJob.scratch.offset // 8,
    LinearJob.num_parts.offset // 8,
    LinearJob.parts.offset // 8,
)
_PART: Final = ctypes.sizeof(Part) // 8


@njit
def multiply_all(job):  # type: ignore[no-untyped-def]
    """The body of one thread. `job` is the address of a LinearJob; its pointer type tells the type of the weights,
    biases and results. Threads draw panels of weights until none is left."""
    fields = int64_at(address_of(job))
    parts = int64_at(fields[_PARTS])
    num_blocks = (fields[_NUM_ROWS] + _BLOCK_ROWS - 1) // _BLOCK_ROWS
    sums = scratch_like(job, fields[_SCRATCH] + fetch_add(at(fields, _ENTRANTS), 1) * SCRATCH_BYTES)
    ticket = fetch_add(at(fields, _TICKET), 1)
    part = first_item = 0
    while part < fields[_NUM_PARTS]:
        out_features = parts[part * _PART + 3]
        num_panels = (out_features + _PANEL - 1) // _PANEL
        if ticket >= first_item + num_panels * num_blocks:
            first_item += num_panels * num_blocks
            part += 1
            continue
        block, panel = divmod(ticket - first_item, num_panels)
        first, last = block * _BLOCK_ROWS, min(fields[_NUM_ROWS], (block + 1) * _BLOCK_ROWS)
        _multiply_panel(job, fields, at(parts, part * _PART), sums, panel * _PANEL, first, last)
        ticket = fetch_add(at(fields, _TICKET), 1)


@njit
def _multiply_panel(job, fields, part, sums, panel, first, last):  # type: ignore[no-untyped-def]
    """Rows [first, last) of x times the panel's rows of the weight."""
    x, weight, out = scratch_like(job, fields[_X]), pointer_like(job, part[0]), pointer_like(job, part[2])
    depth, out_features = fields[_IN_FEATURES], part[3]
    num_columns = width_of(x) // TILE_ROWS
    tile = width_of(x) * width_of(x)
    totals = at(sums, (_BLOCK_ROWS // TILE_ROWS) * tile)
    for column in range(panel, min(out_features, panel + _PANEL), num_columns):
        num_w = min(num_columns, out_features - column)
        ahead = num_columns * depth if column + 2 * num_columns <= out_features else 0
        for k in range(0, depth, _DEPTH):
            w = at(weight, column * depth + k)
            count = min(_DEPTH, depth - k)
            for row in range(first, last, TILE_ROWS):
                kept = at(sums, (row - first) // TILE_ROWS * tile)
                asked = ahead if row == first else 0
                num_x = min(TILE_ROWS, last - row)
                multiply_tile(
                    at(x, row * depth + k), depth, num_x, w, depth, num_w, count, asked, kept, 1 if k == 0 else 0
                )
        for row in range(first, last, TILE_ROWS):
            store(totals, sum_tile(at(sums, (row - first) // TILE_ROWS * tile)))
            for i in range(min(TILE_ROWS, last - row)):
                target = at(out, (row + i) * out_features + column)
                for j in range(num_w):
                    target[j] = totals[i * num_columns + j]
                if part[1] != 0:
                    bias = at(pointer_like(job, part[1]), column)
                    for j in range(num_w):
                        target[j] = totals[i * num_columns + j] + bias[j]
