"""A request on its way through the engine: what is known of it, how far it is computed, what it holds."""

from __future__ import annotations

from typing import Literal

from tickertape.core.blocks import root_hash
from tickertape.core.grammar import Constraint
from tickertape.core.logits_processor import LogitsProcessor
from tickertape.core.request import Request, unpack_tokens

__all__ = ["NO_SLOT", "Sequence", "Status"]

NO_SLOT = -1
Status = Literal["waiting", "running", "finished"]


class Sequence:
    """Scheduler state of one request; owned by the scheduler's thread.

    `tokens` are all ids known so far: prompt, replayed output, output. `num_pending` ids more (0 or 1) are being
    sampled by a step in flight. `num_scheduled` positions were handed to the runner, of which the KV of
    `num_computed` is known to be written; both fall back to zero on preemption. `blocks[g]` are its blocks in cache
    group g, with room for `capacity_tokens`; `hashes` the digests of its full blocks, of which `num_published` were
    offered to the pools. `num_scores` prompt positions were scored and told. `num_cached_tokens` waits here for the
    first delta. `rank` is its place in the policy's order. `constraint` has accepted the output so far; it belongs to
    the sequence, not to the slot, and so outlives preemption.
    """

    __slots__ = (
        "blocks",
        "capacity_tokens",
        "constraint",
        "hashes",
        "id",
        "max_output_tokens",
        "num_cached_tokens",
        "num_computed",
        "num_pending",
        "num_prompt_tokens",
        "num_published",
        "num_scheduled",
        "num_scores",
        "parent_hash",
        "processors",
        "rank",
        "request",
        "slot",
        "status",
        "stop_tokens",
        "tokens",
        "was_admitted",
    )

    def __init__(
        self,
        request: Request,
        num_groups: int,
        processors: tuple[LogitsProcessor, ...] = (),
        constraint: Constraint | None = None,
    ) -> None:
        self.request = request
        self.constraint = constraint
        self.processors = processors
        self.id = request.id
        self.rank: tuple[float, ...] = ()
        self.tokens: list[int] = unpack_tokens(request.prompt)
        self.num_prompt_tokens = request.num_prompt_tokens
        self.max_output_tokens = request.sampling.max_tokens
        self.stop_tokens = frozenset(request.sampling.stop_tokens)
        self.num_scores = 0
        self.status: Status = "waiting"
        self.slot = NO_SLOT
        self.num_pending = 0
        self.num_scheduled = 0
        self.num_computed = 0
        self.num_cached_tokens: int | None = None
        self.was_admitted = False
        self.capacity_tokens = 0
        self.blocks: tuple[list[int], ...] = tuple([] for _ in range(num_groups))
        self.hashes: list[bytes] = []
        self.parent_hash = root_hash(request.cache_key)
        self.num_published = 0

    @property
    def num_total(self) -> int:
        """Positions known or being sampled."""
        return len(self.tokens) + self.num_pending

    @property
    def wants_scores(self) -> bool:
        """Whether prompt positions are still to be scored."""
        return self.request.sampling.prompt_logprobs is not None and self.num_scores < self.num_prompt_tokens - 1

    @property
    def num_output_tokens(self) -> int:
        """Output known or being sampled, replayed output included."""
        return len(self.tokens) + self.num_pending - self.num_prompt_tokens

    def __repr__(self) -> str:
        return (
            f"Sequence(id={self.request.id}, {self.status}, slot={self.slot}, tokens={len(self.tokens)}"
            f"+{self.num_pending}, scheduled={self.num_scheduled}, computed={self.num_computed})"
        )
