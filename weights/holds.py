"""What a process uses of a store, told to the collectors of garbage in other processes by shared locks.

    locks/gc           the gate: shared while a snapshot is looked up or published, exclusive while one is removed
    used/<snapshot>    shared for as long as a process uses the snapshot; its mtime is the last use
    objects/..         shared while an object is mapped, and from its adoption until a snapshot names it

The kernel drops a lock with its holder, so a kill leaves nothing in use. Descriptors are not inherited.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tickertape.weights.mounts import is_local

__all__ = ["Holds", "alone", "claim", "is_held", "why_doubted"]

_TOUCH_EVERY_S: Final = 3600.0


class Holds:
    """The shared locks of one process on one store, until they are dropped or this object goes. Thread-safe.

    Nothing is created where the store cannot be written to; where the file system has no locks, holding does nothing.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._fds: dict[Path, int] = {}
        self._lock = threading.Lock()
        self._closing = weakref.finalize(self, _close_all, self._fds)

    @contextmanager
    def window(self, *, create: bool = False) -> Iterator[None]:
        """Nothing is removed from the store inside: to look something up and hold it, or to publish. Keep it short,
        and never collect garbage in it."""
        fd = _open(self._gate, create=create and os.access(_existing(self._root), os.W_OK))
        try:
            if fd is not None:
                with suppress(OSError):
                    fcntl.flock(fd, fcntl.LOCK_SH)
            yield
        finally:
            if fd is not None:
                os.close(fd)

    def keep(self, path: Path) -> bool:
        """Holds a file that may be mapped; False when it is not there (any more)."""
        with self._lock:
            fd = _open(path)
            if fd is None:
                self._forget(path)
                return False
            if self._holds(path, fd):
                os.close(fd)
                return True
            with suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_SH)
            if not _is_at(fd, path):  # removed or replaced while we waited
                os.close(fd)
                return False
            self._forget(path)
            self._fds[path] = fd
            return True

    def keep_used(self, snapshot: str) -> None:
        """Holds a snapshot and notes the use, at most once an hour."""
        path = self._root / "used" / snapshot
        writable = os.access(self._root, os.W_OK)
        if writable and not path.exists():
            with suppress(OSError):
                path.parent.mkdir(exist_ok=True)
                path.touch()
        if self.keep(path) and writable:
            self._touch(path, _TOUCH_EVERY_S)

    def touch(self) -> None:
        """Notes that what is held is still used. Call it now and then in a process that lives long."""
        if not os.access(self._root, os.W_OK):
            return
        with self._lock:
            used = [path for path in self._fds if path.parent.name == "used"]
        for path in used:
            self._touch(path, _TOUCH_EVERY_S)

    def drop(self, path: Path) -> None:
        with self._lock:
            self._forget(path)

    def drop_used(self, snapshot: str) -> None:
        self.drop(self._root / "used" / snapshot)

    def close(self) -> None:
        """Drops everything, which was in use until now. May be called twice."""
        self.touch()
        with self._lock:
            _close_all(self._fds)

    @property
    def _gate(self) -> Path:
        return self._root / "locks" / "gc"

    def _touch(self, path: Path, older_than_s: float) -> None:
        with suppress(OSError):
            if time.time() - path.stat().st_mtime >= older_than_s:
                os.utime(path)

    def _holds(self, path: Path, fd: int) -> bool:
        ours = self._fds.get(path)
        return ours is not None and os.path.samestat(os.fstat(ours), os.fstat(fd))

    def _forget(self, path: Path) -> None:
        if (fd := self._fds.pop(path, None)) is not None:
            os.close(fd)


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """The gate closed: nobody looks up or publishes meanwhile. Raises OSError where there are no locks."""
    path = root / "locks" / "gc"
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@contextmanager
def claim(path: Path) -> Iterator[bool]:
    """Whether `path` is nobody's: then it is ours inside. True too when it is not there."""
    fd = _open(path)
    if fd is None:
        yield not path.exists()
        return
    try:
        yield _acquired(fd) and _is_at(fd, path)
    finally:
        os.close(fd)


def is_held(path: Path) -> bool:
    """Whether some process holds it just now."""
    with claim(path) as free:
        return not free


def why_doubted(root: Path) -> str | None:
    """Why somebody may use the store in `root` whose locks are not seen here; None when all are. Raises OSError."""
    import tempfile  # not for everybody who holds something

    if not is_local(root):
        return "its file system may be shared with other computers"
    folder = root / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".probe.") as one, Path(one.name).open("rb") as two:
        try:
            fcntl.flock(two, fcntl.LOCK_SH)
            fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        except OSError:
            pass
    return "locks do not work on its file system"


def _acquired(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False  # BlockingIOError; or no locks here, and then nothing is known to be free
    return True


def _open(path: Path, *, create: bool = False) -> int | None:
    with suppress(OSError):
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    if create:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    return None


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except OSError:
        return False


def _existing(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _close_all(fds: dict[Path, int]) -> None:
    while fds:
        os.close(fds.popitem()[1])
