"""The asking end of HTTP/1.1 between peers: kept open, read straight into the caller's memory, no redirects, proxies or
cookies. h11 reads the heads; an answer must say how long it is.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import h11
from msgspec import Struct

from tickertape.weights.peers.wire import MAX_HEAD_BYTES

__all__ = ["BLOCK_BYTES", "Address", "Answer", "Connection", "Connections", "Patience", "Unanswered"]

Address = tuple[str, int]

BLOCK_BYTES: Final = 512 << 10

_RECV_BYTES: Final = 16 << 10
_IDLE_PER_PEER: Final = 4
_IDLE_IN_ALL: Final = 32


class Patience(Struct, frozen=True):
    """Seconds to wait for a connection, for the head of an answer, and for the next bytes of its body. Who takes longer
    than `block_s` for BLOCK_BYTES of it, however steadily, is no help: the origin may be free."""

    connect_s: float = 1.0
    head_s: float = 5.0
    stall_s: float = 10.0
    block_s: float = 8.0


class Unanswered(Exception):
    """The peer is not there, silent, or does not speak the protocol."""


class _Stale(Unanswered):
    """It was closed before an answer began: so it goes with a connection that was idle for too long."""


class Answer(Struct, frozen=True):
    """`headers` by lower-case name; `length` is what the body has."""

    status: int
    headers: Mapping[str, str]
    length: int


class Connection:
    """One request after another. Used by one thread at a time; `abort` may be called by any. Errors are Unanswered."""

    def __init__(self, address: Address, patience: Patience) -> None:
        self.address = address
        self.num_requests = 0
        self._patience = patience
        self._left = 0
        self._early = memoryview(b"")  # of the body, read with the head
        self._closes = False
        try:
            self._socket = socket.create_connection(address, patience.connect_s)
        except OSError as error:
            raise Unanswered(f"no connection: {error.strerror or error}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def is_reusable(self) -> bool:
        return not self._left and not self._closes

    def ask(self, target: str, headers: Sequence[tuple[str, str]]) -> Answer:
        """GET; the body is read by `read_into` or `read`."""
        self.num_requests += 1
        http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        host, port = self.address
        named = ("Host", f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        try:
            request = http.send(h11.Request(method="GET", target=target, headers=[named, *headers])) or b""
            self._socket.settimeout(self._patience.head_s)
            self._socket.sendall(request + (http.send(h11.EndOfMessage()) or b""))
            response = self._response(http)
        except ConnectionError as error:
            raise _Stale(f"no answer: {error.strerror or error}") from error
        except OSError as error:
            raise Unanswered(f"no answer: {error.strerror or error}") from error
        except h11.RemoteProtocolError as error:
            raise Unanswered(f"not HTTP: {error}") from error
        return self._framed(http, response)

    def read_into(self, view: memoryview) -> int:
        """Some of the rest of the body, at least a byte of it."""
        most = min(len(view), self._left)
        if self._early:
            count = min(most, len(self._early))
            view[:count], self._early = self._early[:count], self._early[count:]
        else:
            try:
                count = self._socket.recv_into(view[:most])
            except OSError as error:
                raise Unanswered(f"broke off: {error.strerror or error}") from error
            if not count:
                raise Unanswered("broke off")
        self._left -= count
        return count

    def fill(self, view: memoryview) -> None:
        """The next bytes of the body, at most BLOCK_BYTES."""
        done, deadline = 0, time.monotonic() + self._patience.block_s
        while done < len(view):
            if time.monotonic() > deadline:
                raise Unanswered(f"sends less than {BLOCK_BYTES / self._patience.block_s / 1024:.0f} KiB a second")
            done += self.read_into(view[done:])

    def read(self) -> bytes:
        """The rest of the body."""
        body = bytearray(self._left)
        view, done = memoryview(body), 0
        while self._left:
            done += self.read_into(view[done:])
        return bytes(body)

    def abort(self) -> None:
        """Whoever reads from it raises Unanswered."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._closes = True
        self._socket.close()

    def _response(self, http: h11.Connection) -> h11.Response:
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                data = self._socket.recv(_RECV_BYTES)
                if not data:
                    raise _Stale("no answer: closed")
                http.receive_data(data)
            elif isinstance(event, h11.Response):
                return event
            else:
                raise Unanswered("an answer of another kind")

    def _framed(self, http: h11.Connection, response: h11.Response) -> Answer:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers}
        has_body = response.status_code not in (204, 304)
        if "transfer-encoding" in headers or (has_body and "content-length" not in headers):
            raise Unanswered("an answer that does not say how long it is")
        self._left = int(headers["content-length"]) if has_body else 0
        self._early = memoryview(http.trailing_data[0])
        if len(self._early) > self._left:
            raise Unanswered("an answer longer than it says")
        self._closes = response.http_version != b"1.1" or "close" in headers.get("connection", "").lower()
        self._socket.settimeout(self._patience.stall_s)
        return Answer(response.status_code, headers, self._left)


class Connections:
    """The open ones: a few idle ones are kept per peer. Thread-safe."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._closed = False
        self._lock = threading.Lock()

    def ask(
        self,
        address: Address,
        target: str,
        headers: Sequence[tuple[str, str]],
        using: Callable[[Connection], None] = lambda _: None,
    ) -> tuple[Connection, Answer]:
        """Hand the connection to `give_back` when its body is read. `using` hears of it before it is used; to refuse
        it, raise Unanswered, which is raised too when no answer comes."""
        while True:
            connection = self._take(address)
            is_new = connection.num_requests == 0
            try:
                using(connection)
                return connection, connection.ask(target, headers)
            except _Stale:
                self._drop(connection)
                if is_new:
                    raise
            except Unanswered:
                self._drop(connection)
                raise

    def give_back(self, connection: Connection) -> None:
        with self._lock:
            self._busy.discard(connection)
            same = sum(idle.address == connection.address for idle in self._idle)
            room = same < _IDLE_PER_PEER and len(self._idle) < _IDLE_IN_ALL
            if room and connection.is_reusable and not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    def _drop(self, connection: Connection) -> None:
        with self._lock:
            self._busy.discard(connection)
        connection.close()

    def close(self) -> None:
        """What is being read from raises Unanswered. May be called twice."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for connection in self._busy:
                connection.abort()
        for connection in idle:
            connection.close()

    def _take(self, address: Address) -> Connection:
        with self._lock:
            for connection in reversed(self._idle):
                if connection.address == address and not self._closed:
                    self._idle.remove(connection)
                    self._busy.add(connection)
                    return connection
        connection = Connection(address, self._patience)
        with self._lock:
            self._busy.add(connection)
            closed = self._closed
        if closed:
            self._drop(connection)
            raise Unanswered("closed")
        return connection
