"""What a store has to give: verified objects, and verified chunks of those under way."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct

from tickertape.core.sources import CHUNK_BYTES
from tickertape.weights.objects import Objects
from tickertape.weights.peers.catalog import PartialCatalog
from tickertape.weights.peers.wire import Inventory

__all__ = ["Listing", "Shelf", "Volume"]

_FRESH_S: Final = 0.1
_SCAN_SHARE: Final = 0.05
_READ_BYTES: Final = 1 << 20

_log = logging.getLogger(__name__)


class Listing(Struct, frozen=True):
    """An inventory as it goes over the wire."""

    body: bytes
    etag: str


class Volume(Struct, frozen=True):
    """A file to read from: `fd` is the taker's to close. Only what lies in `ranges` may be handed on."""

    fd: int
    size_bytes: int
    ranges: tuple[tuple[int, int], ...]

    @property
    def is_whole(self) -> bool:
        return self.ranges == ((0, self.size_bytes),) or self.size_bytes == 0

    def covers(self, start: int, end: int) -> bool:
        return any(first <= start and end <= last for first, last in self.ranges)


class Shelf:
    """Thread-safe. Looking never hashes and never writes, but for the chunk digests, which are computed once, by a
    thread of their own, and remembered."""

    def __init__(
        self, objects: Objects, partials: PartialCatalog, store: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._objects = objects
        self._partials = partials
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._listing = Listing(b"", "")
        self._stale_at = clock()
        self._digesting: dict[str, _Digesting] = {}
        self._threads: list[threading.Thread] = []
        self._closed = threading.Event()

    def listing(self) -> Listing:
        """Looks again when what is known is a moment old. The larger the store, the longer a moment, so that looking
        takes a small share of the time however many ask."""
        with self._lock:
            started = self._clock()
            if started >= self._stale_at:
                body = msgspec.json.encode(self._inventory(), order="deterministic")
                self._listing = Listing(body, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
                took_s = self._clock() - started
                self._stale_at = started + max(_FRESH_S, took_s / _SCAN_SHARE)
            return self._listing

    def open(self, sha256: str) -> Volume | None:
        """None when nothing of it is held."""
        if (fd := self._objects.open_verified(sha256)) is not None:
            size_bytes = os.fstat(fd).st_size
            return Volume(fd, size_bytes, ((0, size_bytes),))
        if (found := self._partials.open(sha256)) is not None:
            fd, partial = found
            return Volume(fd, partial.size_bytes, partial.ranges)
        return None

    def chunks(self, sha256: str, patience_s: float) -> tuple[str, ...] | None:
        """The digests of the chunks of an object; () when it is not held whole, None when they are not known after
        `patience_s`: they are being computed."""
        if known := self._objects.chunk_digests(sha256):
            return known
        with self._lock:
            job = self._digesting.get(sha256)
            if job is None:
                if (fd := self._objects.open_verified(sha256)) is None:
                    return ()
                job = self._digesting[sha256] = _Digesting(fd)
                self._start(threading.Thread(target=self._digest, args=(sha256, job), name="peers-digest", daemon=True))
        return job.result if job.done.wait(patience_s) else None

    def close(self) -> None:
        """Ends the computing of digests."""
        self._closed.set()
        with self._lock:
            threads, self._threads = self._threads, []
        for thread in threads:
            thread.join()

    def _start(self, thread: threading.Thread) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()] + [thread]
        thread.start()

    def _inventory(self) -> Inventory:
        partials = self._partials.partials()  # first: what becomes an object meanwhile is in both, not in neither
        whole = dict(self._objects.verified())
        rest = sorted((partial for partial in partials if partial.sha256 not in whole), key=lambda each: each.sha256)
        return Inventory(self._store, whole, tuple(rest))

    def _digest(self, sha256: str, job: _Digesting) -> None:
        try:
            digests = self._read_chunks(job.fd)
            if digests and (again := self._objects.open_verified(sha256)) is not None:  # nobody touched it meanwhile
                os.close(again)
                job.result = digests
                self._objects.note_chunks(sha256, digests)
        except OSError as error:
            _log.info("the chunk digests of an object are not kept: %s", error.strerror)
        finally:
            os.close(job.fd)
            job.done.set()
            if not job.result or self._objects.chunk_digests(sha256):
                with self._lock:
                    del self._digesting[sha256]  # else it is what remembers them

    def _read_chunks(self, fd: int) -> tuple[str, ...]:
        size_bytes, buffer = os.fstat(fd).st_size, memoryview(bytearray(_READ_BYTES))
        digests = []
        for start in range(0, size_bytes, CHUNK_BYTES):
            digest, position, end = hashlib.sha256(), start, min(size_bytes, start + CHUNK_BYTES)
            while position < end:
                if self._closed.is_set():
                    return ()
                count = os.preadv(fd, [buffer[: end - position]], position)
                if not count:
                    return ()
                digest.update(buffer[:count])
                position += count
            digests.append(digest.hexdigest())
        return tuple(digests)


class _Digesting:
    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.done = threading.Event()
        self.result: tuple[str, ...] = ()
