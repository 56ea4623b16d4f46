"""How the streaming methods are answered: a stream that begins, one that can be resumed, the rest of one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

from tickertape.api.generation import Generation
from tickertape.api.grpc.rpc import Call
from tickertape.api.kept_stream import KeptStream
from tickertape.api.kept_streams import KeptStreams
from tickertape.core.errors import InvalidRequest

__all__ = ["RESUMING", "Begin", "Streams", "refuse_resuming"]

Begin = Callable[[], Awaitable[tuple[Generation, AsyncGenerator[Any, None]]]]
"""Starts a generation; what it gives, and that as messages. Closing the generation is the caller's."""

RESUMING = ("resumable", "resume_token", "received")
"""The fields that say so, in the requests of both kinds."""


class Streams:
    """Of one method, whose name is the `kind`: its messages differ from another's, so its tokens do too."""

    def __init__(self, kept: KeptStreams, kind: str) -> None:
        self._kept = kept
        self._kind = kind

    async def answers(self, request: Any, call: Call, begin: Begin) -> AsyncGenerator[Any, None]:
        if request.resume_token:
            stream = self._kept.find(tenant=call.tenant, kind=self._kind, token=request.resume_token)
            call.named(stream.generation.model.name)
        elif request.received:
            raise InvalidRequest("'received' needs 'resume_token'", param="received")
        elif request.resumable:
            stream = await self._opened(call, begin)
        else:
            generation, messages = await begin()
            call.started(generation)
            try:
                async with aclosing(messages):
                    async for message in messages:
                        yield message
            finally:
                await generation.aclose()
                call.ended(generation)
            return
        call.started(stream)
        try:
            async with aclosing(stream.read(request.received)) as kept:
                async for data in kept:
                    yield data
        finally:
            call.cost(stream.untold_usage(), None if request.resume_token else stream.generation.ttft_s)

    async def _opened(self, call: Call, begin: Begin) -> KeptStream:
        self._kept.check()  # before it costs anything
        generation, messages = await begin()
        try:
            return self._kept.open(
                generation,
                partial(_numbered, messages),
                tenant=call.tenant,
                kind=self._kind,
                request_id=call.exchange.request_id,
                deadline_s=call.deadline_s,
            )
        except BaseException:
            await generation.aclose()
            raise


def refuse_resuming(request: Any) -> None:
    """A whole answer cannot be resumed. Raises InvalidRequest for one that asks for it."""
    for name in RESUMING:
        if getattr(request, name):
            raise InvalidRequest(f"{name!r} is for streams", code="unsupported_value", param=name)


async def _numbered(messages: AsyncGenerator[Any, None], token: str) -> AsyncGenerator[bytes, None]:
    """From 1 on, the first with the token."""
    number = 0
    async with aclosing(messages):
        async for message in messages:
            number += 1
            message.sequence = number
            if number == 1:
                message.resume_token = token
            yield message.SerializeToString()
