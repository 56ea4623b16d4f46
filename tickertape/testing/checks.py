"""What must hold after every test."""

from __future__ import annotations

from tickertape.core.ports import EngineStats

__all__ = ["check_idle"]


def check_idle(stats: EngineStats) -> None:
    """The common end check: nothing runs or waits, no block is in use, and every block is free or cached."""
    assert stats.num_running == 0, f"{stats.num_running} requests still run"
    assert stats.num_waiting == 0, f"{stats.num_waiting} requests still wait"
    assert stats.num_used_blocks == 0, f"{stats.num_used_blocks} blocks are still in use"
    accounted = stats.num_free_blocks + stats.num_cached_blocks
    assert accounted == stats.num_blocks, f"{accounted} of {stats.num_blocks} blocks are free or cached"
