"""Turns at loading: what a node has little of (its devices, its cores) is not fought over by all that start at once."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tickertape.core.ports import Progress
from tickertape.weights.lock import note_holder
from tickertape.weights.turn_files import TurnFiles, turns_at

__all__ = ["Turns", "turns_of"]

_NAP_S: Final = 0.05  # what a turn loses at most when it goes from one to the next

_log = logging.getLogger(__name__)


class Turns:
    """The `num_turns` turns at `device` of those processes of a node that have the directory `locks` in common.

    Where that directory cannot be written to, or the file system has no locks, everybody goes at once, and the log says
    so.
    """

    def __init__(self, locks: Path, device: str, num_turns: int) -> None:
        self._files = TurnFiles(locks, f"turn-{device.replace(':', '-')}", num_turns)

    @contextmanager
    def taken(self, report: Callable[[Progress], None]) -> Iterator[None]:
        """Holds a turn. `report` hears the seconds waited and who is on, about once a second; it may raise to give
        up. Those who wait are not in a queue."""
        fd = self._take(report)
        try:
            yield
        finally:
            if fd is not None:
                os.close(fd)

    def _take(self, report: Callable[[Progress], None]) -> int | None:
        started = time.monotonic()
        said_s = -1.0
        while True:
            try:
                fd = self._files.take()
            except OSError as error:
                _log.info("nobody takes turns at loading here: %s", error.strerror or error)
                return None
            if fd is not None:
                with suppress(OSError):  # a full disk must not keep anybody from loading
                    note_holder(fd)
                return fd
            waited_s = time.monotonic() - started
            if waited_s - said_s >= 1.0:
                said_s = waited_s
                report(Progress("turn", int(waited_s), 0, "seconds", detail=self._holders()))
            time.sleep(_NAP_S)

    def _holders(self) -> str:
        """For people; nothing is decided by it."""
        found = []
        for path in self._files.paths:
            with suppress(OSError, ValueError, KeyError, TypeError):
                found.append(str(int(json.loads(path.read_bytes())["pid"])))
        return f"process {', '.join(found)} is loading" if found else ""


def turns_of(store: Path, device: str, num_cores: int) -> Turns:
    """Of `device` as settings spell it: one at a time on each GPU, on the CPU one for every four cores."""
    if device == "cpu":
        return Turns(store / "locks", device, turns_at(num_cores))
    kind, _, number = device.partition(":")
    return Turns(store / "locks", f"{kind}:{number or 0}", 1)
