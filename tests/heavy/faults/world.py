"""A small model, an origin in memory that fails by a seed, and what a node does with them."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import mmap
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

from tickertape.core.errors import OriginChanged, OriginError
from tickertape.core.messages import FetchOptions
from tickertape.core.sources import FileEntry, Manifest
from tickertape.weights.fetch.fetching import Fetching
from tickertape.weights.ranged import RangedFiles
from tickertape.weights.resolving import fetched_by
from tickertape.weights.store import Store

__all__ = [
    "KINDS",
    "PIECE_BYTES",
    "HurriedClock",
    "Model",
    "Sent",
    "World",
    "dies_at_event",
    "with_full_disk",
    "without_flock",
    "wrong_objects",
]

PIECE_BYTES: Final = 128 << 10
KINDS: Final = ("kill", "corrupt", "short", "200", "full", "no flock")
_HURRY: Final = 100.0


class HurriedClock:
    """A hundred seconds in one."""

    def now(self) -> float:
        return time.monotonic() * _HURRY

    def wait(self, condition: threading.Condition, timeout_s: float, *, idle: bool) -> None:
        condition.wait(timeout_s / _HURRY)

    def sleep_until(self, moment: float, stop: threading.Event) -> None:
        if (left_s := (moment - self.now()) / _HURRY) > 0:
            stop.wait(left_s)


class Model:
    """Files of random bytes; a file with a digest of its own kind is among them."""

    def __init__(self, seed: int, sizes: list[int]) -> None:
        rng = random.Random(seed)
        self.contents = {f"model-{n}.safetensors": rng.randbytes(size) for n, size in enumerate(sizes)}
        self.contents["config.json"] = rng.randbytes(rng.randrange(1, 5000))
        files = []
        for path, raw in self.contents.items():
            if path == "config.json":
                git = hashlib.sha1(b"blob %d\0" % len(raw) + raw).hexdigest()
                files.append(FileEntry(path, len(raw), git_sha1=git))
            else:
                files.append(FileEntry(path, len(raw), hashlib.sha256(raw).hexdigest()))
        self.manifest = Manifest("faulty://model", "r1", tuple(files))

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.contents.values()))


class Sent:
    """Bytes that origins sent, counted across processes and kills."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, mmap.PAGESIZE)
        self._lock = threading.Lock()

    def add(self, num_bytes: int) -> None:
        with self._lock:
            self._map[:8] = (self.value + num_bytes).to_bytes(8, "little")

    @property
    def value(self) -> int:
        return int.from_bytes(self._map[:8], "little")


class _Slots:
    """One for whoever asks."""

    epoch = 1
    retry_s = 1.0
    trouble = None
    is_throttled = False

    def acquire(self) -> _Slots:
        return self

    def check(self) -> None: ...

    def release(self) -> None: ...

    def cooldown_s(self) -> float:
        return 0.0

    def throttled(self, retry_after_s: float | None) -> None: ...

    def close(self) -> None: ...


class World:
    """A source whose requests fail with the probability `harm`, in the ways of `kind`. With `die_after`, the process
    kills itself when so many bytes were sent."""

    name = "faulty"
    schemes = ("faulty",)

    def __init__(self, model: Model, kind: str = "", seed: int = 0, harm: float = 0.0) -> None:
        self.model = model
        self.sent = Sent()
        self.die_after: int | None = None
        self.piece_s = 0.0
        self._kind = kind
        self._rng = random.Random(seed)
        self._harm = harm

    def prepare(self) -> None: ...

    def pinned(self, uri: str) -> bool:
        return False

    def resolve(self, uri: str) -> Manifest:
        return self.model.manifest

    def open(self, manifest: Manifest) -> World:
        return self

    def close(self) -> None: ...

    def read(self, entry: FileEntry, start: int, end: int | None) -> Generator[memoryview, None, None]:
        data = bytearray(self.model.contents[entry.path][start:end])
        kind = self._kind if self._rng.random() < self._harm else ""
        if kind == "200":
            raise OriginChanged("a whole file came for a range of it")
        if kind in ("corrupt", "no flock"):
            data[self._rng.randrange(len(data))] ^= 1 << self._rng.randrange(8)
        if kind == "short":
            del data[self._rng.randrange(len(data)) :]
        for offset in range(0, len(data), PIECE_BYTES):
            piece = memoryview(data)[offset : offset + PIECE_BYTES]
            self.sent.add(len(piece))
            if self.piece_s:
                time.sleep(self.piece_s)
            yield piece
            if self.die_after is not None and self.sent.value >= self.die_after:
                os.kill(os.getpid(), signal.SIGKILL)
        if kind == "short" and self._rng.random() < 0.5:
            raise OriginError("the connection broke")

    def obtain(self, root: Path, connections: int = 4) -> None:
        """Raises StartupError as a fetch does."""
        fetching = Fetching(
            slots=_Slots(),
            make_room=lambda _: None,
            options=FetchOptions(origin_connections=connections, fetch_patience_s=60.0),
            clock=HurriedClock(),
        )
        store = Store(root)
        try:
            RangedFiles("faulty://model", self, store, fetching, lambda _: None).obtain()
        finally:
            store.close()

    def is_whole(self, root: Path) -> bool:
        store = Store(root)
        try:
            snapshot = store.find(fetched_by(self.model.manifest))
            return snapshot is not None and all(
                (snapshot.path / path).read_bytes() == raw for path, raw in self.model.contents.items()
            )
        finally:
            store.close()


def wrong_objects(root: Path) -> list[str]:
    """What is published and is not what its name says."""
    return [
        path.name for path in root.glob("objects/*/*") if hashlib.sha256(path.read_bytes()).hexdigest() != path.name
    ]


def without_flock() -> None:
    """Locks keep nobody out in this process."""
    fcntl.flock = lambda *_: None


def with_full_disk(budget_bytes: int, seed: int, *, for_ever: bool) -> None:
    """The disk is full after so many bytes in this process; unless `for_ever`, there is room again now and then."""
    pwrite, left, rng = os.pwrite, [budget_bytes], random.Random(seed)

    def written(fd: int, data: Any, offset: int) -> int:
        if left[0] <= 0:
            if not for_ever and rng.random() < 0.3:
                left[0] = budget_bytes
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = pwrite(fd, memoryview(data)[: max(1, left[0])], offset)
        left[0] -= count
        return count

    def unsupported(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    os.pwrite = written
    os.posix_fallocate = unsupported


def dies_at_event(number: int) -> None:
    """SIGKILL before the n-th change to the file system from here."""
    seen = [0]
    writes = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.chmod", "fcntl.flock"}

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event in writes or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
            seen[0] += 1
            if seen[0] == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(audit)
