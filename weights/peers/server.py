"""Serves what a store holds to other servers, within limits and behind everything else on the machine."""

from __future__ import annotations

import hmac
import logging
import math
import os
import socket
import threading
from contextlib import suppress
from http import HTTPStatus
from typing import Final

import msgspec

from tickertape.core.errors import StartupError
from tickertape.weights.ledger import Ledger
from tickertape.weights.peers.byte_range import parse_range
from tickertape.weights.peers.catalog import NoPartials, PartialCatalog
from tickertape.weights.peers.exchange import BadRequest, Dropped, Exchange, Request, Timeouts
from tickertape.weights.peers.identity import store_identity
from tickertape.weights.peers.shelf import Shelf, Volume
from tickertape.weights.peers.uploads import Busy, Upload, Uploads
from tickertape.weights.peers.wire import BUSY, RETRY_AFTER_MS, STORE, TARGET, authorization, etag
from tickertape.weights.rate import TokenBucket
from tickertape.weights.store import Store

__all__ = ["PeerServer"]

_NICE: Final = 10
_SEND_BYTES: Final = 256 << 10
_UNSENT_BYTES: Final = 512 << 10
_CHUNKS_PATIENCE_S: Final = 1.0
_TCP_NOTSENT_LOWAT: Final = 25
_REFUSAL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\n"
    b"Tickertape-Busy: server\r\nConnection: close\r\n\r\n"
)

_log = logging.getLogger(__name__)


class PeerServer:
    """Serves from its construction until `close`, by one thread per connection, of which there are at most
    `max_connections`; what comes beyond gets 503 at once. Uploads go by sendfile. Its threads have a lower priority
    than others (Linux: niceness is a thread's own, and the disk's follows it); a store's bytes are never copied here.

    Handed out are verified objects, unchanged since, and verified chunks of `partials`. Without a `token` anybody who
    reaches the port may read. Raises StartupError (PortInUse) when the port cannot be had.
    """

    def __init__(
        self,
        store: Store,
        host: str,
        port: int,
        *,
        token: str | None,
        max_uploads: int,
        max_mbps: float | None,
        ledger: Ledger,
        partials: PartialCatalog | None = None,
        max_connections: int = 64,
        timeouts: Timeouts | None = None,
    ) -> None:
        self._identity = store_identity(store.root)
        self._shelf = Shelf(store.objects, partials or NoPartials(), self._identity)
        self._uploads = Uploads(max_uploads, TokenBucket(max_mbps))
        self._authorization = authorization(token).encode() if token is not None else None
        self._ledger = ledger
        self._max_connections = max_connections
        self._timeouts = timeouts or Timeouts()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._serving: dict[Exchange, threading.Thread] = {}
        self._listener = _listener(host, port)
        self.port: int = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, name="peers-accept", daemon=True)
        self._accepting.start()

    def close(self) -> None:
        """Ends every upload and every thread. May be called twice."""
        self._closing.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept
        self._accepting.join()
        self._listener.close()
        with self._lock:
            serving = dict(self._serving)
        for exchange in serving:
            exchange.close()
        self._shelf.close()
        for thread in serving.values():
            thread.join()

    def _accept(self) -> None:
        _lower_priority()  # inherited by the threads started here
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if not self._closing.wait(0.1):
                    _log.warning("cannot take a peer's connection: %s", error.strerror)
                continue
            if not self._take(connection):
                _refuse(connection)

    def _take(self, connection: socket.socket) -> bool:
        with self._lock:
            if self._closing.is_set() or len(self._serving) >= self._max_connections:
                return False
            try:
                exchange = Exchange(connection, self._timeouts)
                thread = threading.Thread(
                    target=self._serve, args=(connection, exchange), name="peers-serve", daemon=True
                )
                self._serving[exchange] = thread
                thread.start()
            except (OSError, RuntimeError):  # gone already; no more threads to be had
                self._serving.pop(exchange, None)
                return False
        return True

    def _serve(self, connection: socket.socket, exchange: Exchange) -> None:
        try:
            with connection, suppress(Dropped):
                while not self._closing.is_set():
                    self._answer(exchange)
        except Exception:
            _log.exception("serving a peer failed")
        finally:
            with self._lock:
                del self._serving[exchange]

    def _answer(self, exchange: Exchange) -> None:
        try:
            request = exchange.next_request()
        except BadRequest as error:
            exchange.answer(error.status, _empty(), last=True)
            raise Dropped from error
        if not self._is_allowed(request):
            exchange.answer(HTTPStatus.UNAUTHORIZED, [*_empty(), ("WWW-Authenticate", "Bearer")], last=True)
            raise Dropped
        if request.method not in ("GET", "HEAD"):
            exchange.answer(HTTPStatus.METHOD_NOT_ALLOWED, [*_empty(), ("Allow", "GET, HEAD")])
            return
        target = TARGET.fullmatch(request.target)
        if target is None:
            exchange.answer(HTTPStatus.NOT_FOUND, _empty())
        elif (sha256 := target["sha256"]) is None:
            self._answer_listing(exchange, request)
        elif target["chunks"]:
            self._answer_chunks(exchange, request, sha256)
        elif (volume := self._shelf.open(sha256)) is None:
            exchange.answer(HTTPStatus.NOT_FOUND, _empty())
        else:
            try:
                self._answer_object(exchange, request, sha256, volume)
            finally:
                os.close(volume.fd)

    def _is_allowed(self, request: Request) -> bool:
        if self._authorization is None:
            return True
        shown = request.header("Authorization") or ""
        return hmac.compare_digest(shown.encode("latin-1"), self._authorization)

    def _answer_listing(self, exchange: Exchange, request: Request) -> None:
        listing = self._shelf.listing()
        headers = [("ETag", listing.etag), (STORE, self._identity)]
        if request.header("If-None-Match") == listing.etag:
            exchange.answer(HTTPStatus.NOT_MODIFIED, headers)
        else:
            _answer_json(exchange, request, listing.body, headers)

    def _answer_chunks(self, exchange: Exchange, request: Request, sha256: str) -> None:
        chunks = self._shelf.chunks(sha256, _CHUNKS_PATIENCE_S)
        if chunks is None:
            exchange.answer(HTTPStatus.SERVICE_UNAVAILABLE, [*_empty(), *_busy(Busy("object", 1.0))])
        elif not chunks:
            exchange.answer(HTTPStatus.NOT_FOUND, _empty())
        else:
            _answer_json(exchange, request, msgspec.json.encode(chunks), [("ETag", etag(sha256))])

    def _answer_object(self, exchange: Exchange, request: Request, sha256: str, volume: Volume) -> None:
        size_bytes, tag = volume.size_bytes, etag(sha256)
        if request.header("If-Match") not in (None, "*", tag):
            exchange.answer(HTTPStatus.PRECONDITION_FAILED, [*_empty(), ("ETag", tag)])
            return
        wanted = request.header("Range") if request.header("If-Range") in (None, tag) else None
        span = (0, size_bytes) if wanted is None else parse_range(wanted, size_bytes)
        if wanted is None and not volume.is_whole:
            exchange.answer(HTTPStatus.NOT_FOUND, _empty())
            return
        if span is None or (wanted is not None and not volume.covers(*span)):
            unsatisfied = [("Content-Range", f"bytes */{size_bytes}"), ("Accept-Ranges", "bytes"), ("ETag", tag)]
            exchange.answer(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, [*_empty(), *unsatisfied])
            return
        start, end = span
        headers = [
            ("Content-Length", str(end - start)),
            ("Content-Type", "application/octet-stream"),
            ("Accept-Ranges", "bytes"),
            ("ETag", tag),
            (STORE, self._identity),
        ]
        status = HTTPStatus.OK
        if wanted is not None:
            status = HTTPStatus.PARTIAL_CONTENT
            headers.append(("Content-Range", f"bytes {start}-{end - 1}/{size_bytes}"))
        if request.method == "HEAD":
            exchange.answer(status, headers)
            return
        admitted = self._uploads.admit(sha256, request.header(STORE) or "", end - start)
        if isinstance(admitted, Busy):
            exchange.answer(HTTPStatus.SERVICE_UNAVAILABLE, [*_empty(), *_busy(admitted)])
            return
        with admitted:
            exchange.begin(status, headers)
            self._send(exchange, volume.fd, start, end, admitted)
            exchange.end()
        self._ledger.count("num_peer_uploads")

    def _send(self, exchange: Exchange, fd: int, start: int, end: int, upload: Upload) -> None:
        bucket = self._uploads.bucket
        portion = bucket.portion(_SEND_BYTES)
        while start < end:
            taken = min(portion, end - start)
            wait_s = bucket.take(taken)
            if wait_s and self._closing.wait(wait_s):
                raise Dropped
            sent = exchange.send_file(fd, start, taken)
            bucket.give_back(taken - sent)
            start += sent
            upload.num_sent += sent
            self._ledger.count("num_uploaded_bytes", sent)


