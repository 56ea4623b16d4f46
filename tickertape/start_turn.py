"""Turns at starting: of many servers that start at once on a node, a few at a time import their libraries, so that the
first is ready about as soon as if it were alone. Standard library only."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from tickertape.weights.turn_files import TurnFiles, turns_at

__all__ = ["StartTurn"]

_NAP_S: Final = 0.02
_PATIENCE_S: Final = 20.0
"""An import takes seconds; a holder that has not let go by then is stuck, and nobody waits for it."""


class StartTurn:
    """One of the turns of those that share the directory `locks`. Where that cannot be made or written to, or the file
    system has no locks, there are none."""

    def __init__(self, locks: Path, num_cores: int) -> None:
        self._files = TurnFiles(locks, "start", turns_at(num_cores))
        self._fd: int | None = None

    def take(self, patience_s: float = _PATIENCE_S) -> bool:
        """Waits for a turn. False when there is none to be had in that time: the caller goes on all the same."""
        deadline = time.monotonic() + patience_s
        while True:
            try:
                self._fd = self._files.take()
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
