"""From an id per line to the ids each row accepts: drafts are confirmed by exact match."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tickertape.core.batch import Row
from tickertape.core.drawing import NOT_FINITE, NOTHING_ALLOWED
from tickertape.core.lines import Lines
from tickertape.core.slot_params import PROMPT_ONLY, SERIAL, SlotParams

__all__ = ["FAULTS", "Accepted", "accept"]

FAULTS: Final = {
    NOTHING_ALLOWED: "no token can be sampled: every one is masked",
    NOT_FINITE: "the model's logits hold NaN or infinity",
}


class Accepted(Struct, frozen=True):
    """`tokens` per row and `errors` by slot, as in StepOutput; `lines` [m] are the accepted ids' lines, in order."""

    tokens: list[list[int]]
    errors: dict[int, str]
    lines: NDArray[np.int64]


def accept(rows: Sequence[Row], lines: Lines, chosen: NDArray[np.int64], params: SlotParams) -> Accepted:
    """`chosen` [N] holds the id each line gives on its own, or a fault below 0."""
    if lines.one_each and chosen.min() >= 0 and not (params.uses[lines.slot] & PROMPT_ONLY).any():
        return Accepted([[token] for token in chosen.tolist()], {}, np.arange(len(rows)))
    tokens: list[list[int]] = []
    errors: dict[int, str] = {}
    accepted: list[int] = []
    for row, first in zip(rows, lines.first.tolist(), strict=True):
        first_position = row.start + len(row.tokens) - row.num_logits
        start = first + max(0, int(params.samples_from[row.slot]) - first_position)
        ids = chosen[start : first + row.num_logits].tolist()
        # With counts or a history to keep, the later lines were chosen without knowing the earlier ids.
        ids = ids[:1] if params.uses[row.slot] & SERIAL else _confirmed(ids, row.tokens)
        if ids and ids[-1] < 0:
            errors[row.slot] = FAULTS[ids[-1]]
            ids = []
        tokens.append(ids)
        accepted.extend(range(start, start + len(ids)))
    return Accepted(tokens, errors, np.array(accepted, dtype=np.int64))


def _confirmed(ids: list[int], tokens: Sequence[int]) -> list[int]:
    """The ids that equal the drafts at the end of `tokens`, up to and with the first that does not (or has none)."""
    drafts = tokens[len(tokens) + 1 - len(ids) :]
    for num_matched, (sampled, draft) in enumerate(zip(ids, drafts, strict=False)):
        if sampled != draft:
            return ids[: num_matched + 1]
    return ids
