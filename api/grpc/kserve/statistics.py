"""What `ModelStatistics` tells: how often a model was asked through this protocol, and how long that took."""

from __future__ import annotations

import time
from typing import Any

__all__ = ["Statistics"]


class _Figures:
    def __init__(self) -> None:
        self.success = [0, 0]  # count, nanoseconds
        self.fail = [0, 0]
        self.last_ms = 0


class Statistics:
    """By model, for as long as the server runs. Used on the front's loop only."""

    def __init__(self) -> None:
        self._models: dict[str, _Figures] = {}

    def asked(self, model: str, *, ok: bool, duration_s: float) -> None:
        """`model` is a served name."""
        figures = self._models.setdefault(model, _Figures())
        part = figures.success if ok else figures.fail
        part[0] += 1
        part[1] += int(duration_s * 1e9)
        figures.last_ms = int(time.time() * 1000)

    def fill(self, message: Any, model: str) -> None:
        figures = self._models.get(model) or _Figures()
        message.last_inference = figures.last_ms
        message.inference_count = message.execution_count = figures.success[0]
        stats = message.inference_stats
        stats.success.count, stats.success.ns = figures.success
        stats.fail.count, stats.fail.ns = figures.fail
