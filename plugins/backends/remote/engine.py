"""The port: a server that is reached over HTTP, as an engine."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Final

import msgspec

from tickertape.plugins import (
    BackendOptions,
    EngineDead,
    EngineStats,
    MemoryPlan,
    ModelSpec,
    Request,
    RowError,
    StartupError,
    TickertapeError,
    TokenDelta,
    Unavailable,
    unpack_tokens,
)
from tickertape.plugins.backends.reads import Ended, Reads
from tickertape.plugins.backends.remote.answering import Answer, Chunk
from tickertape.plugins.backends.remote.asking import body_of
from tickertape.plugins.backends.remote.faults import fault_of
from tickertape.plugins.backends.remote.figures import Figures
from tickertape.plugins.backends.remote.options import read_options
from tickertape.plugins.backends.remote.upstream import Identity, Upstream
from tickertape.plugins.backends.tally import Tally

__all__ = ["UpstreamEngine", "make"]

_FIGURES_S: Final = 5.0
_DRAIN_S: Final = 1.0

_log = logging.getLogger(__name__)


def make(spec: ModelSpec, options: BackendOptions) -> UpstreamEngine:
    """Raises StartupError for options that are wrong."""
    return UpstreamEngine(spec.name, Upstream(*read_options(spec, options)))


class UpstreamEngine:
    """Implements `tickertape.plugins.Engine`. A server that is away makes it unavailable, never dead: starting our own
    process again would not bring it back."""

    def __init__(self, name: str, upstream: Upstream) -> None:
        self._name = name
        self._plan = MemoryPlan(0, 0, 0, ())
        self._upstream = upstream
        self._identity: Identity | None = None
        self._decoder = msgspec.json.Decoder(Chunk)
        self._tally = Tally()
        self._figures = Figures()
        self._figures_due = 0.0
        self._reads = Reads()
        self._refusal: TickertapeError | None = Unavailable("the engine has not been started")

    def plan(self) -> MemoryPlan:
        """Nothing is taken here."""
        return self._plan

    async def start(self) -> None:
        """Whether the server is up yet does not matter; that it has the model does, if it is. Raises StartupError."""
        try:
            await self._identify()
        except Unavailable as error:
            _log.warning("%s: %s", self._name, error.message)
        except StartupError:
            await self._upstream.close()
            raise
        self._refusal = None

    async def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        if self._refusal is not None:
            raise self._refusal
        with self._tally.stream(request.num_prompt_tokens) as counted:
            identity = await self._identify()
            body = body_of(request, identity.model, identity.dialect)
            prompt = unpack_tokens(request.prompt)
            answer = Answer(request)
            async with aclosing(self._upstream.ask(body)) as texts:  # type: ignore[type-var]
                while not answer.finished:
                    delta = answer.push(self._decoded(await self._next(texts)), prompt)
                    if delta is not None:
                        counted.count(delta)
                        yield delta
                await self._drain(texts)

    def stats(self) -> EngineStats:
        """Requests and tokens are ours; the memory is the server's, as last seen by `health`, shared with others."""
        figures = self._figures
        return self._tally.stats(
            max_model_len=self._identity.max_model_len if self._identity else 0,
            num_blocks=figures.num_blocks,
            num_used_blocks=figures.num_used_blocks,
            kv_capacity_tokens=figures.kv_capacity_tokens,
        )

    async def health(self) -> None:
        if self._refusal is not None:
            raise self._refusal
        await self._upstream.health()
        await self._identify()
        if time.monotonic() >= self._figures_due:
            self._figures_due = time.monotonic() + _FIGURES_S
            self._figures = await self._upstream.figures()

    async def stop(self, grace_s: float) -> None:
        self._refusal = Unavailable("the server is shutting down", code="draining")
        with suppress(TimeoutError):
            await asyncio.wait_for(self._tally.idle.wait(), grace_s)
        self._reads.end()
        await self._upstream.close()

    async def _identify(self) -> Identity:
        if self._identity is None:
            self._identity = await self._upstream.identify(self._name)
        return self._identity

    async def _drain(self, texts: AsyncIterator[bytes]) -> None:
        """What follows the finish, so that the connection can serve another request."""
        with suppress(TimeoutError, TickertapeError):
            async with asyncio.timeout(_DRAIN_S):
                async for _ in texts:
                    pass

    async def _next(self, texts: AsyncIterator[bytes]) -> bytes:
        """The next text. Ended by `stop`, with its reason."""
        try:
            return await self._reads.next(texts)
        except Ended:
            assert self._refusal is not None
            raise self._refusal from None
        except StopAsyncIteration:
            raise EngineDead("the server behind this model ended its answer without a reason") from None
        except EngineDead:
            # A reader that lags finds its connection closed when the engine has stopped meanwhile.
            if self._refusal is not None:
                raise self._refusal from None
            raise

    def _decoded(self, text: bytes) -> Chunk:
        try:
            chunk = self._decoder.decode(text)
        except msgspec.DecodeError as error:
            raise RowError(f"the server behind this model answers in no way that is known: {error}") from error
        if chunk.error is not None:
            raise fault_of(chunk.error)
        return chunk
