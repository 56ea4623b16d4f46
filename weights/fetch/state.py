"""What the threads of one fetch share."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tickertape.core.errors import StartupError
from tickertape.weights.fetch.incoming import Incoming
from tickertape.weights.files import unwritable

__all__ = ["FetchState"]


class FetchState:
    """`lock` guards everything here and the files. `changed` wakes the thread that conducts the fetch."""

    def __init__(self, files: Sequence[Incoming]) -> None:
        self.files = files
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.fatal: BaseException | None = None
        self.trouble: StartupError | None = None  # the last that may pass
        self.has_room = True
        self.was_full = False  # the disk, and nothing was gained since
        self.gained_bytes = 0
        self.num_from_peers = 0  # streams

    @property
    def is_done(self) -> bool:
        return all(file.is_done for file in self.files)

    @property
    def goes_on(self) -> bool:
        """Whether more may be asked for."""
        return self.fatal is None and self.has_room

    def fail(self, error: BaseException) -> None:
        """Ends the fetch; the first failure counts."""
        with self.lock:
            self.fatal = self.fatal or error
            self.changed.notify_all()

    def unwritten(self, error: OSError, doing: str) -> None:
        """Ends the fetch, unless the disk is full: of that there may be an end."""
        trouble = unwritable(error, doing)
        if trouble.code != "NoSpace":
            self.fail(trouble)
            return
        with self.lock:
            self.trouble = trouble
            self.has_room, self.was_full = False, True
            self.changed.notify_all()
