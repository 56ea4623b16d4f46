"""How the server as a whole stands, from how each of its models does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal

from tickertape.api.health import Readiness
from tickertape.api.warmup import Warmup
from tickertape.core.messages import WarmupCounts
from tickertape.core.ports import Progress
from tickertape.progress import Meter, ProgressView

__all__ = ["Standing"]

_REASONS: Final = MappingProxyType(
    {
        "plan": "Planning",
        "wait": "Queued",
        "slot": "Queued",
        "peer": "DownloadingPeer",
        "download": "DownloadingOrigin",
        "unpack": "DownloadingOrigin",
        "verify": "Verifying",
        "cooldown": "Cooldown",
        "space": "NoSpace",
        "convert": "Converting",
        "cast": "Casting",
        "quantize": "Quantizing",
        "turn": "Queued",
        "prefault": "Prefaulting",
        "load": "Loading",
        "warm": "Warming",
    }
)
_WAITING: Final = frozenset({"wait", "slot", "cooldown", "space", "turn"})
_PLANNING: Final = Progress("plan", 0, 0)
_MARGIN_S: Final = 60.0


class _Model:
    """One model on its way. While its files come, that is what it does, even if a worker loads what has come."""

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self.name = name
        self.here = False
        self.ready = False
        self.fetching = _PLANNING
        self.loading = Progress("load", 0, 0)
        self.moved_at = clock()
        self.meter = Meter(clock)

    @property
    def progress(self) -> Progress:
        return self.loading if self.here else self.fetching


class Standing:
    """Ready while every model is; until then the first that is not speaks for all. Draining and failing are final.
    Used on the front's loop only.

    A fetch that repeats itself for `fetch_patience_s` and a minute does not count as progress any more, unless it waits
    for somebody. Loading does as long as its process says so.
    """

    def __init__(
        self,
        readiness: Readiness,
        view: ProgressView,
        names: Sequence[str],
        warmup: Warmup | None = None,
        *,
        fetch_patience_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._readiness = readiness
        self._view = view
        self._warmup = Warmup() if warmup is None else warmup
        self._fetch_patience_s = fetch_patience_s
        self._clock = clock
        self._models = [_Model(name, clock) for name in names]
        self._final = False
        for model in self._models:
            self._enter(model)
        self._tell_first()

    def fetching(self, number: int, progress: Progress) -> None:
        """Of the model asked for at that place."""
        model = self._models[number]
        waits = progress.stage in _WAITING
        if progress != model.fetching or waits:
            model.moved_at = self._clock()
        model.fetching = progress
        if not model.here:
            self._show(model, beats=self._clock() - model.moved_at <= self._fetch_patience_s + _MARGIN_S)

    def resolved(self, number: int, name: str, *, complete: bool) -> None:
        """What the model is called, and whether all of it is here."""
        model = self._models[number]
        self._warmup.states.pop(model.name, None)
        model.name, model.here = name, model.here or complete
        self._enter(model)
        self._tell_first()

    def loading(self, name: str, progress: Progress) -> None:
        model = self._named(name)
        model.loading = progress
        if model.here:
            self._show(model, beats=True)

    def counted(self, counts: WarmupCounts) -> None:
        self._warmup.counts = counts

    def ready(self, name: str) -> bool:
        """Whether that was the last one missing."""
        model = self._named(name)
        model.ready = model.here = True
        self._enter(model)
        if self._final:
            return False
        if self._tell_first():
            return False
        self._view.close()
        self._readiness.set_state("ready")
        return True

    def lost(self, name: str) -> None:
        model = self._named(name)
        model.ready, model.loading = False, Progress("load", 0, 0)
        self._enter(model)
        if not self._final:
            self._readiness.set_state("loading", "WorkerRestarting")

    def draining(self) -> None:
        self._end("draining", "Draining")

    def failed(self, reason: str) -> None:
        for model in self._models:
            self._warmup.enter(model.name, "failed")
        self._end("failed", reason)

    def _show(self, model: _Model, *, beats: bool) -> None:
        self._view.show(model.name, model.progress)
        self._enter(model)
        if model is self._first_waiting():
            self._tell(model, beats=beats)
        elif beats:
            self._readiness.beat()

    def _tell_first(self) -> bool:
        """False when there is none any more."""
        if (waiting := self._first_waiting()) is not None:
            self._tell(waiting, beats=True)
        return waiting is not None

    def _tell(self, model: _Model, *, beats: bool) -> None:
        if self._final:
            return
        progress = model.progress
        reason = _REASONS.get(progress.stage, "Loading")
        self._readiness.set_state("loading", reason, self._body(model, progress), beats=beats)

    def _body(self, model: _Model, progress: Progress) -> dict[str, Any]:
        counts = self._warmup.counts
        return {
            "model": model.name,
            **model.meter.measure(progress),
            "bytes": dict(counts.num_bytes),
            "slot_wait_s": round(counts.slot_wait_s, 1),
            "origin_requests": counts.num_origin_requests,
            "origin_429": counts.num_origin_429,
        }

    def _enter(self, model: _Model) -> None:
        if not self._final:
            self._warmup.enter(model.name, "ready" if model.ready else model.progress.stage)

    def _first_waiting(self) -> _Model | None:
        return next((model for model in self._models if not model.ready), None)

    def _named(self, name: str) -> _Model:
        return next(model for model in self._models if model.name == name)

    def _end(self, state: Literal["draining", "failed"], reason: str) -> None:
        self._view.close()
        if not self._final:
            self._final = True
            self._readiness.set_state(state, reason)
