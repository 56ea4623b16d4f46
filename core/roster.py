"""Who is in the engine: every unfinished sequence, where it stands, and which slot it sits in."""

from __future__ import annotations

from bisect import insort
from operator import attrgetter

from tickertape.core.batch import Opened
from tickertape.core.errors import InvalidRequest
from tickertape.core.kv_cache import KVCache
from tickertape.core.policy import Policy
from tickertape.core.request import pack_tokens
from tickertape.core.sequence import NO_SLOT, Sequence
from tickertape.core.waiting import WaitingQueue

__all__ = ["Roster"]

_RANK = attrgetter("rank")


class Roster:
    """Moves sequences between waiting, running and ended, and keeps slots, blocks and the policy in step with that.

    `running` is ordered by rank, best first; do not change it from outside. Slots that changed hands since the last
    step are told to the runner through `take_changes`.
    """

    def __init__(self, num_slots: int, kv: KVCache, policy: Policy) -> None:
        self.running: list[Sequence] = []
        self.waiting = WaitingQueue(policy)
        self._kv = kv
        self._policy = policy
        self._sequences: dict[int, Sequence] = {}
        self._lane_sizes: dict[str, int] = {}
        self._free_slots = list(range(num_slots - 1, -1, -1))
        self._opened: dict[int, Opened] = {}
        self._closed: list[int] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def get(self, request_id: int) -> Sequence | None:
        return self._sequences.get(request_id)

    @property
    def next_slot(self) -> int | None:
        return self._free_slots[-1] if self._free_slots else None

    def join(self, seq: Sequence) -> None:
        """A new sequence, to the waiting queue."""
        if seq.id in self._sequences:
            raise InvalidRequest(f"request {seq.id} is being served already")
        seq.rank = self._policy.rank(seq.request)
        if self._policy.counts:
            lane = self._policy.lane(seq.request)
            if lane not in self._lane_sizes:
                self._policy.joined(lane, self._lane_sizes.keys())
            self._lane_sizes[lane] = self._lane_sizes.get(lane, 0) + 1
        self._sequences[seq.id] = seq
        self.waiting.push(seq)

    def seat(self, seq: Sequence) -> None:
        """The head of the queue, which has its blocks, takes `next_slot` and runs."""
        assert seq.slot == self._free_slots.pop(), "the KV cache was given another slot"
        self.waiting.take(seq)
        seq.status = "running"
        insort(self.running, seq, key=_RANK)
        history = pack_tokens(seq.tokens)
        self._opened[seq.slot] = Opened(
            seq.slot, seq.request.sampling, history, seq.num_prompt_tokens, processors=seq.processors
        )

    def requeue(self, seq: Sequence) -> None:
        """A running sequence goes back to its old place with everything it knows; what it had computed is found in
        the prefix cache again, if nobody needed the blocks meanwhile."""
        self._unseat(seq)
        seq.status = "waiting"
        seq.num_scheduled = seq.num_computed = seq.num_published = 0
        self.waiting.push(seq)

    def end(self, seq: Sequence) -> None:
        """For good; its blocks and its slot are free at once."""
        del self._sequences[seq.id]
        if seq.status == "running":
            self._unseat(seq)
        else:
            self.waiting.remove(seq)
        seq.status = "finished"
        if self._policy.counts:
            lane = self._policy.lane(seq.request)
            self._lane_sizes[lane] -= 1
            if not self._lane_sizes[lane]:
                del self._lane_sizes[lane]

    def take_changes(self) -> tuple[tuple[Opened, ...], tuple[int, ...]]:
        """(opened, closed) since the last step."""
        changes = tuple(self._opened.values()), tuple(self._closed)
        self._opened, self._closed = {}, []
        return changes

    def restore_closed(self, slots: tuple[int, ...]) -> None:
        """Slots whose closing was in a step that is not launched after all."""
        self._closed[:0] = slots

    def _unseat(self, seq: Sequence) -> None:
        self.running.remove(seq)
        self.waiting.wake(self._kv.close(seq))
        if self._opened.pop(seq.slot, None) is None:
            self._closed.append(seq.slot)  # the runner knows this tenant
        self._free_slots.append(seq.slot)
        seq.slot = NO_SLOT
