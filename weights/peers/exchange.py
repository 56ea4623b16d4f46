"""The serving end of one HTTP/1.1 connection: requests in, answers out, every wait bounded.

h11 does the parsing: it refuses what is not HTTP/1.1, a head that is too long, and whatever could be read in two ways.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final

import h11
from msgspec import Struct

from tickertape.weights.peers.wire import MAX_HEAD_BYTES

__all__ = ["BadRequest", "Dropped", "Exchange", "Request", "Timeouts"]

_RECV_BYTES: Final = 8 << 10


class Timeouts(Struct, frozen=True):
    """`idle_s` until a request begins, `head_s` until it is whole; a reader may keep us waiting for `stall_s` plus a
    second for each `min_bytes_per_s` it took."""

    idle_s: float = 15.0
    head_s: float = 5.0
    stall_s: float = 10.0
    min_bytes_per_s: int = 256 << 10


class Dropped(Exception):
    """The other side is gone, too slow, or has nothing more to ask. Not an error of ours."""


class BadRequest(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Request(Struct, frozen=True):
    method: str
    target: str
    headers: Sequence[tuple[bytes, bytes]]

    def header(self, name: str) -> str | None:
        """None also when it is there more than once: then it is not for us to choose."""
        key = name.lower().encode()
        values = [value for known, value in self.headers if known == key]
        return values[0].decode("latin-1") if len(values) == 1 else None


class Exchange:
    """Used by one thread; `close` may be called from any."""

    def __init__(self, connection: socket.socket, timeouts: Timeouts) -> None:
        self._socket = connection
        self._timeouts = timeouts
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._poll = select.poll()
        self._waited_s = 0.0
        self._num_sent = 0

    def next_request(self) -> Request:
        """The next one, whose head is whole and which has no body. Raises BadRequest, after which one answer can be
        sent, and Dropped."""
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        if self._http.our_state is not h11.IDLE:
            raise Dropped
        try:
            request = self._event(self._timeouts.idle_s)
            if not isinstance(request, h11.Request):
                raise Dropped
            if request.http_version not in (b"1.1", b"1.0"):
                raise BadRequest(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
            if not isinstance(self._event(self._timeouts.head_s), h11.EndOfMessage):
                raise BadRequest(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        except h11.RemoteProtocolError as error:
            raise BadRequest(error.error_status_hint) from error
        return Request(request.method.decode(), request.target.decode("latin-1"), list(request.headers))

    def answer(self, status: int, headers: Sequence[tuple[str, str]], body: bytes = b"", *, last: bool = False) -> None:
        """A whole answer. Headers must say how long the body is or would be. `last`: nothing more is answered."""
        self.begin(status, headers, last=last)
        if body:
            self._send_all(self._http.send(h11.Data(data=body)) or b"")
        self.end()

    def begin(self, status: int, headers: Sequence[tuple[str, str]], *, last: bool = False) -> None:
        self._waited_s, self._num_sent = 0.0, 0
        everything = [*headers, ("Connection", "close")] if last else list(headers)
        reason = HTTPStatus(status).phrase
        self._send_all(self._http.send(h11.Response(status_code=status, headers=everything, reason=reason)) or b"")

    def send_file(self, fd: int, offset: int, num_bytes: int) -> int:
        """How many of these bytes of a file went out: one at least. Raises Dropped, also when the file is shorter."""
        while True:
            try:
                count = os.sendfile(self._socket.fileno(), fd, offset, num_bytes)
                break
            except BlockingIOError:
                self._wait_writable()
            except OSError as error:
                raise Dropped from error
        if not count:
            raise Dropped
        sent: Any = _Sent(count)
        self._http.send_with_data_passthrough(h11.Data(data=sent))
        self._num_sent += count
        return count

    def end(self) -> None:
        self._send_all(self._http.send(h11.EndOfMessage()) or b"")

    def close(self) -> None:
        """Wakes whoever waits for this connection; it raises Dropped."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _event(self, first_s: float) -> object:
        """The next event, whose first byte comes within `first_s` and the rest within `head_s`."""
        deadline, begun = time.monotonic() + first_s, False
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            if not self._ready(select.POLLIN, deadline - time.monotonic()):
                raise Dropped
            try:
                data = self._socket.recv(_RECV_BYTES)
            except BlockingIOError:
                continue
            except OSError as error:
                raise Dropped from error
            if data and not begun:
                begun, deadline = True, min(deadline, time.monotonic() + self._timeouts.head_s)
            self._http.receive_data(data)

    def _send_all(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                count = self._socket.send(rest)
            except BlockingIOError:
                self._wait_writable()
            except OSError as error:
                raise Dropped from error
            else:
                rest = rest[count:]

    def _wait_writable(self) -> None:
        patience_s = self._timeouts.stall_s + self._num_sent / self._timeouts.min_bytes_per_s - self._waited_s
        started = time.monotonic()
        if not self._ready(select.POLLOUT, min(patience_s, self._timeouts.stall_s)):
            raise Dropped
        self._waited_s += time.monotonic() - started

    def _ready(self, event: int, timeout_s: float) -> bool:
        if timeout_s <= 0:
            return False
        self._poll.register(self._socket, event)
        return bool(self._poll.poll(timeout_s * 1000))


class _Sent:
    """Stands for bytes that sendfile has sent: h11 only wants to know how many."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count
