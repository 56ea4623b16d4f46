"""How the server stands, as the probes and the admission see it. Mutated and read on the front's loop only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

from tickertape.core.errors import Unavailable

__all__ = ["Readiness", "State"]

State = Literal["loading", "ready", "draining", "failed"]

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Readiness:
    """`reason` is a CamelCase word (Loading, DownloadingOrigin, NoSpace, Draining, ...). `progress` holds what is known
    of the work going on: bytes done and total, rate, `eta_s`. While the server loads, somebody must `beat` whenever
    that work gets on, at least every `patience_s`; a silent one is reported dead."""

    def __init__(self, clock: Callable[[], float], *, patience_s: float = 60.0) -> None:
        self._clock = clock
        self._patience_s = patience_s
        self._beat = clock()
        self._changed: asyncio.Future[None] | None = None
        self.state: State = "loading"
        self.reason = "Loading"
        self.progress = _NOTHING

    def set_state(
        self, state: State, reason: str = "", progress: Mapping[str, Any] | None = None, *, beats: bool = True
    ) -> None:
        """Counts as a beat unless the caller knows that the work has not got on."""
        self.state = state
        self.reason = reason or state.capitalize()
        self.progress = _NOTHING if progress is None else MappingProxyType(dict(progress))
        if beats:
            self.beat()
        if self._changed is not None:
            changed, self._changed = self._changed, None
            changed.set_result(None)

    def changed(self) -> asyncio.Future[None]:
        """Done when a state is set next. Several may wait for it, each shielded from the others' end."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        return asyncio.shield(self._changed)

    def beat(self) -> None:
        """The work that this state waits for has got on."""
        self._beat = self._clock()

    @property
    def ready(self) -> bool:
        return self.state == "ready"

    @property
    def alive(self) -> bool:
        """False when a load has stood still for `patience_s`. A failed or draining server is alive: its exit is its
        own business."""
        return self.state != "loading" or self._clock() - self._beat <= self._patience_s

    @property
    def eta_s(self) -> float | None:
        eta = self.progress.get("eta_s")
        return float(eta) if isinstance(eta, int | float) else None

    def refusal(self) -> Unavailable | None:
        """Why no new request is taken, or None when one is."""
        if self.state == "ready":
            return None
        if self.state == "draining":
            return Unavailable("The server is shutting down", code="draining", retry_after_s=1.0)
        after_s = min(max(self.eta_s or 1.0, 1.0), 30.0)
        if self.reason == "WorkerRestarting":
            return Unavailable("The engine is being restarted", code="restarting", retry_after_s=after_s)
        if self.state == "failed":
            return Unavailable(f"The server cannot serve: {self.reason}", code="loading", retry_after_s=after_s)
        return Unavailable(f"The model is still loading: {self.reason}", code="loading", retry_after_s=after_s)
