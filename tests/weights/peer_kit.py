"""Nodes with a store and a server, and peers that do not behave."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tickertape.core.sources import FileEntry
from tickertape.weights.ledger import Ledger
from tickertape.weights.objects import DigestWriter
from tickertape.weights.peers.server import PeerServer
from tickertape.weights.store import Store

TOKEN = "hush-hush-4711"


def put(store: Store, content: bytes) -> FileEntry:
    tmp = store.root / "tmp"
    tmp.mkdir(parents=True, exist_ok=True)
    with DigestWriter(tmp / "draft") as out:
        out.write(content)
    store.objects.adopt(out.path, out.sha256)
    return FileEntry("file", len(content), out.sha256)


class Node:
    """A store and the server over it."""

    def __init__(self, root: Path, host: str = "127.0.0.1", port: int = 0, **more: Any) -> None:
        self.store = Store(root)
        self.ledger = Ledger()
        options = {"token": TOKEN, "max_uploads": 4, "max_mbps": None, "ledger": self.ledger, **more}
        self.server = PeerServer(self.store, host, port, **options)
        self.port = self.server.port
        self.name = f"{host}:{self.port}"

    def put(self, content: bytes) -> FileEntry:
        return put(self.store, content)

    def close(self) -> None:
        self.server.close()
        self.store.close()


class Asked:
    """A request as a misbehaving peer sees it; `connection` is its to do with what it likes."""

    def __init__(self, connection: socket.socket, head: bytes) -> None:
        lines = head.decode("latin-1").split("\r\n")
        self.connection = connection
        self.target = lines[0].split()[1]
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:] if line)}

    @property
    def span(self) -> tuple[int, int]:
        first, _, last = self.headers["range"].removeprefix("bytes=").partition("-")
        return int(first), int(last) + 1

    def answer(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        self.begin(status, len(body), headers)
        self.connection.sendall(body)

    def begin(self, status: int, length: int, headers: Mapping[str, str] | None = None) -> None:
        lines = [f"HTTP/1.1 {status} So", f"Content-Length: {length}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self.connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())


def piece_headers(asked: Asked, entry: FileEntry) -> dict[str, str]:
    """What belongs to a right answer to a range."""
    start, end = asked.span
    return {"ETag": f'"{entry.sha256}"', "Content-Range": f"bytes {start}-{end - 1}/{entry.size_bytes}"}


class Stranger:
    """A peer that claims to hold some files and answers requests for them by `behave`: when that returns the connection
    waits for the next request, when it raises OSError it is closed."""

    def __init__(
        self, behave: Callable[[Asked], None], *held: FileEntry, host: str = "127.0.0.1", store: str = "stranger"
    ) -> None:
        self.asked: list[Asked] = []
        self.num_connections = 0
        self._behave = behave
        self._whole = {entry.sha256: entry.size_bytes for entry in held}
        self._store = store
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server((host, 0))
        self.port: int = self._listener.getsockname()[1]
        self.name = f"{host}:{self.port}"
        self._threads.append(threading.Thread(target=self._accept))
        self._threads[0].start()

    @property
    def asked_for_objects(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.target != "/weights"]

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.num_connections += 1
                self._connections.append(connection)
                self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
                self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while head := _read_head(connection):
                asked = Asked(connection, head)
                self.asked.append(asked)
                if asked.target == "/weights":
                    listing = {"store": self._store, "whole": self._whole}
                    asked.answer(200, json.dumps(listing).encode(), {"Tickertape-Store": self._store})
                else:
                    self._behave(asked)


def until_gone(connection: socket.socket) -> None:
    """Waits until the other side has closed."""
    while connection.recv(1024):
        pass


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def named(content: bytes) -> FileEntry:
    return FileEntry("file", len(content), hashlib.sha256(content).hexdigest())


def _read_head(connection: socket.socket) -> bytes:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        if not (byte := connection.recv(1)):
            return b""
        head += byte
    return head
