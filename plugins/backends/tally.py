"""What an engine counts of its own streams, when what computes them is somebody else's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from tickertape.plugins import EngineStats, TokenDelta

__all__ = ["Stream", "Tally"]


class Stream:
    """One request: waiting until its first delta."""

    def __init__(self, tally: Tally, num_prompt_tokens: int) -> None:
        self._tally = tally
        self._num_prompt_tokens = num_prompt_tokens
        self.running = False

    def count(self, delta: TokenDelta) -> None:
        """Before the delta is handed on."""
        tally = self._tally
        if not self.running:
            self.running = True
            tally.num_running += 1
            tally.num_prompt_tokens += self._num_prompt_tokens
            tally.num_cached_tokens += delta.num_cached_tokens or 0
        tally.num_generated_tokens += len(delta.tokens)


class Tally:
    """Belongs to one asyncio loop."""

    def __init__(self) -> None:
        self.num_open = 0
        self.num_running = 0
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.num_generated_tokens = 0
        self.idle = asyncio.Event()
        self.idle.set()

    @contextmanager
    def stream(self, num_prompt_tokens: int) -> Iterator[Stream]:
        """Counts a request until the end of the block, however that comes."""
        stream = Stream(self, num_prompt_tokens)
        self.num_open += 1
        self.idle.clear()
        try:
            yield stream
        finally:
            self.num_open -= 1
            self.num_running -= stream.running
            if not self.num_open:
                self.idle.set()

    def stats(
        self,
        *,
        max_model_len: int = 0,
        num_blocks: int = 0,
        num_used_blocks: int = 0,
        kv_capacity_tokens: int = 0,
        num_steps: int = 0,
        num_preemptions: int = 0,
    ) -> EngineStats:
        """With what the caller knows of the rest. Nothing is used while no stream is open: figures that come from
        elsewhere come late."""
        used = min(num_used_blocks, num_blocks) if self.num_open else 0
        return EngineStats(
            num_running=self.num_running,
            num_waiting=self.num_open - self.num_running,
            num_blocks=num_blocks,
            num_free_blocks=num_blocks - used,
            num_used_blocks=used,
            kv_capacity_tokens=kv_capacity_tokens,
            max_model_len=max_model_len,
            num_steps=num_steps,
            num_preemptions=num_preemptions,
            num_prompt_tokens=self.num_prompt_tokens,
            num_cached_tokens=self.num_cached_tokens,
            num_generated_tokens=self.num_generated_tokens,
        )
