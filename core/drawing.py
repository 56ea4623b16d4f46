"""From logits to ids: argmax, or a draw from the filtered distribution. Pure functions over [n, V], row by row.

Weights are whole numbers in float64 whose sum over the vocabulary stays below 2**53, so that every sum of them is
exact in whatever order a namespace, a device or a batch shape adds: a row draws the same id in any company.
"""

from __future__ import annotations

from typing import Any, Final

from tickertape.core.batch import Array

__all__ = ["NOTHING_ALLOWED", "NOT_FINITE", "checked", "draw", "greedy"]

NOTHING_ALLOWED: Final = -1
NOT_FINITE: Final = -2

_BLOCK: Final = 256  # a running sum is slow along a row: sum blocks first, then look inside one


def greedy(xp: Any, x: Array) -> tuple[Array, Array]:
    """The lowest id among the greatest logits, int64 [n], and its logit [n] (NaN when the row holds a NaN)."""
    ids = xp.argmax(x, axis=1)
    return ids, xp.take_along_axis(x, ids[:, None], axis=1)[:, 0]


def checked(xp: Any, ids: Array, best: Array) -> Array:
    """The ids, or NOTHING_ALLOWED / NOT_FINITE where the row's greatest logit `best` says that none can be chosen:
    the ids and their faults then reach the host in one transfer."""
    return xp.where(xp.isfinite(best), ids, xp.where(best == -xp.inf, NOTHING_ALLOWED, NOT_FINITE))


def draw(
    xp: Any,
    x: Array,
    best: Array,
    *,
    temperature: Array,
    log_min_p: Array | None,
    top_k: Array,
    top_p: Array,
    ranked: Array | None,
    uniform: Array,
) -> Array:
    """Ids int64 [n] by inverse CDF over the kept ids in ascending order. `x` float64 [n, V] is used up.

    `best`, `temperature`, `log_min_p`, `top_k` (1..V; V: off), `top_p` and `uniform` are columns [n, 1]. `log_min_p`
    is None when no row has it; `ranked` are the indices of the rows that use top_k or top_p, None when there are
    none. Rows whose `best` is not finite give some id in range.
    """
    x -= xp.where(xp.isfinite(best), best, 0.0)
    x /= temperature
    weights = _weights(xp, x)
    if log_min_p is not None or ranked is not None:
        least = xp.full_like(best, -xp.inf) if log_min_p is None else log_min_p
        if ranked is not None:
            of_ranked = (xp.take(column, ranked, axis=0) for column in (x, least, top_k, top_p))
            least = xp.asarray(least, copy=True)
            least[ranked] = _least_kept(xp, *of_ranked)
        weights *= xp.astype(x >= least, xp.float64)
    return _inverse_cdf(xp, weights, uniform)


def _weights(xp: Any, x: Array) -> Array:
    """exp(x), x <= 0, in whole units of which 2**53 hold the whole vocabulary."""
    return xp.round(xp.exp(x) * 2.0 ** (53 - x.shape[1].bit_length()))


def _least_kept(xp: Any, x: Array, least: Array, top_k: Array, top_p: Array) -> Array:
    """[n, 1]: the x from which on ids are kept after `least`, top_k and top_p; comparing with it keeps all ties."""
    ordered = xp.sort(x, axis=1)
    least = xp.maximum(least, xp.take_along_axis(ordered, x.shape[1] - xp.astype(top_k, xp.int64), axis=1))
    weights = _weights(xp, ordered) * xp.astype(ordered >= least, xp.float64)
    running = xp.cumulative_sum(weights, axis=1)
    total = running[:, -1:]
    mass = total - (running - weights)  # of an id and all greater ones: falls from the total, left to right
    num_reaching = xp.count_nonzero(mass >= top_p * total, axis=1)
    last = xp.maximum(num_reaching - 1, xp.zeros_like(num_reaching))[:, None]
    return xp.maximum(least, xp.take_along_axis(ordered, last, axis=1))


def _inverse_cdf(xp: Any, weights: Array, uniform: Array) -> Array:
    """The first id whose running sum exceeds uniform * total: never one of weight zero."""
    num_rows, vocab_size = weights.shape
    if padding := -vocab_size % _BLOCK:
        zeros = xp.zeros((num_rows, padding), dtype=weights.dtype, device=weights.device)
        weights = xp.concat([weights, zeros], axis=1)
    blocks = xp.reshape(weights, (num_rows, -1, _BLOCK))
    sums = xp.sum(blocks, axis=2)
    ends = xp.cumulative_sum(sums, axis=1)
    target = xp.floor(uniform * ends[:, -1:])
    block = xp.count_nonzero(ends[:, :-1] <= target, axis=1)
    line = xp.arange(num_rows, device=weights.device)
    start = (ends - sums)[line, block]
    inside = xp.cumulative_sum(blocks[line, block], axis=1)
    offset = xp.count_nonzero(start[:, None] + inside <= target, axis=1)
    ids = block * _BLOCK + offset
    return xp.minimum(ids, xp.full_like(ids, vocab_size - 1))
