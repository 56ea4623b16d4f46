"""One request to one peer for a range of an object, read ahead by a thread of its own."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from tickertape.weights.peers.connection import BLOCK_BYTES, Address, Answer, Connection, Connections, Unanswered
from tickertape.weights.peers.wire import BUSY, RETRY_AFTER_MS, etag

__all__ = ["BLOCK_BYTES", "Attempt", "Lacking", "Refused", "Span"]

_NUM_BLOCKS: Final = 3
_RETRY_S: Final = 1.0


class Span(Struct, frozen=True):
    """The bytes [start, end) of an object; `size_bytes` of the whole is None when it is not known."""

    sha256: str
    start: int
    end: int
    size_bytes: int | None


class Lacking(Exception):
    """The peer has not got that."""


class Refused(Exception):
    """Not now; `is_object` when only this object is meant."""

    def __init__(self, retry_after_s: float, *, is_object: bool) -> None:
        super().__init__(retry_after_s)
        self.retry_after_s = retry_after_s
        self.is_object = is_object


class Attempt:
    """Fills blocks until the range ends, it is cancelled or it fails; no more than three wait to be taken. `wake`
    guards its state and is notified of every change: several attempts share one.
    """

    def __init__(
        self,
        connections: Connections,
        address: Address,
        span: Span,
        headers: Sequence[tuple[str, str]],
        wake: threading.Condition,
    ) -> None:
        self.span = span
        self.error: Exception | None = None
        self.has_ended = False
        self._connections = connections
        self._address = address
        self._headers = headers
        self._wake = wake
        self._connection: Connection | None = None
        self._is_cancelled = False
        self._ready: deque[tuple[memoryview, float]] = deque()
        length = min(BLOCK_BYTES, span.end - span.start)
        num_blocks = min(_NUM_BLOCKS, -(-(span.end - span.start) // BLOCK_BYTES))
        self._free = [memoryview(bytearray(length)) for _ in range(num_blocks)]
        self._thread = threading.Thread(target=self._run, name="peers-read", daemon=True)

    @property
    def has_something(self) -> bool:
        """A block, or its end."""
        return bool(self._ready) or self.has_ended

    def start(self) -> None:
        self._thread.start()

    def take(self) -> tuple[memoryview, float] | None:
        """The next block and the seconds it took, without those spent waiting for a taker; None when there is none.
        `recycle` it when it has been used."""
        with self._wake:
            return self._ready.popleft() if self._ready else None

    def recycle(self, block: memoryview) -> None:
        with self._wake:
            self._free.append(block)
            self._wake.notify_all()

    def cancel(self) -> None:
        """Its connection is closed at once, unless it has come to the end."""
        with self._wake:
            self._is_cancelled = True
            if self._connection is not None:
                self._connection.abort()
            self._wake.notify_all()

    def join(self) -> None:
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            self._transfer()
        except (Unanswered, Lacking, Refused) as error:
            self.error = error
        except Exception as error:  # whatever it is, the reader must hear of it
            self.error = error
        finally:
            with self._wake:
                self.has_ended = True
                self._wake.notify_all()

    def _transfer(self) -> None:
        span = self.span
        started = time.monotonic()
        wanted = [("Range", f"bytes={span.start}-{span.end - 1}"), ("If-Match", etag(span.sha256))]
        target, headers = f"/weights/{span.sha256}", [*self._headers, *wanted]
        connection, answer = self._connections.ask(self._address, target, headers, self._use)
        try:
            _check(answer, span)
            self._fill_blocks(connection, started)
        finally:
            with self._wake:
                self._connection = None
            self._connections.give_back(connection)

    def _use(self, connection: Connection) -> None:
        with self._wake:
            if self._is_cancelled:
                raise Unanswered("nobody wants it any more")
            self._connection = connection

    def _fill_blocks(self, connection: Connection, started: float) -> None:
        left = self.span.end - self.span.start
        while left:
            free = self._next_free()
            if free is None:
                return
            block = free[: min(len(free), left)]
            started = started or time.monotonic()
            connection.fill(block)
            left -= len(block)
            with self._wake:
                self._ready.append((block, time.monotonic() - started))
                if not left:
                    self._connection = None  # it may be used again: nobody is to abort it any more
                self._wake.notify_all()
            started = 0.0

    def _next_free(self) -> memoryview | None:
        with self._wake:
            while not self._free and not self._is_cancelled:
                self._wake.wait()
            return None if self._is_cancelled else self._free.pop()


def _check(answer: Answer, span: Span) -> None:
    """That it is exactly what was asked for. Raises Refused, Lacking and Unanswered."""
    if answer.status == 503:
        raise Refused(_retry_after_s(answer), is_object=answer.headers.get(BUSY.lower()) == "object")
    if answer.status in (404, 412, 416):
        raise Lacking
    if answer.status != 206 or answer.headers.get("etag") != etag(span.sha256):
        raise Unanswered(f"answers {answer.status} to a range")
    place, _, total = answer.headers.get("content-range", "").partition("/")
    if place != f"bytes {span.start}-{span.end - 1}" or answer.length != span.end - span.start:
        raise Unanswered("answers with another range")
    if span.size_bytes is not None and total != str(span.size_bytes):
        raise Unanswered("answers with another size")


def _retry_after_s(answer: Answer) -> float:
    for name, unit_s in ((RETRY_AFTER_MS.lower(), 1e-3), ("retry-after", 1.0)):
        value = answer.headers.get(name, "")
        if value.isascii() and value.isdigit() and len(value) <= 6:
            return int(value) * unit_s
    return _RETRY_S
