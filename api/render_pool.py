"""Rendering and tokenizing off the event loop: a few threads, and a bounded line of jobs before them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from tickertape.api.templates import ChatTemplate
from tickertape.core.errors import Overloaded

__all__ = ["RenderPool"]

T = TypeVar("T")


class RenderPool:
    """Runs plain functions on `num_threads` threads. A slow template holds up the others that wait here, never the
    event loop. Threads share Python's lock with the loop, so more of them do not render faster."""

    def __init__(self, *, num_threads: int = 2, max_waiting: int = 64) -> None:
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="render")
        self._max_jobs = num_threads + max_waiting
        self._num_jobs = 0
        self._lock = threading.Lock()

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises. Raises Overloaded when `max_waiting` jobs wait already. Cancelling takes a
        waiting job out of the line; a running one keeps its thread until it ends."""
        with self._lock:
            if self._num_jobs >= self._max_jobs:
                raise Overloaded("too many prompts are waiting to be rendered", retry_after_s=1.0)
            self._num_jobs += 1
        try:
            job = self._threads.submit(work)
        except RuntimeError:  # closed
            self._leave(None)
            raise
        job.add_done_callback(self._leave)
        return await asyncio.wrap_future(job)

    async def render(
        self,
        template: ChatTemplate,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """`template.render` on a thread."""
        return await self.run(
            lambda: template.render(
                messages,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=tools,
                kwargs=kwargs,
            )
        )

    def close(self) -> None:
        """Drops waiting jobs; running ones end by themselves. Nothing may be run afterwards."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _leave(self, _: Future[Any] | None) -> None:
        with self._lock:
            self._num_jobs -= 1
