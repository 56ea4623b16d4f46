"""Mutual exclusion between the processes of a node."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

__all__ = ["FileLock", "keeps_others_out", "note_holder"]

_NO_LOCKS_HERE = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})


class FileLock:
    """An flock on a file of its own, as a context manager; not reentrant, one use per object.

    The kernel drops the lock when its holder dies, so nothing is left behind by a kill. The file is never unlinked:
    two processes could then hold "the" lock on two inodes; after acquiring, the path is checked to still name the
    inode that was locked. The descriptor is not inherited by children. `waiting` is called with the seconds waited,
    before each nap of 50 ms to 1 s; it may raise to give up.

    Where the filesystem has no locks the context is entered without one: correctness of the store never rests on the
    lock, only the saving of work does.
    """

    def __init__(self, path: Path, waiting: Callable[[float], None] = lambda _: None) -> None:
        self._path = path
        self._waiting = waiting
        self._fd = -1

    def __enter__(self) -> FileLock:
        started, nap_s = time.monotonic(), 0.05
        while True:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            try:
                fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except FileNotFoundError:
                if self._path.parent.exists():
                    raise
                continue  # its folder was removed just now
            try:
                if self._acquired(fd):
                    with suppress(OSError):  # a full disk must not keep anybody from making room
                        note_holder(fd)
                    self._fd, fd = fd, -1
                    return self
                self._waiting(time.monotonic() - started)
            finally:
                if fd >= 0:
                    os.close(fd)
            time.sleep(nap_s)
            nap_s = min(1.0, nap_s * 1.5)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _acquired(self, fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            return error.errno in _NO_LOCKS_HERE
        try:
            return os.path.samestat(os.fstat(fd), os.stat(self._path))
        except FileNotFoundError:
            return False


def note_holder(fd: int) -> None:
    """Writes into a lock file for the person who asks who holds it; nothing reads this to decide. Raises OSError."""
    note = {"pid": os.getpid(), "boot_id": _boot_id(), "since": time.time()}
    os.ftruncate(fd, 0)
    os.pwrite(fd, json.dumps(note).encode(), 0)


def keeps_others_out(path: Path) -> bool:
    """Whether the exclusive flock that this process holds on `path` (a file or a directory) means anything here: tried
    through a second descriptor."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
