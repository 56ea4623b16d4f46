"""The arithmetic of the attention kernel: a tile of queries against up to COLUMNS keys."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from numba import njit

from tickertape.plugins.backends.transformers.cpu.arithmetic import (
    exponential,
    fill,
    fma,
    hyperbolic_tangent,
    largest,
    maximum,
    total,
)
from tickertape.plugins.backends.transformers.cpu.job import COLUMNS
from tickertape.plugins.backends.transformers.cpu.lanes import (
    at,
    load,
    load_part,
    store,
    transpose,
    width_of,
)

__all__ = ["LOWEST", "Tile", "cap", "hide", "mix", "multiply", "soften", "turn"]

LOWEST: Final = -3.0e38  # less than any score, yet finite: what is hidden weighs exp(-inf) = 0 even against it
_HIDDEN: Final = float("-inf")


class Tile(NamedTuple):
    """A thread's scratch. Rows are queries of one kv head, token by token; one wide row of each per query but for
    `turned`, the keys as columns. `best` and `sums` are the softmax so far, `peaks` and `factors` its next step."""

    queries: Any
    turned: Any
    scores: Any
    mixed: Any
    best: Any
    sums: Any
    peaks: Any
    factors: Any
    k_places: Any
    v_places: Any
    lines: Any
    key_dim: int
    key_wide: int
    value_dim: int
    value_wide: int


@njit
def turn(tile, keys):  # type: ignore[no-untyped-def]
    """The keys as columns."""
    width = width_of(keys)
    squares = tile.key_dim // width * width
    for column in range(0, COLUMNS, width):
        for d in range(0, squares, width):
            transpose(at(keys, d), at(tile.k_places, column), at(tile.turned, d * COLUMNS + column), COLUMNS)
    for column in range(COLUMNS):
        for d in range(squares, tile.key_dim):
            tile.turned[d * COLUMNS + column] = keys[tile.k_places[column] + d]


@njit
def multiply(tile, num_rows):  # type: ignore[no-untyped-def]
    """Scores from turned keys, four rows by two vectors of columns at once."""
    width = width_of(tile.scores)
    for row in range(0, num_rows, 4):
        for column in range(0, COLUMNS, 2 * width):
            scores = at(tile.scores, row * COLUMNS + column)
            for i in range(4):
                store(at(scores, i * COLUMNS), fill(scores, 0.0))
                store(at(scores, i * COLUMNS + width), fill(scores, 0.0))
            weights = at(tile.queries, row * tile.key_wide)
            _block(weights, tile.key_wide, at(tile.turned, column), tile.lines, tile.key_dim, scores, COLUMNS)


@njit
def mix(tile, values, num_columns, num_rows):  # type: ignore[no-untyped-def]
    """Adds the values, weighted by `scores`, to the mixed ones."""
    width = width_of(values)
    pairs = tile.value_dim // (2 * width) * 2 * width
    for row in range(0, num_rows, 4):
        weights = at(tile.scores, row * COLUMNS)
        mixed = at(tile.mixed, row * tile.value_wide)
        for d in range(0, pairs, 2 * width):
            _block(weights, COLUMNS, at(values, d), tile.v_places, num_columns, at(mixed, d), tile.value_wide)
        for d in range(pairs, tile.value_dim, width):
            used = min(width, tile.value_dim - d)
            _strip(weights, at(values, d), used, tile.v_places, num_columns, at(mixed, d), tile.value_wide)


@njit
def _block(a, a_stride, b, places, count, c, c_stride):  # type: ignore[no-untyped-def]
    """c [4, 2 vectors] += a [4, count] b [count, 2 vectors], whose rows lie at `places`."""
    width = width_of(b)
    a1, a2, a3 = at(a, a_stride), at(a, 2 * a_stride), at(a, 3 * a_stride)
    c1, c2, c3 = at(c, c_stride), at(c, 2 * c_stride), at(c, 3 * c_stride)
    x0, y0, x1, y1 = load(c), load(at(c, width)), load(c1), load(at(c1, width))
    x2, y2, x3, y3 = load(c2), load(at(c2, width)), load(c3), load(at(c3, width))
    for i in range(count):
        row = at(b, places[i])
        x, y = load(row), load(at(row, width))
        w = a[i]
        x0, y0 = fma(w, x, x0), fma(w, y, y0)
        w = a1[i]
        x1, y1 = fma(w, x, x1), fma(w, y, y1)
        w = a2[i]
        x2, y2 = fma(w, x, x2), fma(w, y, y2)
        w = a3[i]
        x3, y3 = fma(w, x, x3), fma(w, y, y3)
    store(c, x0)
    store(at(c, width), y0)
    store(c1, x1)
    store(at(c1, width), y1)
    store(c2, x2)
    store(at(c2, width), y2)
    store(c3, x3)
    store(at(c3, width), y3)


@njit
def _strip(a, b, used, places, count, c, c_stride):  # type: ignore[no-untyped-def]
    """c [4, 1 vector] += a [4, count] b [count, `used` numbers]."""
    width = width_of(b)
    a1, a2, a3 = at(a, COLUMNS), at(a, 2 * COLUMNS), at(a, 3 * COLUMNS)
    c1, c2, c3 = at(c, c_stride), at(c, 2 * c_stride), at(c, 3 * c_stride)
    x0, x1, x2, x3 = load(c), load(c1), load(c2), load(c3)
    for i in range(count):
        row = at(b, places[i])
        x = load(row) if used == width else load_part(row, used)
        x0, x1 = fma(a[i], x, x0), fma(a1[i], x, x1)
        x2, x3 = fma(a2[i], x, x2), fma(a3[i], x, x3)
    store(c, x0)
    store(c1, x1)
    store(c2, x2)
    store(c3, x3)


@njit
def cap(scores, count, softcap):  # type: ignore[no-untyped-def]
    for i in range(0, count, width_of(scores)):
        place = at(scores, i)
        store(place, hyperbolic_tangent(load(place) / softcap) * softcap)


@njit
def hide(tile, window, group, start, num_rows, first, last):  # type: ignore[no-untyped-def]
    """Takes from each row the positions of [first, last) that its query does not see, and the empty columns."""
    for row in range(num_rows):
        position = start + row // group
        seen_from = min(max(position - window + 1 - first, 0), last - first) if window > 0 else 0
        seen_to = min(max(position + 1 - first, 0), last - first)
        scores = at(tile.scores, row * COLUMNS)
        for column in range(seen_from):
            scores[column] = _HIDDEN
        for column in range(seen_to, COLUMNS):
            scores[column] = _HIDDEN


@njit
def soften(tile, num_rows, num_columns):  # type: ignore[no-untyped-def]
    """Scores to weights relative to the largest so far; what was summed before is scaled down to match."""
    width = width_of(tile.scores)
    for row in range(num_rows):
        scores = at(tile.scores, row * COLUMNS)
        most = load(scores)
        for column in range(width, num_columns, width):
            most = maximum(most, load(at(scores, column)))
        tile.peaks[row] = max(tile.best[row], largest(most))
    for row in range(0, num_rows, width):
        peaks = load(at(tile.peaks, row))
        store(at(tile.factors, row), exponential(load(at(tile.best, row)) - peaks))
        store(at(tile.best, row), peaks)
    for row in range(num_rows):
        scores, peak, factor = at(tile.scores, row * COLUMNS), tile.best[row], tile.factors[row]
        sums = fill(scores, 0.0)
        for column in range(0, num_columns, width):
            weights = exponential(load(at(scores, column)) - peak)
            store(at(scores, column), weights)
            sums = sums + weights
        tile.sums[row] = tile.sums[row] * factor + total(sums)
        mixed = at(tile.mixed, row * tile.value_wide)
        for d in range(0, tile.value_wide, width):
            store(at(mixed, d), load(at(mixed, d)) * factor)
