"""Other servers' weights: who has what, and the bytes from whoever gives them soonest."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import suppress
from typing import Final

import msgspec

from tickertape.core.sources import CHUNK_BYTES, FileEntry
from tickertape.weights.fetch.ports import Offer, PeerFault
from tickertape.weights.peers.attempt import Attempt, Span
from tickertape.weights.peers.connection import Connections, Patience, Unanswered
from tickertape.weights.peers.pace import Pace
from tickertape.weights.peers.peer import Peer
from tickertape.weights.peers.reading import Reading
from tickertape.weights.peers.roster import Resolver, Roster, resolve
from tickertape.weights.peers.selection import Selection

__all__ = ["PeerClient"]

_MAX_CHUNKS_BYTES: Final = 4 << 20


class PeerClient:
    """`Peers` over HTTP; what its methods do stands in `weights/fetch/ports.py`.

    `names` are HOST:PORT, `store` the identity of our own store, whose servers are no peers. A late block is asked for
    twice; who says 503 is left alone until the time it names; who fails rests, longer each time. `busy_patience_s` is
    how long a read waits while everybody is busy: the caller may have other files to ask for. That what comes is right,
    the caller has to find out; here it is the right range of a file of that name and size.
    """

    def __init__(
        self,
        names: Iterable[str],
        *,
        store: str,
        token: str | None,
        resolver: Resolver = resolve,
        patience: Patience | None = None,
        busy_patience_s: float = 0.05,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._connections = Connections(patience or Patience())
        self._roster = Roster(
            names, self._connections, store=store, token=token, resolver=resolver, clock=clock, rng=rng
        )
        self._selection = Selection(self._roster, clock, rng)
        self._pace = Pace()
        self._busy_patience_s = busy_patience_s
        self._chunks: dict[str, tuple[str, ...]] = {}
        self._attempts: set[Attempt] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def offers(self, entries: Collection[FileEntry]) -> Mapping[str, Offer]:
        if not self._closed.is_set():
            self._roster.refresh()
        return self._selection.offers({entry.sha256 for entry in entries if entry.sha256 is not None})

    def read(self, entry: FileEntry, start: int, end: int) -> Generator[memoryview, None, None]:
        if entry.sha256 is None:
            raise PeerFault("peers know files by their sha256 only")
        span = Span(entry.sha256, start, end, entry.size_bytes)
        reading = Reading(span, self._selection, self._begin, self._pace, self._closed.wait, self._busy_patience_s)
        return reading.blocks()

    def chunks(self, entry: FileEntry) -> tuple[str, ...]:
        sha256, size_bytes = entry.sha256, entry.size_bytes
        if sha256 is None or not size_bytes:
            return ()
        if size_bytes <= CHUNK_BYTES:
            return (sha256,)
        if sha256 not in self._chunks:
            for peer in self._selection.holders(sha256)[:2]:
                if digests := self._ask_chunks(peer, sha256, -(-size_bytes // CHUNK_BYTES)):
                    self._chunks[sha256] = digests
                    break
        return self._chunks.get(sha256, ())

    def reject(self, sha256: str) -> None:
        self._chunks.pop(sha256, None)
        self._selection.reject(sha256)

    def close(self) -> None:
        """Ends what is being read: it raises PeerFault. May be called twice."""
        self._closed.set()
        self._connections.close()
        self._roster.close()
        with self._lock:
            attempts = list(self._attempts)
        for attempt in attempts:
            attempt.cancel()
            attempt.join()

    def _begin(self, peer: Peer, span: Span, wake: threading.Condition) -> Attempt:
        attempt = Attempt(self._connections, peer.address, span, self._roster.headers, wake)
        with self._lock:
            self._attempts = {attempt for attempt in self._attempts if not attempt.has_ended} | {attempt}
        attempt.start()
        return attempt

    def _ask_chunks(self, peer: Peer, sha256: str, number: int) -> tuple[str, ...]:
        with suppress(Unanswered, msgspec.DecodeError):
            connection, answer = self._connections.ask(peer.address, f"/weights/{sha256}/chunks", self._roster.headers)
            try:
                if answer.status == 200 and answer.length <= _MAX_CHUNKS_BYTES:
                    digests = msgspec.json.decode(connection.read(), type=tuple[str, ...])
                    return digests if len(digests) == number else ()
            finally:
                self._connections.give_back(connection)
        return ()
