"""Our own paged engine: an `Engine` over a `ModelRunner`, with its loop on a thread of this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from threading import Thread

from msgspec.structs import replace

from tickertape.core.backend import Capabilities
from tickertape.core.driver import Driver
from tickertape.core.errors import EngineDead, TickertapeError, Unavailable
from tickertape.core.grammar import GrammarCompiler
from tickertape.core.kv_cache import KVCache
from tickertape.core.logits_processor import LogitsProcessorSpec
from tickertape.core.loop import EngineLoop
from tickertape.core.memory import Limits, MemoryPlan, fit_blocks
from tickertape.core.policy import make_policy
from tickertape.core.ports import EngineStats, ModelRunner
from tickertape.core.request import Request, TokenDelta
from tickertape.core.scheduler import Scheduler
from tickertape.core.step import StepEvents

__all__ = ["PagedEngine", "paged_loop"]


def paged_loop(
    runner: ModelRunner,
    limits: Limits,
    capabilities: Capabilities,
    *,
    num_blocks: int | None = None,
    kv_cache_bytes: int | None = None,
    policy: str = "arrival",
    grammars: GrammarCompiler | None = None,
    processors: Mapping[str, LogitsProcessorSpec] | None = None,
    on_step: Callable[[float, EngineStats], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[EngineLoop, MemoryPlan, tuple[int, ...]]:
    """A loop over a loaded runner: asks for its plan, sizes the pools, has it allocate them.

    `num_blocks` per cache group (the null block included) wins over `kv_cache_bytes`; one of them must be given.
    `grammars` compiles the grammars of requests; without it, or on a runner without masks, these are refused.
    `processors` are the logits processors there are. Returns (loop, plan, blocks per group). Raises StartupError when
    the memory does not suffice.
    """
    if not capabilities.chunked:
        limits = replace(limits, max_model_len=min(limits.max_model_len, limits.max_batch_tokens))
    plan = runner.plan(limits)
    if num_blocks is not None:
        blocks = (num_blocks,) * len(plan.groups)
    elif kv_cache_bytes is not None:
        blocks = fit_blocks(plan, limits, kv_cache_bytes)
    else:
        raise ValueError("either num_blocks or kv_cache_bytes must be given")
    prefix_cache = capabilities.prefix_cache and capabilities.chunked
    kv = KVCache(limits, plan.groups, blocks, prefix_cache=prefix_cache)
    runner.allocate(blocks)
    usable = processors if processors is not None and capabilities.logits_processors else {}
    scheduler = Scheduler(limits, kv, make_policy(policy), chunked=capabilities.chunked, processors=usable)
    loop = EngineLoop(
        runner,
        scheduler,
        ahead=capabilities.ahead,
        grammars=grammars if capabilities.masks else None,
        on_step=on_step,
        clock=clock,
    )
    return loop, plan, blocks


class PagedEngine:
    """Implements `tickertape.core.ports.Engine`. Everything but the driver's thread happens on one asyncio loop.

    `generate` of a slow consumer costs memory only for the tokens of its own request, which max_tokens bounds.
    """

    def __init__(self, loop: EngineLoop, plan: MemoryPlan) -> None:
        self._loop = loop
        self._plan = plan
        self._driver = Driver(loop, self._deliver)
        self._streams: dict[int, asyncio.Queue[TokenDelta | TickertapeError]] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._thread: Thread | None = None
        self._asyncio_loop: asyncio.AbstractEventLoop | None = None
        self._stats = loop.stats()
        self._refusal: TickertapeError | None = Unavailable("the engine has not been started")

    def plan(self) -> MemoryPlan:
        return self._plan

    async def start(self) -> None:
        self._asyncio_loop = asyncio.get_running_loop()
        self._thread = Thread(target=self._run, name="engine", daemon=True)
        self._refusal = None
        self._thread.start()

    async def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        if self._refusal is not None:
            raise self._refusal
        queue: asyncio.Queue[TokenDelta | TickertapeError] = asyncio.Queue()
        self._streams[request.id] = queue
        self._idle.clear()
        done = False
        try:
            self._driver.submit(request)
            while not done:
                item = await queue.get()
                if isinstance(item, TickertapeError):
                    done = True
                    raise item
                done = item.finish is not None
                yield item
        finally:
            self._streams.pop(request.id, None)
            if not self._streams:
                self._idle.set()
            if not done:
                self._driver.abort(request.id)

    def stats(self) -> EngineStats:
        return self._stats

    async def health(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    async def stop(self, grace_s: float) -> None:
        thread = self._thread  # another stop may come to its end, and clear this, while this one waits
        if thread is None:
            return
        if self._refusal is None:
            self._refusal = Unavailable("the server is shutting down", code="draining")
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), grace_s)
        self._fail_all(Unavailable("the server is shutting down", code="draining"))
        self._driver.stop()
        await asyncio.to_thread(thread.join)
        self._thread = None

    def _run(self) -> None:
        assert self._asyncio_loop is not None
        try:
            self._driver.run()
        except BaseException as error:
            # The reason goes to every open stream and to health(); a thread has nobody to raise to.
            dead = EngineDead(f"the engine stopped: {type(error).__name__}: {error}")
            dead.__cause__ = error
            self._asyncio_loop.call_soon_threadsafe(self._die, dead)
        finally:
            self._loop.close()

    def _deliver(self, events: StepEvents, stats: EngineStats) -> None:
        """On the driver's thread: one wake-up of the asyncio loop per step."""
        assert self._asyncio_loop is not None
        self._asyncio_loop.call_soon_threadsafe(self._distribute, events, stats)

    def _distribute(self, events: StepEvents, stats: EngineStats) -> None:
        self._stats = stats
        streams = self._streams
        for request_id, delta in events.deltas:
            if queue := streams.get(request_id):
                queue.put_nowait(delta)
        for request_id, error in events.failures:
            if queue := streams.get(request_id):
                queue.put_nowait(error)

    def _die(self, error: EngineDead) -> None:
        self._refusal = error
        self._fail_all(error)

    def _fail_all(self, error: TickertapeError) -> None:
        for queue in self._streams.values():
            queue.put_nowait(error)
