"""Notices an engine that has work and makes no step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tickertape.api.admission import Admission
from tickertape.api.models import Models

__all__ = ["Watchdog"]

_LOOK_S: Final = 1.0


class Watchdog:
    """Looks when it is asked (by the probes), and every second while it runs: a model is stalled when two looks
    `stall_s` apart found requests in flight and the same figures of work done, and every look between them did too.
    What is in flight is the front's own count, since a hung worker's figures stand still. Engines of plugins are left
    to their own word on their health: theirs may queue elsewhere for long. Used on the front's loop only."""

    def __init__(
        self, models: Models, admission: Admission, clock: Callable[[], float], *, stall_s: float = 60.0
    ) -> None:
        self._models = models
        self._admission = admission
        self._clock = clock
        self._stall_s = stall_s
        self._seen: dict[str, tuple[tuple[int, ...], float]] = {}

    async def run(self) -> None:
        """Until cancelled: a probe that comes late then knows of a stall that began before it."""
        while True:
            self.stalled()
            await asyncio.sleep(_LOOK_S)

    def forget(self, name: str) -> None:
        """Another worker computes this model from now on, and has its own time."""
        self._seen.pop(name, None)

    def stalled(self) -> str | None:
        """The name of a model that stands still, or None."""
        now = self._clock()
        found = None
        for model in self._models.list():
            if not model.own_engine or self._admission.in_flight(model.name) == 0:
                self._seen.pop(model.name, None)
                continue
            stats = model.engine.stats()
            done = (stats.num_steps, stats.num_prompt_tokens, stats.num_generated_tokens)
            before, since = self._seen.setdefault(model.name, (done, now))
            if before != done:
                self._seen[model.name] = (done, now)
            elif now - since >= self._stall_s:
                found = model.name
        return found