def _listener(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        dual = host == "::" and socket.has_dualstack_ipv6()
        listener = socket.create_server((host, port), family=family, backlog=512, dualstack_ipv6=dual)
    except OSError as error:
        reason = error.strerror or "not an address of this machine"
        raise StartupError(f"cannot serve peers on port {port}: {reason}", code="PortInUse") from error
    with suppress(OSError):  # connections inherit it: what the kernel takes ahead is not counted as sent for long
        listener.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
    return listener


def _lower_priority() -> None:
    thread = threading.get_native_id()
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread, max(_NICE, os.getpriority(os.PRIO_PROCESS, thread)))


def _refuse(connection: socket.socket) -> None:
    with connection, suppress(OSError):
        connection.setblocking(False)
        connection.send(_REFUSAL)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(64 << 10)  # unread bytes would turn the end into a reset, and the answer be lost


def _answer_json(exchange: Exchange, request: Request, body: bytes, headers: list[tuple[str, str]]) -> None:
    everything = [("Content-Type", "application/json"), ("Content-Length", str(len(body))), *headers]
    exchange.answer(HTTPStatus.OK, everything, body if request.method == "GET" else b"")


def _empty() -> list[tuple[str, str]]:
    return [("Content-Length", "0")]


def _busy(busy: Busy) -> list[tuple[str, str]]:
    return [
        ("Retry-After", str(math.ceil(busy.retry_after_s))),
        (RETRY_AFTER_MS, str(math.ceil(busy.retry_after_s * 1000))),
        (BUSY, busy.scope),
    ]
