"""Those who are told what happens. A plugin that fails at it costs itself, never the request or the step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tickertape.plugins.events import Event
from tickertape.plugins.faults import Faults

__all__ = ["Observers"]


class Observers:
    """`observers` are (plugin, function) pairs. False when there are none, so that nobody makes an event for nobody."""

    def __init__(self, observers: Sequence[tuple[str, Callable[..., object]]], faults: Faults) -> None:
        self._observers = tuple(observers)
        self._faults = faults

    def __bool__(self) -> bool:
        return bool(self._observers)

    def __call__(self, event: Event) -> None:
        for plugin, observe in self._observers:
            if self._faults.disabled(plugin):
                continue
            try:
                observe(event=event)
            except Exception as error:
                self._faults.report(plugin, "observe", error)
