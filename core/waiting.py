"""The one waiting queue: lanes of sequences in the order of a policy, and those parked until a prefix is cached."""

from __future__ import annotations

import heapq

from tickertape.core.policy import Policy
from tickertape.core.sequence import Sequence

__all__ = ["WaitingQueue"]


class WaitingQueue:
    """Every sequence is in a lane's heap or parked. Removal is lazy: a sequence that is no longer waiting is passed
    over when it comes to the head of its heap."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._lanes: dict[str, list[tuple[tuple[float, ...], Sequence]]] = {}
        self._parked: dict[bytes, list[Sequence]] = {}
        self._members: set[int] = set()

    def __len__(self) -> int:
        return len(self._members)

    def push(self, seq: Sequence) -> None:
        self._members.add(seq.id)
        heapq.heappush(self._lanes.setdefault(self._policy.lane(seq.request), []), (seq.rank, seq))

    def remove(self, seq: Sequence) -> None:
        """Takes out for good a sequence that ended, wherever it stands."""
        self._members.discard(seq.id)
        if not self._members:
            self._lanes.clear()
            self._parked.clear()

    def take(self, head: Sequence) -> None:
        """Takes out the head, which may be pushed again later."""
        heapq.heappop(self._lanes[self._policy.lane(head.request)])
        self.remove(head)

    def head(self) -> Sequence | None:
        """The sequence that goes first now; it stays in the queue."""
        best: tuple[float, tuple[float, ...]] | None = None
        found: Sequence | None = None
        for lane in list(self._lanes):
            seq = self._lane_head(lane)
            if seq is None:
                continue
            key = (self._policy.level(lane), seq.rank)
            if best is None or key < best:
                best, found = key, seq
        return found

    def park(self, seq: Sequence, digest: bytes) -> None:
        """Sets the head aside until `wake(digest)`; it still counts as waiting."""
        heapq.heappop(self._lanes[self._policy.lane(seq.request)])
        self._parked.setdefault(digest, []).append(seq)

    def wake(self, digests: list[bytes]) -> None:
        """Puts back who waited for one of these blocks: it is cached now, or nobody computes it any more."""
        if not self._parked:
            return
        for digest in digests:
            for seq in self._parked.pop(digest, ()):
                if seq.id in self._members:
                    self.push(seq)

    def _lane_head(self, lane: str) -> Sequence | None:
        heap = self._lanes[lane]
        while heap and heap[0][1].id not in self._members:
            heapq.heappop(heap)
        if heap:
            return heap[0][1]
        del self._lanes[lane]
        return None
