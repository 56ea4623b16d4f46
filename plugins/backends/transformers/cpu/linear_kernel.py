"""The kernel behind linear layers: rows of activations times rows of weights, both read where they lie.

Weights stay as the file has them (mapped, shared between processes, tied to an embedding): nothing is repacked. Every
number of the result is the same sequence of operations however many rows there are, so a row's result does not depend
on its batch, to the bit. Weights of int8 are widened to float32, which is exact, on their way into the registers, and
each sum is multiplied by the scale of its row of weights: activations are never rounded.
"""

from __future__ import annotations

import ctypes
from typing import Final

from numba import njit

from tickertape.plugins.backends.transformers.cpu.lanes import (
    address_of,
    at,
    fetch_add,
    float32_at,
    int8_at,
    int64_at,
    load,
    pointer_like,
    scratch_like,
    store,
    width_of,
)
from tickertape.plugins.backends.transformers.cpu.products import TILE_ROWS, multiply_tile, sum_tile

__all__ = ["SCRATCH_BYTES", "LinearJob", "Part", "multiply_all", "multiply_all_int8"]

_BLOCK_ROWS: Final = 64  # rows of x that go over a group of weights while it is near
_PANEL: Final = 32  # rows of w that make one item of work
_DEPTH: Final = 1024  # columns at once: 4 rows of x and of w, this long, fit the first cache together

_FEW_ROWS: Final = 8  # of x: for more, narrow weights are widened once instead of once per tile
_NO_END: Final = 1 << 62

_TILE_BYTES: Final = 16 * 64
_TILES_BYTES: Final = (_BLOCK_ROWS // TILE_ROWS + 1) * _TILE_BYTES
SCRATCH_BYTES: Final = _TILES_BYTES + TILE_ROWS * _DEPTH * 4
"""Per thread."""


class Part(ctypes.Structure):
    """Addresses of one weight [out_features, in_features], of its bias (0: none), of where the result goes, and of a
    float32 for each row of the weight that its sums are multiplied by (0: none)."""

    _fields_ = tuple((name, ctypes.c_int64) for name in ("weight", "bias", "out", "out_features", "scales"))


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
    _multiply_parts(job, job, _NO_END)


@njit
def multiply_all_int8(job):  # type: ignore[no-untyped-def]
    """As `multiply_all`, for weights of int8 with scales; biases and results are of the type of the pointer."""
    _multiply_parts(job, int8_at(0), _FEW_ROWS)


@njit
def _multiply_parts(job, like, few):  # type: ignore[no-untyped-def]
    """Weights are of the type that `like` points to."""
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
        _multiply_panel(job, like, fields, at(parts, part * _PART), sums, panel * _PANEL, first, last, few)
        ticket = fetch_add(at(fields, _TICKET), 1)


@njit
def _multiply_panel(job, like, fields, part, sums, panel, first, last, few):  # type: ignore[no-untyped-def]
    """Rows [first, last) of x times the panel's rows of the weight."""
    x, weight, out = scratch_like(job, fields[_X]), pointer_like(like, part[0]), pointer_like(job, part[2])
    depth, out_features = fields[_IN_FEATURES], part[3]
    num_columns = width_of(x) // TILE_ROWS
    tile = width_of(x) * width_of(x)
    totals = at(sums, (_BLOCK_ROWS // TILE_ROWS) * tile)
    widened = scratch_like(job, address_of(sums) + _TILES_BYTES)
    for column in range(panel, min(out_features, panel + _PANEL), num_columns):
        num_w = min(num_columns, out_features - column)
        ahead = num_columns * depth if column + 2 * num_columns <= out_features else 0
        for k in range(0, depth, _DEPTH):
            w = at(weight, column * depth + k)
            count = min(_DEPTH, depth - k)
            here = at(x, first * depth + k)
            if last - first <= few:
                _multiply_rows(here, depth, last - first, w, depth, num_w, count, ahead, sums, k == 0)
            else:
                _widen(w, depth, num_w, count, widened)
                _multiply_rows(here, depth, last - first, widened, _DEPTH, num_w, count, 0, sums, k == 0)
        for row in range(first, last, TILE_ROWS):
            store(totals, sum_tile(at(sums, (row - first) // TILE_ROWS * tile)))
            for i in range(min(TILE_ROWS, last - row)):
                target = at(out, (row + i) * out_features + column)
                _finish(job, at(totals, i * num_columns), num_w, part, column, target)


@njit
def _multiply_rows(x, depth, num_rows, w, w_stride, num_w, count, ahead, sums, fresh):  # type: ignore[no-untyped-def]
    """Adds the products of `count` columns to the sums of each tile."""
    tile = width_of(x) * width_of(x)
    for row in range(0, num_rows, TILE_ROWS):
        kept = at(sums, row // TILE_ROWS * tile)
        num_x, asked = min(TILE_ROWS, num_rows - row), ahead if row == 0 else 0
        multiply_tile(at(x, row * depth), depth, num_x, w, w_stride, num_w, count, asked, kept, 1 if fresh else 0)


@njit
def _widen(w, stride, num_w, count, target):  # type: ignore[no-untyped-def]
    for j in range(num_w):
        for k in range(0, count, width_of(w)):
            store(at(target, j * _DEPTH + k), load(at(w, j * stride + k)))


@njit
def _finish(job, totals, num_w, part, column, target):  # type: ignore[no-untyped-def]
    """The sums of one row of x, scaled and with the bias, to where the result goes."""
    if part[4] != 0:
        scales = at(float32_at(part[4]), column)
        for j in range(num_w):
            totals[j] *= scales[j]
    if part[1] != 0:
        bias = at(pointer_like(job, part[1]), column)
        for j in range(num_w):
            totals[j] += bias[j]
    for j in range(num_w):
        target[j] = totals[j]
