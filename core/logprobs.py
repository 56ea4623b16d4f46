"""Log probabilities of the model's own distribution: of accepted ids, and of the prompt's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tickertape.core.acceptance import FAULTS, Accepted
from tickertape.core.batch import Array, Logprobs
from tickertape.core.choosing import chunks
from tickertape.core.drawing import NOT_FINITE
from tickertape.core.lines import Lines
from tickertape.core.slot_params import LOGPROBS, PROMPT_ONLY, SlotParams

__all__ = ["score", "score_step"]


def score(xp: Any, logits: Array, ids: Array, num_top: int) -> tuple[Array, Array, Array]:
    """(ids int64 [n, 1 + k], log probabilities float32 [n, 1 + k], ranks int64 [n]) of `ids` [n] under logits [n, V].

    Column 0 is the given id, then come the k = min(num_top, V) top ids in descending order, the lowest id first among
    equals. The rank is 1 + the number of ids with a strictly greater logit. Computed in float64. A line that holds a
    NaN or +inf, or nothing finite, has NaN values.
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


def score_step(
    xp: Any, lines: Lines, logits: Array, accepted: Accepted, params: SlotParams, *, device: Any
) -> tuple[Logprobs | None, dict[int, str]]:
    """The step's log probabilities, and the rows that have none because their logits are not finite, by slot.

    Rows with an error have no lines. None when nothing was asked of any line.
    """
    if not (params.uses[lines.slot] & (LOGPROBS | PROMPT_ONLY)).any():
        return None, {}
    num_top, targets = _wanted(lines, accepted, params)
    if accepted.errors:
        num_top[np.isin(lines.slot, list(accepted.errors))] = -1
    at = np.flatnonzero(num_top >= 0)
    if not len(at):
        return None, {}
    most = int(num_top.max())
    parts = []
    for chunk in chunks(at, logits.shape[1], device):
        where, ids = (xp.asarray(host, device=device) for host in (chunk, targets[chunk]))
        parts.append(score(xp, xp.take(logits, where, axis=0), ids, most))
    ids, values, ranks = (xp.concat(column, axis=0) for column in zip(*parts, strict=True))

    broken = np.array(xp.isnan(values[:, 0]).tolist())
    row_failed = np.zeros(len(lines.first), dtype=bool)
    row_failed[lines.row[at[broken]]] = True
    failed = row_failed[lines.row[at]]
    if failed.any():
        kept = xp.asarray(np.flatnonzero(~failed), device=device)
        ids, values, ranks = (xp.take(column, kept, axis=0) for column in (ids, values, ranks))
    counts = np.bincount(lines.row[at[~failed]], minlength=len(lines.first)).tolist()
    return Logprobs(counts, ids, values, ranks), dict.fromkeys(lines.slot[at[failed]].tolist(), FAULTS[NOT_FINITE])


def _wanted(lines: Lines, accepted: Accepted, params: SlotParams) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Per line how many top ids are asked (-1: the line is not scored), and the id it is about."""
    num_top = np.full(len(lines.row), -1, dtype=np.int64)
    targets = np.zeros(len(lines.row), dtype=np.int64)
    num_top[accepted.lines] = params.num_logprobs[lines.slot[accepted.lines]]
    targets[accepted.lines] = [token for tokens in accepted.tokens for token in tokens]
    inside_prompt = lines.position < params.num_prompt_tokens[lines.slot] - 1
    for line in np.flatnonzero(inside_prompt & (params.num_prompt_logprobs[lines.slot] >= 0)).tolist():
        slot = int(lines.slot[line])
        num_top[line] = params.num_prompt_logprobs[slot]
        targets[line] = params.prompt_token(slot, int(lines.position[line]) + 1)
    return num_top, targets
