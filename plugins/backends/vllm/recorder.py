"""What vllm tells of its steps: one of its "stat loggers"."""

from __future__ import annotations

from typing import Any

__all__ = ["Recorder"]


class Recorder:
    """Called on the engine's loop after each step's outputs. The records are no stable interface of vllm's, so all is
    read with a default, and nothing here raises: that would end the engine."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.num_preemptions = 0
        self.used_ratio = 0.0

    def make(self, vllm_config: Any = None, engine_index: int = 0) -> Recorder:
        """The factory that vllm wants: one recorder for all engines of a data-parallel group."""
        return self

    def record(self, scheduler_stats: Any = None, iteration_stats: Any = None, *_: Any, **__: Any) -> None:
        self.num_steps += 1
        ratio = getattr(scheduler_stats, "kv_cache_usage", None)
        if isinstance(ratio, int | float):
            self.used_ratio = min(1.0, max(0.0, float(ratio)))
        preempted = getattr(iteration_stats, "num_preempted_reqs", 0)
        self.num_preemptions += preempted if isinstance(preempted, int) else 0

    def log(self, *_: Any, **__: Any) -> None:
        """Nobody reads its lines here."""

    def log_engine_initialized(self, *_: Any, **__: Any) -> None:
        """Nor this one."""

    def record_sleep_state(self, *_: Any, **__: Any) -> None:
        """It does not sleep."""

    def record_admission_rejection(self, *_: Any, **__: Any) -> None:
        """The request that was refused says so itself."""
