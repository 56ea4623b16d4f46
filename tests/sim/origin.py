"""A fake origin of models: shaped like a hub, paced, limited and faulty as told, and with an exact memory.

    /api/models/ORG/NAME[/revision/REV]  the commit      as huggingface_hub asks for them
    /api/models/ORG/NAME/tree/REV        its files
    /ORG/NAME/resolve/REV/PATH           a file, with ranges, validators and the hub's headers

A file's URL serves as a plain HTTP origin too: strong ETags, Range, If-Range and If-Match.
"""

from __future__ import annotations

import json
import math
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, BinaryIO, Final, Self
from urllib.parse import parse_qs, unquote, urlsplit

from tests.sim.files import Commit, File, Repository
from tests.sim.traffic import Fault, Pace, RequestLimit, Served, TrafficLog

__all__ = ["Origin"]

_API: Final = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)(?:/(?P<what>revision|tree)/(?P<revision>[^/]+))?")
_FILE: Final = re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")
_RANGE: Final = re.compile(r"bytes=(\d+)-(\d*)")
_PACED_BYTES: Final = 64 << 10
_FREE_BYTES: Final = 4 << 20
_PACED_BUFFER_BYTES: Final = 256 << 10  # what counts as sent though it may never arrive


class Origin:
    """Serves from threads of this process while the block lasts. `fault` is asked about each request for a file and
    may be set at any time; so may `limit` and `token` (what clients must show)."""

    def __init__(self, *, host: str = "127.0.0.1", bytes_s: float | None = None, tls: ssl.SSLContext | None = None):
        self.log = TrafficLog()
        self.pace = Pace(bytes_s)
        self.limit: RequestLimit | None = None
        self.token: str | None = None
        self.fault: Callable[[Served], Fault | None] = lambda request: None
        self.closing = threading.Event()
        self.repositories: dict[str, Repository] = {}
        self._server = _Server((host, 0), self, tls)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="origin")
        self.url = f"{'http' if tls is None else 'https'}://{host}:{self._server.server_address[1]}"

    def add(self, name: str, commit: Commit) -> Repository:
        """`name` is ORG/NAME."""
        self.repositories[name] = Repository(commit)
        return self.repositories[name]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # server_close waits for them
    request_queue_size = 512

    def __init__(self, address: tuple[str, int], origin: Origin, tls: ssl.SSLContext | None) -> None:
        self.origin = origin
        self._tls = tls
        self._connections: set[socket.socket] = set()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self._tls is not None:
            request = self._tls.wrap_socket(request, server_side=True)  # here: in the connection's own thread
        if self.origin.pace.bytes_s is not None:
            request.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _PACED_BUFFER_BYTES)
        try:
            super().finish_request(request, client_address)
        finally:
            if self._tls is not None:
                request.close()

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        for connection in tuple(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients are killed all the time here


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        origin = self.server.origin
        request = Served(time.monotonic(), self.client_address[0], self.command, unquote(urlsplit(self.path).path))
        origin.log.begin(request)
        try:
            self._route(origin, request)
        except OSError:
            self.close_connection = True
        finally:
            request.ended_s = time.monotonic()

    def _route(self, origin: Origin, request: Served) -> None:
        if origin.limit is not None and (retry_after_s := origin.limit.admit()) is not None:
            self._refuse(request, HTTPStatus.TOO_MANY_REQUESTS, retry_after_s)
        elif origin.token is not None and self.headers["Authorization"] != f"Bearer {origin.token}":
            self._refuse(request, HTTPStatus.UNAUTHORIZED)
        elif match := _API.fullmatch(request.path):
            self._describe(request, self._commit(match), match)
        elif (match := _FILE.fullmatch(request.path)) and (commit := self._commit(match)):
            if (file := commit.files.get(match["path"])) is None:
                self._refuse(request, HTTPStatus.NOT_FOUND, code="EntryNotFound")
            else:
                self._give(request, commit, file, origin.fault(request) or Fault())
        else:
            self._refuse(request, HTTPStatus.NOT_FOUND, code="RepoNotFound")

    def _commit(self, match: re.Match[str]) -> Commit | None:
        repository = self.server.origin.repositories.get(match["repo"])
        return None if repository is None else repository.at(match["revision"] or "main")

    def _describe(self, request: Served, commit: Commit | None, match: re.Match[str]) -> None:
        if commit is None:
            known = match["repo"] in self.server.origin.repositories
            self._refuse(request, HTTPStatus.NOT_FOUND, code="RevisionNotFound" if known else "RepoNotFound")
        elif match["what"] == "tree":
            self._say(request, HTTPStatus.OK, commit.tree())
        else:
            siblings = commit.siblings(with_digests="blobs" in parse_qs(urlsplit(self.path).query))
            described = {"id": match["repo"], "modelId": match["repo"], "sha": commit.sha, "siblings": siblings}
            self._say(request, HTTPStatus.OK, described | {"private": False, "tags": [], "downloads": 0, "likes": 0})

    def _give(self, request: Served, commit: Commit, file: File, fault: Fault) -> None:
        if fault.status is not None:
            self._refuse(request, HTTPStatus(fault.status), fault.retry_after_s)
            return
        if (wanted := self.headers["If-Match"]) is not None and wanted not in ("*", file.etag):
            self._refuse(request, HTTPStatus.PRECONDITION_FAILED)
            return
        partial = None if fault.ignores_range else self._range(file)
        request.start, request.end = partial or (0, file.size_bytes)
        if partial is not None and request.start >= file.size_bytes:
            self._refuse(request, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
            return
        request.status = HTTPStatus.OK if partial is None else HTTPStatus.PARTIAL_CONTENT
        self.send_response(request.status)
        if partial is not None:
            self.send_header("Content-Range", f"bytes {request.start}-{request.end - 1}/{file.size_bytes}")
        self.send_header("Content-Length", str(request.end - request.start))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", file.etag)
        self.send_header("X-Repo-Commit", commit.sha)
        if file.large:
            self.send_header("X-Linked-Etag", f'"{file.sha256}"')
            self.send_header("X-Linked-Size", str(file.size_bytes))
        self.end_headers()
        if self.command == "GET":
            with file.path.open("rb") as content:
                self._send(request, content, fault)

    def _range(self, file: File) -> tuple[int, int] | None:
        match = _RANGE.fullmatch(self.headers["Range"] or "")
        if match is None or self.headers.get("If-Range", file.etag) != file.etag:
            return None
        return int(match[1]), min(int(match[2]) + 1 if match[2] else file.size_bytes, file.size_bytes)

    def _send(self, request: Served, content: BinaryIO, fault: Fault) -> None:
        origin = self.server.origin
        length = request.end - request.start
        stop = min(n for n in (length, fault.cut_after, fault.stall_after) if n is not None)
        while request.num_bytes < stop:
            paced = origin.pace.bytes_s is not None
            count = min(_PACED_BYTES if paced else _FREE_BYTES, stop - request.num_bytes)
            if paced and origin.closing.wait(origin.pace.reserve(count)):
                break
            at = request.start + request.num_bytes
            wrong = fault.wrong_at is not None and at <= fault.wrong_at < at + count
            sent = self._put(content, at, count, (fault.wrong_at or 0) - at if wrong else None)
            origin.log.sent(request, sent)
        if request.num_bytes < length:
            if fault.stall_after is not None:
                origin.closing.wait()
            self.close_connection = True

    def _put(self, content: BinaryIO, at: int, count: int, wrong: int | None) -> int:
        if wrong is None and not isinstance(self.connection, ssl.SSLSocket):
            return os.sendfile(self.connection.fileno(), content.fileno(), at, count)
        data = bytearray(os.pread(content.fileno(), count, at))
        if wrong is not None:
            data[wrong] ^= 0xFF
        self.connection.sendall(data)
        return len(data)

    def _refuse(
        self, request: Served, status: HTTPStatus, retry_after_s: float | None = None, code: str | None = None
    ) -> None:
        request.retry_after_s = None if retry_after_s is None else math.ceil(retry_after_s)
        extra = {} if retry_after_s is None else {"Retry-After": str(request.retry_after_s)}
        if code is not None:
            extra["X-Error-Code"] = code
        self._say(request, status, {"error": status.phrase}, extra)

    def _say(self, request: Served, status: HTTPStatus, body: object, extra: dict[str, str] | None = None) -> None:
        request.status = status
        text = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": len(text), **(extra or {})}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(text)
