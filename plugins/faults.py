"""What plugins do wrong after they have loaded: told in one line each, counted, and stopped when it does not end."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from threading import Lock
from types import MappingProxyType
from typing import Final

__all__ = ["MAX_FAULTS", "Faults"]

MAX_FAULTS: Final = 10
"""What is optional of a plugin (its observers, its parsers) is no longer called after so many."""

_log = logging.getLogger("tickertape.plugins")


class Faults:
    """Counts by plugin. Thread-safe."""

    def __init__(self, limit: int = MAX_FAULTS) -> None:
        self._limit = limit
        self._counts: dict[str, int] = {}
        self._lock = Lock()

    def report(self, plugin: str, where: str, error: BaseException) -> None:
        """Logs one line per fault up to the limit, then that the plugin is no longer called."""
        with self._lock:
            count = self._counts[plugin] = self._counts.get(plugin, 0) + 1
        if count <= self._limit:
            text = " ".join(str(error).split())
            _log.error("plugin %r failed in %s: %s: %s", plugin, where, type(error).__name__, text)
        if count == self._limit:
            _log.error("plugin %r failed %d times: its observers and parsers are not called any more", plugin, count)

    def disabled(self, plugin: str) -> bool:
        return self._counts.get(plugin, 0) >= self._limit

    @property
    def counts(self) -> Mapping[str, int]:
        return MappingProxyType(dict(self._counts))
