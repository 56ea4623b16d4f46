"""A hub, its CDN, a plain web server and an object store in this process, on loopback, with faults to order.

    with FakeOrigin() as origin:
        origin.hub["org/name"] = Repo({"config.json": b"{}", "model.safetensors": weights}, lfs=("model.safetensors",))
        origin.web["dir/a.gguf"] = WebFile(data)
        origin.buckets["models"] = {"tiny/config.json": b"{}"}
        origin.order(Fault("model.safetensors", status=429, headers={"Retry-After": "7"}))

The hub and the web server are one host (`url`), the CDN another (`cdn_url`): what must not leave the first is seen to
stay there. `requests` has what came, `order` says what goes wrong, and how often.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

__all__ = ["FakeOrigin", "Fault", "Repo", "Seen", "WebFile", "git_sha1"]


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class Repo:
    """A model of the hub. `lfs` names the files that lie on the CDN. Of a `gated` one everybody sees the listing, and
    those in `granted` the files; a `private` one only they see at all. `lies` are fields of the listing by path."""

    files: Mapping[str, bytes]
    lfs: tuple[str, ...] = ()
    gated: bool = False
    private: bool = False
    granted: tuple[str, ...] = ()
    branches: dict[str, str] = field(default_factory=dict)
    lies: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def commit(self) -> str:
        return hashlib.sha1(repr(sorted(self.files.items())).encode()).hexdigest()


@dataclass
class WebFile:
    """A file of the web server. `etag` "": made from the content; None: it has none. `ranges`: its host knows ranges;
    `deaf`: it does not know conditions."""

    data: bytes
    etag: str | None = ""
    last_modified: float | None = None
    ranges: bool = True
    deaf: bool = False

    def validators(self) -> dict[str, str]:
        tag = f'"{hashlib.md5(self.data).hexdigest()}"' if self.etag == "" else self.etag
        found = {"ETag": tag} if tag is not None else {}
        if self.last_modified is not None:
            found["Last-Modified"] = formatdate(self.last_modified, usegmt=True)
        return found


@dataclass
class Fault:
    """What goes wrong with the next `times` requests whose path holds `match`: another `status` with `headers`, or in
    the answer: `whole` (200 to a range), `shift` (its start and end moved), `encoded` (says gzip), `unsized` (no
    length), `corrupt` (a flipped bit); or after so many bytes of the body: `cut` (the connection ends), `stall`
    (nothing more comes)."""

    match: str
    times: int = 1
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    whole: bool = False
    encoded: bool = False
    corrupt: bool = False
    unsized: bool = False
    shift: tuple[int, int] = (0, 0)
    cut: int | None = None
    stall: int | None = None


@dataclass(frozen=True)
class Seen:
    """A request. `host` is "hub" or "cdn"; names of headers are in lower case."""

    host: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]


class FakeOrigin:
    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        """With `tls` both hosts speak https."""
        self.hub: dict[str, Repo] = {}
        self.web: dict[str, WebFile] = {}
        self.buckets: dict[str, dict[str, bytes]] = {}
        self.tokens = {"granted", "other"}
        self.requests: list[Seen] = []
        self.faults: list[Fault] = []
        self.num_connections = 0
        self.closing = threading.Event()
        self.lock = threading.Lock()
        self.connections: set[socket.socket] = set()
        self._signature = 1
        self._servers = [_Server(self, name, tls) for name in ("hub", "cdn")]
        self._threads = [threading.Thread(target=server.serve_forever, args=(0.02,)) for server in self._servers]
        scheme = "http" if tls is None else "https"
        self.url, self.cdn_url = (f"{scheme}://127.0.0.1:{server.server_address[1]}" for server in self._servers)

    def __enter__(self) -> FakeOrigin:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.closing.set()
        for server in self._servers:
            server.shutdown()
        self.hang_up()
        for server, thread in zip(self._servers, self._threads, strict=True):
            server.server_close()
            thread.join()

    def order(self, *faults: Fault) -> None:
        self.faults += faults

    def hang_up(self) -> None:
        """Ends all connections."""
        with self.lock:
            for connection in self.connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def expire(self) -> None:
        """Signed URLs given out until now have lapsed."""
        self._signature += 1

    @property
    def signature(self) -> str:
        return f"sig{self._signature}"

    def asked(self, host: str, part: str = "") -> list[Seen]:
        return [seen for seen in self.requests if seen.host == host and part in seen.path]

    def fault(self, path: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and fault.match in path:
                    fault.times -= 1
                    return fault
        return None


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True
    request_queue_size = 64

    def __init__(self, origin: FakeOrigin, name: str, tls: ssl.SSLContext | None) -> None:
        self.origin = origin
        self.name = name
        super().__init__(("127.0.0.1", 0), _Handler)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are what is tested here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        with self.server.origin.lock:
            self.server.origin.connections.add(self.connection)
            self.server.origin.num_connections += 1

    def finish(self) -> None:
        with self.server.origin.lock:
            self.server.origin.connections.discard(self.connection)
        super().finish()

    def log_message(self, format: str, *args: Any) -> None: ...

    def do_GET(self) -> None:
        origin = self.server.origin
        parts = urlsplit(self.path)
        self.at, self.query = unquote(parts.path), parse_qs(parts.query, keep_blank_values=True)
        origin.requests.append(
            Seen(self.server.name, self.at, self.query, {name.lower(): value for name, value in self.headers.items()})
        )
        self.fault = origin.fault(self.at) or Fault("")
        if self.fault.status is not None:
            self._answer(self.fault.status, b"no", self.fault.headers)
        elif self.server.name == "cdn":
            self._cdn()
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", self.at):
            self._listing(match[1], match[2] or "main")
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.at):
            self._resolve(*match.groups())
        elif file := origin.web.get(self.at[1:]):
            self._file(file.data, file.validators(), ranges=file.ranges, deaf=file.deaf)
        elif (bucket := self.at.split("/")[1]) in origin.buckets:
            self._bucket(bucket, self.at.removeprefix(f"/{bucket}").lstrip("/"))
        else:
            self._answer(404, b"not found")

    # -- the hub -------------------------------------------------------------------------------------------------------

    def _token(self) -> str | None:
        return self.headers.get("Authorization", "").removeprefix("Bearer ") or None

    def _refuse(self, status: int, code: str, message: str) -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": message}
        self._answer(status, b"{}", {name: value for name, value in headers.items() if value})

    def _found(self, name: str) -> Repo | None:
        """The repository, if whoever asks may see it; else the hub's refusal was sent."""
        token, repo = self._token(), self.server.origin.hub.get(name)
        if token is not None and token not in self.server.origin.tokens:
            self._refuse(401, "", "Invalid credentials in Authorization header")
        elif repo is None or (repo.private and token not in repo.granted):
            if token is None:
                self._refuse(401, "RepoNotFound", "Invalid username or password.")
            else:
                self._refuse(404, "RepoNotFound", "Repository not found")
        else:
            return repo
        return None

    def _listing(self, name: str, revision: str) -> None:
        repo = self._found(name)
        if repo is None:
            return
        if {"main": repo.commit, **repo.branches}.get(revision, revision) != repo.commit:
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return
        siblings: list[dict[str, Any]] = []
        for path, data in repo.files.items():
            sibling: dict[str, Any] = {"rfilename": path, "size": len(data), "blobId": git_sha1(data)}
            if path in repo.lfs:
                digest = hashlib.sha256(data).hexdigest()
                sibling["lfs"] = {"sha256": digest, "size": len(data), "pointerSize": 134}
            siblings.append({**sibling, **repo.lies.get(path, {})})
        gated = "manual" if repo.gated else False
        listing = {"id": name, "modelId": name, "sha": repo.commit, "private": repo.private, "gated": gated}
        self._answer(200, json.dumps({**listing, "siblings": siblings}).encode(), {"Content-Type": "application/json"})

    def _resolve(self, name: str, revision: str, path: str) -> None:
        repo = self._found(name)
        if repo is None:
            return
        token = self._token()
        if repo.gated and token not in repo.granted:
            message = f"Access to model {name} is restricted."
            self._refuse(401 if token is None else 403, "GatedRepo", message)
        elif revision not in ("main", repo.commit):
            self._refuse(404, "RevisionNotFound", "Invalid rev id")
        elif path not in repo.files:
            self._refuse(404, "EntryNotFound", "Entry not found")
        elif path not in repo.lfs:
            data = repo.files[path]
            self._file(data, {"ETag": f'"{git_sha1(data)}"', "X-Repo-Commit": repo.commit})
        else:
            origin, data = self.server.origin, repo.files[path]
            digest = hashlib.sha256(data).hexdigest()
            target = f"{origin.cdn_url}/blobs/{digest}?name={quote(path)}&Signature={origin.signature}"
            linked = {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(data)), "X-Repo-Commit": repo.commit}
            self._answer(302, b"Found", {"Location": target, **linked})

    def _cdn(self) -> None:
        origin, digest = self.server.origin, self.at.rpartition("/")[2]
        if self.query.get("Signature") != [origin.signature]:
            self._answer(403, b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>")
            return
        for data in (data for repo in list(origin.hub.values()) for data in repo.files.values()):
            if hashlib.sha256(data).hexdigest() == digest:
                self._file(data, {"ETag": f'"{digest}"'})
                return
        self._answer(404, b"not found")

    # -- an object store, as S3 and GCS list one, and as Azure does ----------------------------------------------------

    def _bucket(self, bucket: str, key: str) -> None:
        objects = self.server.origin.buckets[bucket]
        if key:
            if key in objects:
                file = WebFile(objects[key], last_modified=1_700_000_000)
                self._file(file.data, file.validators())
            else:
                self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        prefix, parts = self.query.get("prefix", [""])[0], []
        for path in sorted(path for path in objects if path.startswith(prefix)):
            if "delimiter" in self.query and "/" in path[len(prefix) :]:
                continue
            key, etag, size = escape(path), escape(WebFile(objects[path]).validators()["ETag"]), len(objects[path])
            if "comp" in self.query:
                parts.append(
                    f"<Blob><Name>{key}</Name><Properties><Last-Modified>{formatdate(0, usegmt=True)}</Last-Modified>"
                    f"<Etag>{etag}</Etag><Content-Length>{size}</Content-Length>"
                    "<Content-Type>application/octet-stream</Content-Type></Properties></Blob>"
                )
            else:
                parts.append(
                    f"<Contents><Key>{key}</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified>"
                    f"<ETag>{etag}</ETag><Size>{size}</Size></Contents>"
                )
        if "comp" in self.query:
            body = f"<EnumerationResults><Blobs>{''.join(parts)}</Blobs><NextMarker /></EnumerationResults>"
        else:
            body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(parts)}</ListBucketResult>"
        self._answer(200, body.encode(), {"Content-Type": "application/xml"})

    # -- files ---------------------------------------------------------------------------------------------------------

    def _file(self, data: bytes, headers: Mapping[str, str], *, ranges: bool = True, deaf: bool = False) -> None:
        expected = None if deaf else self.headers.get("If-Match")
        before = None if deaf else self.headers.get("If-Unmodified-Since")
        if expected not in (None, "*", headers.get("ETag")) or before not in (None, headers.get("Last-Modified")):
            self._answer(412, b"changed", headers)
            return
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted is None or not ranges or self.fault.whole:
            self._answer(200, data, headers)
            return
        start = int(wanted[1]) + self.fault.shift[0]
        end = min(int(wanted[2]) + 1 if wanted[2] else len(data), len(data)) + self.fault.shift[1]
        if start >= len(data):
            self._answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            return
        self._answer(206, data[start:end], {**headers, "Content-Range": f"bytes {start}-{end - 1}/{len(data)}"})

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        fault = self.fault
        self.send_response_only(status)
        headers = {"Date": self.date_time_string(), **(headers or {})}
        if fault.encoded:
            headers["Content-Encoding"] = "gzip"
        for name, value in headers.items():
            self.send_header(name, value)
        if fault.unsized:
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if fault.corrupt and body:
            body = body[:-1] + bytes([body[-1] ^ 1])
        if fault.cut is not None:
            self.wfile.write(body[: fault.cut])
            self.close_connection = True
        elif fault.stall is not None:
            self.wfile.write(body[: fault.stall])
            self.wfile.flush()
            self.server.origin.closing.wait(60)
            self.close_connection = True
        else:
            self.wfile.write(body)
