"""A step as the scheduler remembers it, and what came of one."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from tickertape.core.batch import Batch, Logprobs
from tickertape.core.errors import TickertapeError
from tickertape.core.request import TokenDelta, TokenLogprobs
from tickertape.core.sequence import Sequence

__all__ = ["Step", "StepEvents", "logprob_lines"]


class Step(Struct, frozen=True):
    """`sequences[i]` is whose row `batch.rows[i]` is; `samples[i]` whether that row is to give an id."""

    batch: Batch
    sequences: tuple[Sequence, ...]
    samples: tuple[bool, ...]

    def without_finished(self) -> Step:
        """The same step without the rows of sequences that ended since it was scheduled."""
        kept = [i for i, seq in enumerate(self.sequences) if seq.status != "finished"]
        if len(kept) == len(self.sequences):
            return self
        return Step(
            batch=replace(self.batch, rows=tuple(self.batch.rows[i] for i in kept)),
            sequences=tuple(self.sequences[i] for i in kept),
            samples=tuple(self.samples[i] for i in kept),
        )


@dataclass(slots=True)
class StepEvents:
    """What requests are to be told: by request id, in the order in which it happened. A request in `failures` gets
    nothing more; one whose delta has `finish` neither."""

    deltas: list[tuple[int, TokenDelta]] = field(default_factory=list)
    failures: list[tuple[int, TickertapeError]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.deltas or self.failures)


def logprob_lines(logprobs: Logprobs, first: int, count: int, num_top: int) -> tuple[TokenLogprobs, ...]:
    """Lines [first, first + count) as records, trimmed to the id itself and `num_top` more."""
    width = 1 + num_top
    lines = slice(first, first + count)
    ids = logprobs.ids[lines, :width].tolist()
    values = logprobs.values[lines, :width].tolist()
    ranks = logprobs.ranks[lines].tolist()
    return tuple(TokenLogprobs(tuple(i), tuple(v), r) for i, v, r in zip(ids, values, ranks, strict=True))
