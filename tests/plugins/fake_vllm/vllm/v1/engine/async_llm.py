"""An engine that decodes `max_num_seqs` at once, a token a millisecond, and can be killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from vllm.engine.arg_utils import AsyncEngineArgs  # type: ignore[import-not-found]
from vllm.exceptions import VLLMValidationError  # type: ignore[import-not-found]
from vllm.v1.engine.exceptions import EngineDeadError  # type: ignore[import-not-found]


@dataclass
class Logprob:
    logprob: float
    rank: int


class AsyncLLM:
    def __init__(self, args: AsyncEngineArgs, stat_loggers: list[Any]) -> None:
        self.args = args
        self.vllm_config = SimpleNamespace(
            cache_config=SimpleNamespace(num_gpu_blocks=64, block_size=32),
            model_config=SimpleNamespace(max_model_len=args.max_model_len),
        )
        self.seats = asyncio.Semaphore(args.max_num_seqs or 8)
        self.dead = asyncio.Event()
        self.fault: Exception | None = None
        self.asked: list[dict[str, Any]] = []
        self.num_aborted = 0
        self.recorders = [make(self.vllm_config, 0) for make in stat_loggers]

    @classmethod
    def from_engine_args(
        cls,
        engine_args: AsyncEngineArgs,
        start_engine_loop: bool = True,
        usage_context: Any = None,
        stat_loggers: list[Any] | None = None,
    ) -> AsyncLLM:
        return cls(engine_args, stat_loggers or [])

    async def generate(
        self,
        prompt: dict[str, Any],
        sampling_params: Any,
        request_id: str,
        *,
        lora_request: Any = None,
        priority: int = 0,
    ) -> AsyncIterator[Any]:
        self.asked.append(
            {"prompt": prompt, "params": sampling_params, "id": request_id, "lora": lora_request, "priority": priority}
        )
        if self.fault is not None:
            raise self.fault
        ids = prompt["prompt_token_ids"]
        if len(ids) >= self.args.max_model_len:
            raise VLLMValidationError(f"the prompt ({len(ids)}) is longer than the maximum model length", parameter="x")
        ended = False
        try:
            async with self.seats:
                for n in range(sampling_params.max_tokens):
                    if self.dead.is_set():
                        raise EngineDeadError
                    await asyncio.sleep(0.001)
                    yield self._output(ids, n, sampling_params)
                    ended = n + 1 == sampling_params.max_tokens or self._stops(ids, n, sampling_params)
                    if ended:
                        return
        finally:
            self.num_aborted += not ended

    async def check_health(self) -> None:
        if self.dead.is_set():
            raise EngineDeadError

    def shutdown(self, timeout: float | None = None) -> None:
        self.dead.set()

    def _stops(self, ids: list[int], n: int, params: Any) -> bool:
        return ids[n % len(ids)] in params.stop_token_ids

    def _output(self, ids: list[int], n: int, params: Any) -> Any:
        token = ids[n % len(ids)]
        for recorder in self.recorders:
            stats = SimpleNamespace(kv_cache_usage=0.5)
            recorder.record(stats, SimpleNamespace(num_preempted_reqs=0), mm_cache_stats=None, engine_idx=0)
        stopped = self._stops(ids, n, params)
        reason = "stop" if stopped else "length" if n + 1 == params.max_tokens else None
        table = {token: Logprob(-0.5, 1), **{token + k: Logprob(-0.5 - k, 1 + k) for k in range(1, 4)}}
        part = SimpleNamespace(
            index=0,
            token_ids=[token],
            logprobs=[table] if params.logprobs is not None else None,
            finish_reason=reason,
            stop_reason=token if stopped else None,
        )
        scored = n == 0 and params.prompt_logprobs is not None
        prompt_logprobs = [None, *({id: Logprob(-1.0, 7), 0: Logprob(-0.1, 1)} for id in ids[1:])] if scored else None
        return SimpleNamespace(
            outputs=[part], prompt_logprobs=prompt_logprobs, num_cached_tokens=0, finished=reason is not None
        )
