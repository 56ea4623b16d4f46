"""As much of a Kubernetes API server as slots need: Leases that exist, may be read and patched, and nothing else.

Its compare-and-swap is real: a patch that carries a resourceVersion is refused with 409 unless the object is at it.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Final

__all__ = ["KubeApi"]

_LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
_TOKEN: Final = "token-of-the-test"


class KubeApi:
    """On a free port of loopback, as a context manager; threads. Any of its fields may be changed while it runs:
    `failing` is the status for every request (None: as it should be), `forbidden` the names that nobody may touch."""

    def __init__(self, namespace: str = "models") -> None:
        self.namespace = namespace
        self.failing: int | None = None
        self.forbidden: set[str] = set()
        self.asked: Counter[tuple[str, str]] = Counter()  # by method and name
        self.answered: Counter[int] = Counter()
        self.objects: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._num_versions = 0
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, result = api.handle(self.command, self.path, self.headers, body)
                raw = json.dumps(result).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            do_GET = do_PATCH = do_POST = do_PUT = do_DELETE = answer

            def log_message(self, format: str, *args: object) -> None: ...

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # a client that was killed

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> KubeApi:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def add(self, *names: str) -> None:
        """As a chart does: objects with labels and nothing in them."""
        with self._lock:
            for name in names:
                metadata = {"name": name, "namespace": self.namespace, "labels": {"managed-by": "chart"}}
                self._store(name, {"metadata": metadata})

    def write_kubeconfig(self, path: Path) -> Path:
        config = {
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": self.namespace}}],
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "u", "user": {"token": _TOKEN}}],
        }
        path.write_text(json.dumps(config))
        return path

    def handle(self, method: str, path: str, headers: Message, body: bytes) -> tuple[int, dict[str, Any]]:
        prefix = _LEASES.format(self.namespace) + "/"
        name = path.removeprefix(prefix) if path.startswith(prefix) else ""
        with self._lock:
            self.asked[method, name] += 1
            status, result = self._answer(method, name, headers, body)
            self.answered[status] += 1
        return status, result

    def _answer(self, method: str, name: str, headers: Message, body: bytes) -> tuple[int, dict[str, Any]]:
        if self.failing is not None:
            return _status(self.failing, "not well")
        if headers.get("Authorization") != f"Bearer {_TOKEN}":
            return _status(401, "Unauthorized")
        if method not in ("GET", "PATCH") or not name or name in self.forbidden:
            return _status(403, f"may not {method} leases {name!r}")
        if name not in self.objects:
            return _status(404, f"leases {name!r} not found")
        if method == "GET":
            return 200, self.objects[name]
        if headers.get("Content-Type") != "application/merge-patch+json":
            return _status(415, "a merge patch, please")
        patch = json.loads(body)
        found = self.objects[name]
        if patch.get("metadata", {}).get("resourceVersion", "") != found["metadata"]["resourceVersion"]:
            return _status(409, "the object has been modified")
        merged = _merge(found, patch)
        if merged.get("spec", {}).get("leaseDurationSeconds", 1) <= 0:
            return _status(422, "leaseDurationSeconds must be greater than 0")
        self._store(name, merged)
        return 200, self.objects[name]

    def _store(self, name: str, content: dict[str, Any]) -> None:
        self._num_versions += 1
        kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        metadata = {**content["metadata"], "resourceVersion": str(self._num_versions)}
        self.objects[name] = {**content, **kind, "metadata": metadata}


def _merge(old: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key), value)
    return merged


def _status(code: int, message: str) -> tuple[int, dict[str, Any]]:
    return code, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}
