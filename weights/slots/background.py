"""The thread that renews what is held."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

__all__ = ["Background"]

_log = logging.getLogger(__name__)


class Background:
    """A `Keeper`: one daemon thread, there while something is held. A round that raises is logged, and the next one
    tried: what could not be renewed is lost at its deadline, whatever happens here."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._asked = False

    def keep(self, renew: Callable[[], bool], every_s: float) -> None:
        with self._lock:
            self._asked = True
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run, args=(renew, every_s), name="slots", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Waits for the round that is under way. May be called twice."""
        self._closed.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self, renew: Callable[[], bool], every_s: float) -> None:
        while not self._closed.wait(every_s):
            with self._lock:
                self._asked = False
            if self._round(renew):
                continue
            with self._lock:
                if not self._asked:  # else something came to be held meanwhile
                    self._thread = None
                    return

    @staticmethod
    def _round(renew: Callable[[], bool]) -> bool:
        try:
            return renew()
        except Exception:
            _log.exception("renewing the slots to read from origins failed")
            return True
