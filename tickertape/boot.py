"""The first moments of a server: binds the port, says so, starts the children, answers probes. Standard library only,
so that all of it is done long before the app is imported; the app then takes the same socket over."""

from __future__ import annotations

import json
import os
import signal
import socket
from types import FrameType, TracebackType

from tickertape.children import Child, start_child
from tickertape.responder import Responder
from tickertape.start_turn import StartTurn

__all__ = ["FETCHER", "WORKER", "BindError", "Boot"]

FETCHER = "tickertape.fetcher"
WORKER = "tickertape.worker"

_BACKLOG = 2048


class BindError(Exception):
    """The address cannot be listened on. The message is one line for the operator."""


class Boot:
    """What the front takes over: the listener, the children, and the connections nobody has answered yet.

    With `tls` nobody is answered before the app is there: a connection half-way through its handshake could not be
    handed over. Clients wait in the listener's backlog for that second.

    A context manager: on the way out, however that comes, children still running are killed and the socket is closed.
    `grpc_port` None: no gRPC. Its port is only held here, by a socket that does not listen: gRPC makes its own.
    `turn` is waited for, with the port answering, before anything is started; the front lets go of it.

    SIGTERM and SIGINT end the process at once until the front installs handlers of its own.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        num_workers: int,
        tls: bool = False,
        grpc_port: int | None = None,
        turn: StartTurn | None = None,
    ) -> None:
        self.listener = bind(host, port)
        self.reserved = None if grpc_port is None else reserve(host, grpc_port)
        self.port: int = self.listener.getsockname()[1]
        self._children: list[Child] = []
        self._responder = None if tls else Responder(self.listener)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _exit_now)
        if self._responder is not None:
            self._responder.start()
        grpc = None if self.reserved is None else self.reserved.getsockname()[1]
        print(json.dumps({"port": self.port, "grpc_port": grpc, "pid": os.getpid()}), flush=True)
        self.turn = turn
        if turn is not None:
            turn.take()
        self.fetcher = self.start_child(FETCHER)
        # Workers import their libraries while the fetcher works; they are told their model later.
        self.workers = [self.start_child(WORKER) for _ in range(num_workers)]

    def start_child(self, module: str) -> Child:
        """Starts a child and remembers it. Call from the main thread: children die with the thread that made them."""
        child = start_child(module)
        self._children = [c for c in self._children if c.process.poll() is None] + [child]
        return child

    def stop_responding(self) -> list[tuple[socket.socket, bytes]]:
        """Ends the answers from here. Returns the connections not yet answered, with the bytes they have sent; new
        ones wait in the listener's backlog."""
        responder, self._responder = self._responder, None
        return [] if responder is None else responder.stop()

    def kill_children(self) -> None:
        for child in self._children:
            child.kill()

    def __enter__(self) -> Boot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection, _ in self.stop_responding():
            connection.close()
        self.kill_children()
        self.listener.close()
        if self.reserved is not None:
            self.reserved.close()


def bind(host: str, port: int) -> socket.socket:
    """A listening socket on the first address that `host` stands for. Raises BindError."""
    listener = _bound(host, port)
    try:
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise _refusal(host, port, error) from error
    return listener


def reserve(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen, whose port another socket of this user may take that sets SO_REUSEPORT.
    Raises BindError when somebody has the port, whatever options that set."""
    reserved = _bound(host, port)
    # For old connections on the port it was enough at the bind; from now on it would let others bind too.
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return reserved


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise BindError(f"cannot listen on {host}: {error.strerror or error}") from error
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise _refusal(host, port, error) from error
    return bound


def _refusal(host: str, port: int, error: OSError) -> BindError:
    return BindError(f"cannot listen on {host}:{port}: {(error.strerror or str(error)).lower()}")


def _exit_now(number: int, _: FrameType | None) -> None:
    # Nothing is served yet. Raising SystemExit here could land in any import, or be swallowed by a destructor; the
    # children see their sockets close.
    os._exit(0)
