"""The port: vLLM as an engine."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Any

from tickertape.plugins import (
    BackendOptions,
    EngineDead,
    EngineStats,
    MemoryPlan,
    ModelSpec,
    Request,
    SamplingParams,
    TickertapeError,
    TokenDelta,
    Unavailable,
    pack_tokens,
)
from tickertape.plugins.backends.reads import Ended, Reads
from tickertape.plugins.backends.tally import Tally
from tickertape.plugins.backends.vllm.answering import Answer, error_of
from tickertape.plugins.backends.vllm.arguments import Arguments, read_arguments
from tickertape.plugins.backends.vllm.asking import Asking
from tickertape.plugins.backends.vllm.guardian import Guardian, descendants
from tickertape.plugins.backends.vllm.library import Library, load_library
from tickertape.plugins.backends.vllm.recorder import Recorder

__all__ = ["VllmEngine", "make"]

_log = logging.getLogger(__name__)


def make(spec: ModelSpec, options: BackendOptions) -> VllmEngine:
    """Imports vllm. Raises StartupError when that fails, and for settings that it does not have."""
    library = load_library()
    return VllmEngine(spec, library, read_arguments(spec, options, library.AsyncEngineArgs, library.device))


class VllmEngine:
    """Implements `tickertape.plugins.Engine`. When vLLM's engine process dies this engine is dead, and so ends the
    worker, which the supervisor starts again."""

    def __init__(self, spec: ModelSpec, library: Library, arguments: Arguments) -> None:
        self._library = library
        self._arguments = arguments
        self._plan = MemoryPlan(spec.weight_bytes, 0, 0, ())
        self._max_model_len = spec.max_model_len
        self._asking = Asking(
            library, arguments.adapters, priorities=arguments.engine.get("scheduling_policy") == "priority"
        )
        self._recorder = Recorder()
        self._tally = Tally()
        self._reads = Reads()
        self._ids = itertools.count()
        self._num_blocks = 0
        self._block_tokens = 0
        self._llm: Any = None
        self._guardian: Guardian | None = None
        self._refusal: TickertapeError | None = Unavailable("the engine has not been started")

    def plan(self) -> MemoryPlan:
        """The weights; what else it takes vLLM measures by itself."""
        return self._plan

    async def start(self) -> None:
        """Takes a minute, during which nothing else happens on this loop: vLLM's sockets belong to the loop on which
        they are made. Raises what vLLM raises."""
        started = time.monotonic()
        library = self._library
        before = descendants()
        args = library.AsyncEngineArgs(**self._arguments.engine)
        self._llm = library.AsyncLLM.from_engine_args(args, stat_loggers=[self._recorder.make])
        self._guardian = Guardian(before)
        config = getattr(self._llm, "vllm_config", None)
        cache = getattr(config, "cache_config", None)
        self._num_blocks = getattr(cache, "num_gpu_blocks", None) or 0
        self._block_tokens = getattr(cache, "block_size", None) or 0
        self._max_model_len = getattr(getattr(config, "model_config", None), "max_model_len", self._max_model_len)
        self._refusal = None
        await self._warm()
        self._tally = Tally()
        _log.info("vllm %s is ready after %.1f s", library.version, time.monotonic() - started)

    async def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        if self._refusal is not None:
            raise self._refusal
        with self._tally.stream(request.num_prompt_tokens) as counted:
            answer = Answer(request)
            async with aclosing(self._outputs(request)) as outputs:
                while not answer.finished:
                    try:
                        delta = answer.push(await self._reads.next(outputs))
                        if (
                            delta is not None and delta.finish is not None
                        ):  # and so are the outputs; closing them earlier would abort the request
                            await anext(outputs, None)
                    except Ended:
                        assert self._refusal is not None
                        raise self._refusal from None
                    except StopAsyncIteration:
                        raise EngineDead("vllm ended an answer without a reason") from None
                    except Exception as error:
                        raise error_of(error, self._library) from error
                    if delta is not None:
                        counted.count(delta)
                        yield delta

    def stats(self) -> EngineStats:
        recorder = self._recorder
        return self._tally.stats(
            max_model_len=self._max_model_len,
            num_blocks=self._num_blocks,
            num_used_blocks=round(self._num_blocks * recorder.used_ratio),
            kv_capacity_tokens=self._num_blocks * self._block_tokens,
            num_steps=recorder.num_steps,
            num_preemptions=recorder.num_preemptions,
        )

    async def health(self) -> None:
        if self._refusal is not None:
            raise self._refusal
        try:
            await self._llm.check_health()
        except Exception as error:
            raise EngineDead(f"vllm is dead: {' '.join(str(error).split())}") from error

    async def stop(self, grace_s: float) -> None:
        self._refusal = Unavailable("the server is shutting down", code="draining")
        with suppress(TimeoutError):
            await asyncio.wait_for(self._tally.idle.wait(), grace_s)
        self._reads.end()
        llm, self._llm = self._llm, None
        if llm is not None:
            with suppress(TimeoutError):  # streams that were ended abort their requests first
                await asyncio.wait_for(self._tally.idle.wait(), 1.0)
            await asyncio.to_thread(llm.shutdown)
        if self._guardian is not None:
            await asyncio.to_thread(self._guardian.close)
            self._guardian = None

    def _outputs(self, request: Request) -> Any:
        """vLLM's own generator; closing it aborts the request. Raises errors of the tree."""
        asking = self._asking
        try:
            return self._llm.generate(
                asking.prompt(request),
                asking.params(request),
                # Ids of ours come again after a restart of the front; those of vllm must not.
                f"{next(self._ids)}",
                lora_request=asking.adapter(request),
                priority=request.priority,
            )
        except Exception as error:
            raise error_of(error, self._library) from error

    async def _warm(self) -> None:
        """The kinds of sampling once, so that the first clients do not wait for what is compiled on first use."""
        plain = SamplingParams(max_tokens=2, seed=1, temperature=0.0, logprobs=1)
        drawn = SamplingParams(max_tokens=2, seed=1, top_k=2, top_p=0.9)
        requests = [
            Request(id=n, prompt=pack_tokens([0, 1]), num_prompt_tokens=2, sampling=sampling)
            for n, sampling in enumerate((plain, drawn))
        ]
        await asyncio.gather(*(self._drain(request) for request in requests))

    async def _drain(self, request: Request) -> None:
        async for _ in self.generate(request):
            pass
