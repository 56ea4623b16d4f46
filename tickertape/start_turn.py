"""Turns at starting: of many servers that start at once on a node, a few at a time import their libraries, so that the
first is ready about as soon as if it were alone. Standard library only."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Final

__all__ = ["StartTurn"]

_CORES_PER_TURN: Final = 4
_NAP_S: Final = 0.02
_PATIENCE_S: Final = 20.0
"""An import takes seconds; a holder that has not let go by then is stuck, and nobody waits for it."""


class StartTurn:
    """An flock on one of a few files in `locks`, which the kernel takes back when the holder dies. Where that directory
    cannot be made or written to, or the file system has no locks, there are no turns."""

    def __init__(self, locks: Path, num_cores: int) -> None:
        self._paths = [locks / f"start-{number}" for number in range(max(1, num_cores // _CORES_PER_TURN))]
        self._fd: int | None = None

    def take(self, patience_s: float = _PATIENCE_S) -> bool:
        """Waits for a turn. False when there is none to be had in that time: the caller goes on all the same."""
        deadline = time.monotonic() + patience_s
        while True:
            try:
                self._fd = self._free()
            except OSError:
                return False
            if self._fd is not None:
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(_NAP_S)

    def release(self) -> None:
        """May be called twice, and without a turn."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def _free(self) -> int | None:
        self._paths[0].parent.mkdir(parents=True, exist_ok=True)
        for path in self._paths:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
            except OSError:
                os.close(fd)
                raise
            else:
                return fd
        return None
