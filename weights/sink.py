"""Where fetched bytes go until their file is whole, verified and an object of the store."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from tickertape.core.errors import StartupError
from tickertape.core.sources import FileEntry
from tickertape.weights.objects import Objects, digest_file

__all__ = ["StoreSink"]


class _Incoming:
    """A file on its way. The digest follows the contiguous prefix; what came out of order is read again at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._digest = hashlib.sha256()
        self._hashed_bytes = 0

    def write(self, offset: int, data: bytes | memoryview) -> None:
        rest = memoryview(data).cast("B")
        if offset < self._hashed_bytes:  # what was hashed is written again: begin anew
            self._digest, self._hashed_bytes = hashlib.sha256(), 0
        if offset == self._hashed_bytes:
            self._digest.update(rest)
            self._hashed_bytes += len(rest)
        while rest:
            count = os.pwrite(self.fd, rest, offset)
            offset, rest = offset + count, rest[count:]

    def sha256(self) -> str:
        return digest_file(self.path, self._digest, self._hashed_bytes)

    def close(self) -> None:
        os.close(self.fd)


class StoreSink:
    """A `FileSink` over a store's objects, working in a directory of its own; close it when the fetch has ended.
    `digests` holds what was finished: path -> sha256."""

    def __init__(self, objects: Objects, work: Path) -> None:
        self.digests: dict[str, str] = {}
        self._objects = objects
        self._work = work
        self._incoming: dict[str, _Incoming] = {}
        self._scratch = work / "scratch"
        self._scratch.mkdir()

    @property
    def scratch(self) -> Path:
        return self._scratch

    def missing(self, entry: FileEntry) -> Sequence[tuple[int, int | None]]:
        if entry.path in self.digests:
            return ()
        if entry.sha256 is not None and self._objects.hold(entry.sha256):
            self.digests[entry.path] = entry.sha256  # another model has the same file
            return ()
        return ((0, entry.size_bytes),)

    def write(self, entry: FileEntry, offset: int, data: bytes | memoryview) -> None:
        self._open(entry).write(offset, data)

    def finish(self, entry: FileEntry) -> None:
        incoming = self._open(entry)
        size_bytes, sha256 = os.fstat(incoming.fd).st_size, incoming.sha256()
        del self._incoming[entry.path]
        incoming.close()
        if entry.size_bytes not in (None, size_bytes):
            raise StartupError(
                f"{entry.path}: {size_bytes} bytes came, {entry.size_bytes} were promised", code="CorruptDownload"
            )
        if entry.sha256 not in (None, sha256):
            raise StartupError(f"{entry.path}: its sha256 is not the one promised", code="CorruptDownload")
        self._objects.adopt(incoming.path, sha256)
        self.digests[entry.path] = sha256

    def close(self) -> None:
        for incoming in self._incoming.values():
            incoming.close()
        self._incoming.clear()

    def _open(self, entry: FileEntry) -> _Incoming:
        if entry.path not in self._incoming:
            key = hashlib.sha256(entry.path.encode()).hexdigest()
            self._incoming[entry.path] = _Incoming(self._work / key)
        return self._incoming[entry.path]
