"""How the server as a whole stands, from how each of its models does."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import MappingProxyType
from typing import Final, Literal

from tickertape.api.health import Readiness
from tickertape.core.ports import Progress
from tickertape.progress import Meter, ProgressView

__all__ = ["Standing"]

_REASONS: Final = MappingProxyType(
    {
        "wait": "Queued",
        "download": "DownloadingOrigin",
        "unpack": "DownloadingOrigin",
        "verify": "Verifying",
        "convert": "Converting",
        "cast": "Casting",
        "load": "Loading",
        "warm": "Warming",
    }
)


class Standing:
    """Ready while every model is. Draining and failing are final. Used on the front's loop only."""

    def __init__(
        self, readiness: Readiness, view: ProgressView, num_models: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._readiness = readiness
        self._view = view
        self._meter = Meter(clock)
        self._num_models = num_models
        self._serving: set[str] = set()
        self._final = False

    def loading(self, name: str, progress: Progress) -> None:
        self._view.show(name, progress)
        if not self._final:
            reason = _REASONS.get(progress.stage, "Loading")
            self._readiness.set_state("loading", reason, self._meter.measure(progress))

    def ready(self, name: str) -> bool:
        """Whether that was the last one missing."""
        self._serving.add(name)
        if len(self._serving) < self._num_models or self._final:
            return False
        self._view.close()
        self._readiness.set_state("ready")
        return True

    def lost(self, name: str) -> None:
        self._serving.discard(name)
        if not self._final:
            self._readiness.set_state("loading", "WorkerRestarting")

    def draining(self) -> None:
        self._end("draining", "Draining")

    def failed(self, reason: str) -> None:
        self._end("failed", reason)

    def _end(self, state: Literal["draining", "failed"], reason: str) -> None:
        self._view.close()
        if not self._final:
            self._final = True
            self._readiness.set_state(state, reason)
