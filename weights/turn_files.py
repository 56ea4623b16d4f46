"""A few lock files of which each process takes one: turns at what a node has little of. Standard library only, since a
server needs it in its first moments."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

__all__ = ["TurnFiles", "turns_at"]

_CORES_PER_TURN: Final = 4


class TurnFiles:
    """`number` files NAME-0, NAME-1, ... in the directory `locks`, which is made when it is missing.

    A turn is an flock, so the kernel takes it back when its holder dies. The files are never unlinked: two processes
    could then hold one turn on two inodes.
    """

    def __init__(self, locks: Path, name: str, number: int) -> None:
        self.paths = [locks / f"{name}-{each}" for each in range(number)]
        self._locks = locks

    def take(self) -> int | None:
        """The descriptor of a turn, to be closed when it is over; None while there is none free. Raises OSError where
        no turn can be had, now or later."""
        self._locks.mkdir(parents=True, exist_ok=True)
        for path in self.paths:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(fd), os.stat(path)):
                    return fd
            except (BlockingIOError, FileNotFoundError):
                pass
            except OSError:
                os.close(fd)
                raise
            os.close(fd)
        return None


def turns_at(num_cores: int) -> int:
    """How many may use the processor at once: one for every four cores."""
    return max(1, num_cores // _CORES_PER_TURN)
