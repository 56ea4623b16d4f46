"""Who the peers are, and what they say they hold."""

from __future__ import annotations

import logging
import random
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Final

import msgspec

from tickertape.weights.peers.connection import Address, Answer, Connections, Unanswered
from tickertape.weights.peers.peer import Peer
from tickertape.weights.peers.wire import STORE, Inventory, authorization

__all__ = ["Resolver", "Roster", "resolve"]

Resolver = Callable[[str, int], Sequence[Address]]
"""A host name and a port to all addresses behind them. Raises OSError."""

_EVERY_S: Final = 0.2
_LOOK_UP_EVERY_S: Final = 0.9
_ROUND_S: Final = 1.0
_MOST_ASKED: Final = 8
_SAME_STORE_REST_S: Final = 60.0
_MAX_INVENTORY_BYTES: Final = 16 << 20

_log = logging.getLogger(__name__)


def resolve(host: str, port: int) -> Sequence[Address]:
    """By the system's resolver. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys((str(address[0]), port) for *_, address in found))


class Roster:
    """The peers behind some HOST:PORT names, each of which may stand for many addresses and is resolved anew every
    second or so: that is how a headless Service tells who is there. Servers over our own `store` are none.

    A round asks at most eight peers for their inventory, chosen by lot when there are more, all at once and with short
    timeouts; whoever has not answered when it ends is heard later. Thread-safe; of several callers one does the round.
    """

    def __init__(
        self,
        names: Iterable[str],
        connections: Connections,
        *,
        store: str,
        token: str | None,
        resolver: Resolver = resolve,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._names = [_split(name) for name in names]
        self._connections = connections
        self._store = store
        self.headers = [(STORE, store), *([("Authorization", authorization(token))] if token is not None else [])]
        self._resolver = resolver
        self._clock = clock
        self._rng = rng or random.Random()
        self._addresses: dict[tuple[str, int], Sequence[Address]] = {}
        self._peers: dict[Address, Peer] = {}
        self._asked_at = self._looked_up_at = float("-inf")
        self._pending: dict[object, Future[None]] = {}
        self._warned: set[Address] = set()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_MOST_ASKED, thread_name_prefix="peers-ask")

    def peers(self) -> Collection[Peer]:
        """Those there were when last looked."""
        return list(self._peers.values())

    def refresh(self) -> None:
        """Does a round unless one began a moment ago."""
        if not self._lock.acquire(blocking=not self._peers):
            return  # somebody is at it; what is known will do
        try:
            now = self._clock()
            if now - self._asked_at < _EVERY_S:
                return
            self._asked_at = now
            with suppress(RuntimeError):  # closed meanwhile: the pool takes nothing more
                self._round()
        finally:
            self._lock.release()

    def close(self) -> None:
        """Call it after the connections were closed, so that there is nothing to wait for."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _round(self) -> None:
        if self._asked_at - self._looked_up_at >= _LOOK_UP_EVERY_S:
            self._looked_up_at = self._asked_at
            self._wait({("name", *name): self._submit(("name", *name), self._look_up, name) for name in self._names})
        current = {address for addresses in self._addresses.values() for address in addresses}
        self._peers = {address: self._peers.get(address) or Peer(address) for address in sorted(current)}
        now = self._clock()
        willing = [peer for peer in self._peers.values() if not peer.is_resting(now)]
        asked = willing if len(willing) <= _MOST_ASKED else self._rng.sample(willing, _MOST_ASKED)
        self._wait({peer.address: self._submit(peer.address, self._ask, peer) for peer in asked})

    def _submit(self, key: object, work: Callable[..., None], *arguments: object) -> Future[None]:
        pending = self._pending.get(key)
        if pending is None or pending.done():
            pending = self._pending[key] = self._pool.submit(work, *arguments)
        return pending

    def _wait(self, jobs: dict[object, Future[None]]) -> None:
        done, _ = wait(jobs.values(), _ROUND_S)
        for job in done:
            if not job.cancelled():
                job.result()
        self._pending = {key: job for key, job in self._pending.items() if not job.done()}

    def _look_up(self, name: tuple[str, int]) -> None:
        try:
            self._addresses[name] = self._resolver(*name)
        except OSError as error:
            _log.debug("peer %s:%d is not resolved: %s", *name, error)  # whoever was there before may still be

    def _ask(self, peer: Peer) -> None:
        known = [("If-None-Match", peer.listing_etag)] if peer.listing_etag else []
        try:
            connection, answer = self._connections.ask(peer.address, "/weights", [*self.headers, *known])
            try:
                self._heard(peer, answer, connection.read() if answer.length <= _MAX_INVENTORY_BYTES else b"")
            finally:
                self._connections.give_back(connection)
        except (Unanswered, msgspec.DecodeError) as error:
            _log.debug("peer %s:%d: %s", *peer.address, error)
            peer.failed(self._clock())

    def _heard(self, peer: Peer, answer: Answer, body: bytes) -> None:
        if answer.headers.get(STORE.lower()) == self._store:
            peer.rest(self._clock() + _SAME_STORE_REST_S)  # ourselves, or somebody over the same store
            return
        if answer.status == 304:
            peer.answered()
        elif answer.status == 200:
            peer.told(msgspec.json.decode(body, type=Inventory), answer.headers.get("etag", ""))
            peer.answered()
        elif answer.status == 503:
            pass  # too many connections: what it told before still stands
        else:
            if peer.address not in self._warned:
                self._warned.add(peer.address)
                _log.warning("peer %s:%d answers %d: is the token the same?", *peer.address, answer.status)
            peer.failed(self._clock())


def _split(name: str) -> tuple[str, int]:
    host, _, port = name.rpartition(":")
    return host.strip("[]"), int(port)
