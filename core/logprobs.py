"""Log probabilities of the model's own distribution."""

from __future__ import annotations

from typing import Any

from tickertape.core.batch import Array

__all__ = ["score"]


def score(xp: Any, logits: Array, ids: Array, num_top: int) -> tuple[Array, Array, Array]:
    """(ids int64 [n, 1 + k], log probabilities float32 [n, 1 + k], ranks int64 [n]) of `ids` [n] under logits [n, V].

    Column 0 is the given id, then come the k = min(num_top, V) top ids in descending order, the lowest id first among
    equals. The rank is 1 + the number of ids with a strictly greater logit. Computed in float64. A line with a NaN or
    without a finite logit has NaN values.
    """
    x = xp.astype(logits, xp.float64)
    columns = [ids]
    if num_top := min(num_top, x.shape[1]):
        # k passes rather than a sort: k is small. Ids already taken go below those the model gave no chance.
        left = xp.maximum(x, xp.full_like(x[:, :1], xp.finfo(xp.float64).min))
        lines = xp.arange(x.shape[0], device=x.device)
        for _ in range(num_top):
            columns.append(xp.argmax(left, axis=1))
            left[lines, columns[-1]] = -xp.inf
    chosen = xp.stack(columns, axis=1)
    greatest = xp.max(x, axis=1, keepdims=True)
    log_total = xp.log(xp.sum(xp.exp(x - greatest), axis=1, keepdims=True))
    values = xp.take_along_axis(x, chosen, axis=1) - greatest - log_total
    ranks = 1 + xp.count_nonzero(x > xp.take_along_axis(x, ids[:, None], axis=1), axis=1)
    return chosen, xp.astype(values, xp.float32), ranks
