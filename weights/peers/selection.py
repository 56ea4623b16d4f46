"""Which peer to ask for what."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Final

from msgspec import Struct

from tickertape.weights.fetch.ports import Offer
from tickertape.weights.peers.attempt import BLOCK_BYTES, Lacking, Refused, Span
from tickertape.weights.peers.peer import Peer
from tickertape.weights.peers.roster import Roster

__all__ = ["Choice", "Selection"]

_MOST_PEERS: Final = 4
_JITTER_S: Final = 0.05

_log = logging.getLogger(__name__)


class Choice(Struct, frozen=True):
    """A peer to ask, and up to where it has what is wanted."""

    peer: Peer
    end: int


class Selection:
    """Remembers who gave what and who failed. Thread-safe.

    Of those who have a file: the one with the fewest requests of ours running, the faster first, of equals the one with
    less to give, for the others are wanted for the rest. Who alone has something that we lack is asked for what others
    have only when these cannot be asked: what it sends twice keeps the rest waiting. Four peers at once at most, if
    these have what is wanted.
    """

    def __init__(
        self, roster: Roster, clock: Callable[[], float] = time.monotonic, rng: random.Random | None = None
    ) -> None:
        self._roster = roster
        self._clock = clock
        self._rng = rng or random.Random()
        self._senders: defaultdict[str, set[Peer]] = defaultdict(set)
        self._only_holders: frozenset[Peer] = frozenset()
        self._lock = threading.Lock()

    def offers(self, digests: Iterable[str]) -> Mapping[str, Offer]:
        now, found, only_holders = self._clock(), {}, set()
        peers = [peer for peer in self._roster.peers() if not peer.is_resting(now)]
        for sha256 in digests:
            whole = [peer for peer in peers if peer.holds_whole(sha256)]
            partial = [peer for peer in peers if peer.holds_part(sha256)]
            if whole or partial:
                stores = {peer.store for peer in whole}
                if len(stores) == 1:
                    only_holders.update(whole)
                begun = {peer.store for peer in partial} - stores
                ranges = {held for peer in partial for held in peer.ranges(sha256)}
                found[sha256] = Offer(len(stores), len(begun), tuple(sorted(ranges)))
        self._only_holders = frozenset(only_holders)
        return found

    def holders(self, sha256: str) -> list[Peer]:
        """Of the whole object, in any order."""
        now = self._clock()
        found = [peer for peer in self._roster.peers() if peer.holds_whole(sha256) and not peer.is_resting(now)]
        self._rng.shuffle(found)
        return found

    def choose(self, span: Span, without: Set[Peer]) -> Choice | float | None:
        """The best peer that has bytes from `span.start` on; or the seconds until one that has them may be asked again;
        or None, when nobody has them."""
        now = self._clock()
        peers = [peer for peer in self._roster.peers() if not peer.is_resting(now)]
        ends = {peer: peer.held_until(span.sha256, span.start, span.size_bytes) for peer in peers}
        having = [peer for peer in peers if ends[peer] > span.start and peer not in without]
        having = [peer for peer in having if peer not in self._only_holders] or having
        free = [peer for peer in having if peer.free_at(span.sha256) <= now]
        if not free:
            return min((peer.free_at(span.sha256) - now for peer in having), default=None)
        active = {peer for peer in peers if peer.num_active}
        if len(active) >= _MOST_PEERS:
            free = [peer for peer in free if peer in active] or free
        best = min(free, key=self._rank)
        return Choice(best, min(ends[best], span.end))

    def failed(self, peer: Peer, span: Span, error: Exception) -> None:
        """What it did instead of giving."""
        if isinstance(error, Refused):
            pause_s = error.retry_after_s + min(_JITTER_S, error.retry_after_s / 4) * self._rng.random()
            peer.refused(span.sha256 if error.is_object else "", self._clock() + pause_s)
        elif isinstance(error, Lacking):
            peer.lacks(span.sha256)
        else:
            _log.info("peer %s:%d: %s", *peer.address, error)
            peer.failed(self._clock())

    def gave(self, peer: Peer, span: Span, num_bytes: int, seconds: float) -> None:
        if num_bytes == BLOCK_BYTES:  # a small one says little about speed
            peer.gave(num_bytes, seconds)
        with self._lock:
            self._senders[span.sha256].add(peer)

    def reject(self, sha256: str) -> None:
        """What they sent of an object was wrong."""
        with self._lock:
            senders = self._senders.pop(sha256, set())
        for peer in senders:
            _log.warning("peer %s:%d sent bytes of a file that turned out wrong", *peer.address)
            peer.distrust(sha256, alone=len(senders) == 1)

    def _rank(self, peer: Peer) -> tuple[int, int, int, float]:
        speed = int(math.log2(peer.bytes_per_s)) if peer.bytes_per_s >= 1 else 64  # not known: worth a try
        return peer.num_active, -speed, peer.num_held, self._rng.random()
