"""A child's progress on its way to the front: thinned out when there is much of it, repeated while it stands still."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Final

from tickertape.core.ports import Progress

__all__ = ["Pulse"]

_SAY_EVERY_S: Final = 0.1
_AGAIN_S: Final = 5.0
_LOOK_S: Final = 0.5


class Pulse:
    """Calls `send` with what `report` gets, at most ten times a second of one stage, and with the latest again every
    5 s from a thread of its own, so that silence means that the process hangs and not that its work is long. With
    `figures`, `tell` gets those when they have changed, at most every half second.

    A context manager: nothing is sent after its end but what `flush` sends. `report` raises what `send` raises; the
    thread ends by itself when it cannot send.
    """

    def __init__(
        self,
        send: Callable[[Progress], None],
        *,
        figures: Callable[[], Any] | None = None,
        tell: Callable[[Any], None] | None = None,
    ) -> None:
        self._send = send
        self._figures, self._tell = figures, tell
        self._told: Any = None
        self._telling = threading.Lock()
        self._latest: Progress | None = None
        self._said = ("", 0.0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)

    def report(self, progress: Progress) -> None:
        self._latest = progress
        stage, at = self._said
        now = time.monotonic()
        if stage != progress.stage or now - at >= _SAY_EVERY_S or progress.done == progress.total > 0:
            self._said = (progress.stage, now)
            self._send(progress)

    def flush(self) -> None:
        """Tells the figures if they have changed."""
        if self._figures is None or self._tell is None:
            return
        with self._telling:
            figures = self._figures()
            if figures != self._told:
                self._told = figures
                self._tell(figures)

    def quiet(self) -> None:
        """There is nothing to repeat any more."""
        self._latest = None

    def __enter__(self) -> Pulse:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with suppress(OSError):
            while not self._over.wait(_LOOK_S):
                self.flush()
                latest, (_, at) = self._latest, self._said
                now = time.monotonic()
                if latest is not None and now - at >= _AGAIN_S:
                    self._said = (latest.stage, now)
                    self._send(latest)
