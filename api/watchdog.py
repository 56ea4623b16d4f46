"""Notices an engine that has work and makes no step."""

from __future__ import annotations

from collections.abc import Callable

from tickertape.api.admission import Admission
from tickertape.api.models import Models

__all__ = ["Watchdog"]


class Watchdog:
    """Looks when it is asked (by the liveness probe): a model is stalled when two looks `stall_s` apart found requests
    in flight and the same number of steps, and every look between them did too. What is in flight is the front's own
    count, since a hung worker's figures stand still."""

    def __init__(
        self, models: Models, admission: Admission, clock: Callable[[], float], *, stall_s: float = 60.0
    ) -> None:
        self._models = models
        self._admission = admission
        self._clock = clock
        self._stall_s = stall_s
        self._seen: dict[str, tuple[int, float]] = {}

    def stalled(self) -> str | None:
        """The name of a model that stands still, or None."""
        now = self._clock()
        found = None
        for model in self._models.list():
            if self._admission.in_flight(model.name) == 0:
                self._seen.pop(model.name, None)
                continue
            steps = model.engine.stats().num_steps
            before, since = self._seen.setdefault(model.name, (steps, now))
            if before != steps:
                self._seen[model.name] = (steps, now)
            elif now - since >= self._stall_s:
                found = model.name
        return found
