"""One step of a model: what the scheduler hands a runner, and what the runner hands back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from tickertape.core.logits_processor import LogitsProcessor
from tickertape.core.request import SamplingParams

__all__ = ["LAST", "Array", "Batch", "Logprobs", "Masks", "Opened", "Row", "StepOutput"]

LAST: Final = -1
"""Stands in `Row.tokens` for the id that this slot sampled in the previous step, so that the host may schedule a step
before it has seen the results of the one before."""

Array = Any
"""An array of the runner's own namespace (numpy, torch, ...); `Batch.tables` are always numpy."""


class Row(Struct, frozen=True, gc=False):
    """One sequence's share of a step.

    `slot` is dense and stable while the sequence is resident: device state hangs on it. `tokens` are the ids to
    compute (they may end in drafts, or be `(LAST,)`); `start` is the position of `tokens[0]`, and the KV of
    [0, start) is in the blocks. `num_logits` counts the trailing positions whose logits are wanted: 0 in the middle
    of a prompt, 1 as a rule, 1 + drafts, or all of them while a prompt is scored.
    """

    slot: int
    tokens: Sequence[int]
    start: int
    num_logits: int


class Opened(Struct, frozen=True):
    """A sequence that enters a slot with this step. `history` is every id known so far, u32 (prompt, then replayed
    output from `num_prompt_tokens` on). `processors` are those that `sampling` names, made and in its order."""

    slot: int
    sampling: SamplingParams
    history: bytes
    num_prompt_tokens: int
    adapter: int = 0
    processors: tuple[LogitsProcessor, ...] = ()


class Batch(Struct, frozen=True):
    """A step. A runner first forgets `closed` slots, then takes in `opened` ones, then computes `rows`. It does so
    even when it then raises RunnerError; closing an unknown slot is no error, opening a taken one replaces its tenant.

    `tables` holds one int32 array [num_slots, max_blocks] per cache group: the block ids of each slot, in order. They
    are the scheduler's own and not copied: read them before `forward` returns and never write. Entries are appended;
    an entry that fell behind a sliding window turns into 0, the null block, which nobody writes. One step may hold
    a slot whose sequence has ended meanwhile: its row is computed like any other and its output dropped.
    """

    step: int
    rows: tuple[Row, ...]
    opened: tuple[Opened, ...]
    closed: tuple[int, ...]
    tables: tuple[Array, ...]


class Masks(Struct, frozen=True):
    """Bit masks from grammars: numpy int32 [n, ceil(V / 32)], one line per wanted logits position in row order; bit
    `i % 32` of word `i // 32` set means that id `i` is allowed."""

    bits: Array


class Logprobs(Struct, frozen=True):
    """Log probabilities of a step, never the whole vocabulary.

    One line per scored position, rows in batch order; `counts[r]` lines belong to row r (0 where none were asked).
    `ids` int [n, 1 + k]: the token itself, then the k top ids in descending order; `values` float32 [n, 1 + k];
    `ranks` int [n]: of the token itself, 1 = most likely. k is the largest any row asked; the scheduler trims.
    While a prompt is scored, the line of position p is about the prompt's id at p + 1.
    """

    counts: Sequence[int]
    ids: Array
    values: Array
    ranks: Array


class StepOutput(Struct, frozen=True):
    """Per row of the batch, the 0..num_logits ids it accepted: none while a prompt is in its middle, one as a rule,
    more when drafts were confirmed. `errors` maps a slot to a one-line message: that row failed, alone."""

    tokens: Sequence[Sequence[int]]
    logprobs: Logprobs | None
    errors: Mapping[int, str]
