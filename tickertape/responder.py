"""Answers HTTP while the server is still importing itself. Standard library only, one thread, one request per
connection; hands over whatever connection has not been answered yet. Standard library only."""

from __future__ import annotations

import json
import selectors
import socket
import threading
import time
from typing import Final

__all__ = ["Responder"]

_HEAD_END: Final = b"\r\n\r\n"
_MAX_HEAD_BYTES: Final = 64 << 10
_MAX_CONNECTIONS: Final = 512
_LINGER_S: Final = 2.0
_RETRY_AFTER: Final = "retry-after: 1\r\n"

_LOADING: Final = {
    "error": {"message": "The server is starting", "type": "server_error", "param": None, "code": "loading"}
}
_ANSWERS: Final[dict[str, tuple[str, str, object]]] = {
    "/livez": ("200 OK", "", {"status": "ok"}),
    "/startupz": ("200 OK", "", {"state": "starting", "reason": "Starting"}),
    "/readyz": ("503 Service Unavailable", _RETRY_AFTER, {"reason": "Starting", "eta_s": None}),
    "/health": ("503 Service Unavailable", _RETRY_AFTER, {"reason": "Starting", "eta_s": None}),
}


class _Connection:
    """`received` until the head is whole; `answered_at` from the answer on, when we only wait for the client's end:
    closing before the client has sent its whole body would reset the connection under the answer."""

    __slots__ = ("answered_at", "received", "socket")

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.received = b""
        self.answered_at: float | None = None


class Responder:
    """Serves a listening socket from `start` to `stop`; both are called by the owner's thread."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._wake, self._stopped = socket.socketpair()
        self._connections: dict[socket.socket, _Connection] = {}
        self._thread = threading.Thread(target=self._run, name="responder", daemon=True)

    def start(self) -> None:
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._stopped, selectors.EVENT_READ)
        self._thread.start()

    def stop(self) -> list[tuple[socket.socket, bytes]]:
        """Ends the thread. Returns the connections that were not answered, with the bytes they sent so far; they are
        the caller's now. The listener stays open."""
        self._wake.send(b"x")
        self._thread.join()
        self._selector.close()
        self._wake.close()
        self._stopped.close()
        unanswered = []
        for connection in self._connections.values():
            if connection.answered_at is None:
                unanswered.append((connection.socket, connection.received))
            else:
                connection.socket.close()
        self._connections.clear()
        return unanswered

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select(timeout=_LINGER_S / 2):
                if key.fileobj is self._stopped:
                    return
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._read(self._connections[key.fileobj])  # type: ignore[index]
            self._drop_lingering()

    def _accept(self) -> None:
        if len(self._connections) >= _MAX_CONNECTIONS:
            time.sleep(0.01)  # the backlog holds the rest
            return
        try:
            accepted, _ = self._listener.accept()
        except OSError:  # the client went away first, or no descriptor is left: it may try again
            return
        accepted.setblocking(False)
        self._connections[accepted] = _Connection(accepted)
        self._selector.register(accepted, selectors.EVENT_READ)

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.socket.recv(64 << 10)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close(connection)
        elif connection.answered_at is None:
            connection.received += data
            if _HEAD_END in connection.received or len(connection.received) > _MAX_HEAD_BYTES:
                self._answer(connection)

    def _answer(self, connection: _Connection) -> None:
        connection.answered_at = time.monotonic()
        try:
            connection.socket.send(_response(connection.received))
            connection.socket.shutdown(socket.SHUT_WR)
        except OSError:
            self._close(connection)

    def _drop_lingering(self) -> None:
        horizon = time.monotonic() - _LINGER_S
        for connection in list(self._connections.values()):
            if connection.answered_at is not None and connection.answered_at < horizon:
                self._close(connection)

    def _close(self, connection: _Connection) -> None:
        self._selector.unregister(connection.socket)
        del self._connections[connection.socket]
        connection.socket.close()


def _response(head: bytes) -> bytes:
    method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
    path = rest.partition(" ")[0].partition("?")[0]
    status, headers, body = _ANSWERS.get(path, ("503 Service Unavailable", _RETRY_AFTER, _LOADING))
    payload = json.dumps(body, separators=(",", ":")).encode()
    answer = (
        f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(payload)}\r\n"
        f"{headers}connection: close\r\n\r\n"
    )
    return answer.encode() + (b"" if method == "HEAD" else payload)
