"""Content-addressed objects: `objects/<2 hex>/<sha256>`, and what is known about each in `meta/<sha256>.json`."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
from msgspec import Struct

from tickertape.core.ports import Progress
from tickertape.weights.files import fsync_directory, fsync_file, write_atomically
from tickertape.weights.holds import Holds
from tickertape.weights.ledger import Ledger

__all__ = ["DigestWriter", "Objects", "digest_file", "is_sha256"]

_CHUNK_BYTES = 4 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}")


def is_sha256(name: str) -> bool:
    """Whether it may name an object. What does not leads elsewhere, or is none of ours."""
    return _SHA256.fullmatch(name) is not None


def digest_file(path: Path, already: Any = None, start: int = 0) -> str:
    """The sha256 of a file. `already`: a hashlib object that has taken in the first `start` bytes, to go on from."""
    digest = already or hashlib.sha256()
    for piece in _pieces(path, start):
        digest.update(piece)
    return str(digest.hexdigest())


class DigestWriter:
    """A new file that is hashed while it is written, front to back. A context manager; `sha256` counts what was
    written so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size_bytes = 0
        self._file = path.open("xb", buffering=0)
        self._digest = hashlib.sha256()

    def write(self, data: bytes | memoryview) -> None:
        rest = memoryview(data).cast("B")
        self._digest.update(rest)
        self.size_bytes += len(rest)
        while rest:
            rest = rest[self._file.write(rest) :]

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def __enter__(self) -> DigestWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


class _Meta(Struct, frozen=True):
    """How an object looked when its digest was last computed."""

    size: int
    mtime_ns: int
    ctime_ns: int
    ino: int
    verified_at: float
    chunk_sha256: tuple[str, ...] = ()  # once somebody wanted to know

    def matches(self, stat: os.stat_result) -> bool:
        return _look(stat) == (self.size, self.mtime_ns, self.ctime_ns, self.ino)


class Objects:
    """The objects of a store. Each is written once, verified, synced, made read-only and renamed into place; it is
    never written again, so whoever has it mapped is safe. Reading needs no write access.

    `report` hears of stage "verify" while an object is hashed again, from the thread that wants to know whether it is
    intact; what it raises passes through.
    """

    def __init__(
        self,
        root: Path,
        holds: Holds | None = None,
        ledger: Ledger | None = None,
        report: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        self._objects = root / "objects"
        self._meta = root / "meta"
        self._holds = holds or Holds(root)
        self._ledger = ledger or Ledger()
        self._report = report
        self._hashed: dict[str, tuple[int, ...]] = {}  # how it looked then: where that cannot be noted

    def path(self, sha256: str) -> Path:
        """Where the object lies, or would."""
        return self._objects / sha256[:2] / sha256

    def meta_path(self, sha256: str) -> Path:
        """Where it is noted how the object looked."""
        return self._meta / f"{sha256}.json"

    def intact(self, sha256: str) -> bool:
        """Whether the object is there and is what its name says. Hashes only when the file is not as it was when it
        was last verified; remembers the result, and for others where the store can be written to."""
        path = self.path(sha256)
        try:
            before = path.stat()
        except OSError:
            return False
        if self._is_verified(sha256, before):
            return True
        whole = self._digest(path, before.st_size) == sha256
        if whole:
            self._hashed[sha256] = _look(before)
            if os.access(self._meta.parent, os.W_OK):
                with suppress(OSError):  # a full disk is no reason not to serve what is on it
                    self.note_verified(sha256, before)
        return whole

    def hold(self, sha256: str) -> bool:
        """Whether the object is intact; if so nobody collects it before a snapshot names it, `release`, or our end."""
        return self._holds.keep(self.path(sha256)) and self.intact(sha256)

    def release(self, sha256: str) -> None:
        self._holds.drop(self.path(sha256))

    def adopt(self, file: Path, sha256: str) -> None:
        """Moves a finished file on the store's file system, whose digest the caller has computed, into the store, and
        holds it. An intact object that is there already stays; a damaged one is replaced by a new inode."""
        target = self.path(sha256)
        if self.hold(sha256):
            file.unlink(missing_ok=True)
            return
        fsync_file(file)
        file.chmod(0o444)
        target.parent.mkdir(parents=True, exist_ok=True)
        with self._holds.window(create=True):
            file.rename(target)
            self._holds.keep(target)
        fsync_directory(target.parent)
        fsync_directory(self._objects)
        self.note_verified(sha256, target.stat())

    def note_verified(self, sha256: str, stat: os.stat_result) -> None:
        """Remembers that the object, as `stat` saw it, has this digest."""
        chunks = self.chunk_digests(sha256)
        meta = _Meta(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, time.time(), chunks)
        self._write_meta(sha256, meta)

    def note_chunks(self, sha256: str, chunk_sha256: tuple[str, ...]) -> None:
        """Remembers the digests of a verified object's chunks."""
        if (known := self._read_meta(sha256)) is not None:
            self._write_meta(sha256, msgspec.structs.replace(known, chunk_sha256=chunk_sha256))

    def verified(self) -> Iterator[tuple[str, int]]:
        """(sha256, size in bytes) of every object that is as it was when last verified. Hashes nothing."""
        noted: list[str] = []
        with suppress(FileNotFoundError):
            noted = [name.removesuffix(".json") for name in os.listdir(self._meta) if name.endswith(".json")]
        for sha256 in {*noted, *self._hashed}:
            with suppress(OSError):
                stat = self.path(sha256).stat()
                if self._is_verified(sha256, stat):
                    yield sha256, stat.st_size

    def open_verified(self, sha256: str) -> int | None:
        """A descriptor to read an object by, which the caller closes; None unless it is as it was when last verified.
        Hashes nothing."""
        try:
            fd = os.open(self.path(sha256), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        if self._is_verified(sha256, os.fstat(fd)):
            return fd
        os.close(fd)
        return None

    def chunk_digests(self, sha256: str) -> tuple[str, ...]:
        """The sha256 of each CHUNK_BYTES of an object; () when it is not known."""
        known = self._read_meta(sha256)
        return known.chunk_sha256 if known is not None else ()

    def _is_verified(self, sha256: str, stat: os.stat_result) -> bool:
        if self._hashed.get(sha256) == _look(stat):
            return True
        known = self._read_meta(sha256)
        return known is not None and known.matches(stat)

    def _digest(self, path: Path, size_bytes: int) -> str | None:
        """None when it cannot be read."""
        digest, done, pieces = hashlib.sha256(), 0, _pieces(path)
        while True:
            self._report(Progress("verify", done, max(done, size_bytes), detail="what is in the store"))
            try:
                piece = next(pieces, b"")
            except OSError:
                return None
            if not piece:
                return digest.hexdigest()
            digest.update(piece)
            done += len(piece)
            self._ledger.count("num_hashed_bytes", len(piece))

    def _write_meta(self, sha256: str, meta: _Meta) -> None:
        write_atomically(self.meta_path(sha256), msgspec.json.encode(meta))

    def _read_meta(self, sha256: str) -> _Meta | None:
        try:
            return msgspec.json.decode(self.meta_path(sha256).read_bytes(), type=_Meta)
        except (OSError, msgspec.DecodeError):
            return None


def _look(stat: os.stat_result) -> tuple[int, ...]:
    return (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)


def _pieces(path: Path, start: int = 0) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while piece := file.read(_CHUNK_BYTES):
            yield piece
