"""A load generator for any OpenAI-compatible chat server: closed loop, open loop, and what each stream saw.

Speaks HTTP/1.1 over plain asyncio streams, because a full client costs more per chunk than the servers it would
measure. Loopback only, a bounded number of requests, each with a deadline.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

__all__ = ["Target", "Trace", "closed_loop", "open_loop", "prompt_of"]

REQUEST_DEADLINE_S = 300.0
_WORDS = (
    *("river", "stone", "window", "garden", "music", "winter", "copper", "letter", "market", "shadow", "engine"),
    *("island", "paper", "silver", "yellow", "morning", "forest", "bridge", "candle", "mirror", "planet", "basket"),
    *("ribbon", "thunder", "velvet", "harbor", "lantern", "meadow", "orchard", "pepper", "quartz", "saddle"),
)


class Target(Struct, frozen=True):
    """A server to load. `extra` is merged into every body: what a server needs to be asked the same work."""

    port: int
    model: str
    extra: dict[str, Any] = {}


class Trace(Struct):
    """One request as its client saw it; times on the event loop's clock. `chunk_times_s` has each chunk with text;
    `num_tokens` is what the server said it generated, or the number of such chunks where it does not say."""

    started_s: float
    chunk_times_s: list[float]
    ended_s: float = 0.0
    num_tokens: int = 0
    num_prompt_tokens: int = 0
    error: str | None = None

    @property
    def ttft_s(self) -> float:
        return self.chunk_times_s[0] - self.started_s

    @property
    def gaps_s(self) -> list[float]:
        return [b - a for a, b in zip(self.chunk_times_s, self.chunk_times_s[1:], strict=False)]


def prompt_of(number: int, num_words: int) -> str:
    """A prompt unlike the others from its first word on, so that no prefix cache helps anybody."""
    rng = random.Random(number)
    return f"{number} " + " ".join(rng.choice(_WORDS) for _ in range(num_words))


async def ask(target: Target, prompt: str, max_tokens: int) -> Trace:
    """One streamed chat request."""
    trace = Trace(time.perf_counter(), [])
    body = {
        "model": target.model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    } | target.extra
    try:
        async with asyncio.timeout(REQUEST_DEADLINE_S):
            await _stream(target.port, json.dumps(body).encode(), trace)
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError) as error:
        trace.error = f"{type(error).__name__}: {error}"
    trace.ended_s = time.perf_counter()
    if trace.error is None and not trace.chunk_times_s:
        trace.error = "no text came"
    trace.num_tokens = trace.num_tokens or len(trace.chunk_times_s)
    return trace


async def _stream(port: int, body: bytes, trace: Trace) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    try:
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Accept: text/event-stream\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        status = await reader.readline()
        while (await reader.readline()).strip():
            pass
        if b" 200 " not in status:
            raise ValueError(f"{status.decode().strip()} {(await reader.read(300)).decode(errors='replace')}")
        while line := await reader.readline():
            # Chunk sizes of the transfer coding are lines too; only events matter.
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            _note(json.loads(line[6:]), trace)
    finally:
        writer.close()


def _note(event: dict[str, Any], trace: Trace) -> None:
    if "error" in event:
        raise ValueError(str(event["error"]))
    if usage := event.get("usage"):
        trace.num_tokens = usage.get("completion_tokens", 0)
        trace.num_prompt_tokens = usage.get("prompt_tokens", 0)
    if any((choice.get("delta") or {}).get("content") for choice in event.get("choices", ())):
        trace.chunk_times_s.append(time.perf_counter())


async def closed_loop(target: Target, prompts: Sequence[str], num_streams: int, max_tokens: int) -> list[Trace]:
    """`num_streams` clients, each asking again as soon as it has its answer, until the prompts are used up."""
    left = iter(prompts)

    async def client() -> list[Trace]:
        return [await ask(target, prompt, max_tokens) for prompt in left]

    return [trace for traces in await asyncio.gather(*(client() for _ in range(num_streams))) for trace in traces]


async def open_loop(target: Target, prompts: Sequence[str], rate: float, max_tokens: int, seed: int) -> list[Trace]:
    """Requests arrive as a Poisson process of `rate` a second, whether or not earlier ones are answered."""
    rng = random.Random(seed)
    tasks = []
    for prompt in prompts:
        tasks.append(asyncio.create_task(ask(target, prompt, max_tokens)))
        await asyncio.sleep(rng.expovariate(rate))
    return list(await asyncio.gather(*tasks))
