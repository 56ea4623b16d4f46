"""The methods that generate: a message in, a generation, its answer out."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final

import msgspec

from tickertape.api.generation import Generation
from tickertape.api.grpc.native.answers import ChatAnswer, GenerateAnswer, usage_message
from tickertape.api.grpc.native.bodies import chat_body, generate_body
from tickertape.api.grpc.rpc import Call
from tickertape.api.openai.heads import Head
from tickertape.api.openai.routes import Chat, Completion
from tickertape.api.options import WireOptions
from tickertape.api.proto.tickertape.v1.chat_pb2 import ChatRequest, ChatResponse, ChatStreamResponse
from tickertape.core.errors import InvalidRequest

__all__ = ["ChatMethods", "GenerateMethods"]

_NO_RULE: Final = "'openai_json' excludes every other field"
_EVENT: Final = b"data: "


class GenerateMethods:
    """Generate and GenerateStream. Bodies are checked by `kind`, as the HTTP side checks them."""

    def __init__(
        self, kind: Completion | Chat, body: Callable[[Any], dict[str, Any]], answer: Callable[..., Any]
    ) -> None:
        self._kind = kind
        self._body = body
        self._answer = answer

    @classmethod
    def over(cls, kind: Completion) -> GenerateMethods:
        return cls(kind, generate_body, GenerateAnswer)

    async def whole(self, request: Any, call: Call) -> Any:
        generation = await self._start(self._body(request), call, stream=False)
        answer = self._answer(generation.model.tokenizer, generation.num_choices)
        try:
            async for events in generation:
                answer.add(events)
            return answer.whole(generation.usage)
        finally:
            await generation.aclose()
            call.ended(generation)

    async def stream(self, request: Any, call: Call) -> AsyncGenerator[Any, None]:
        generation = await self._start(self._body(request), call, stream=True)
        answer = self._answer(generation.model.tokenizer, 0)
        last = None
        try:
            async for events in generation:
                if last is not None:
                    yield last
                last = answer.stream(events)
                # The last message carries the usage; until it is known to be the last, only an ending one is held.
                if not any(getattr(event, "finish", None) for event in events):
                    yield last
                    last = None
            last = answer.part() if last is None else last
            last.usage.CopyFrom(usage_message(generation.usage))
            yield last
        finally:
            await generation.aclose()
            call.ended(generation)

    async def _start(self, body: Mapping[str, Any], call: Call, *, stream: bool) -> Generation:
        # As the HTTP side has it, a stream is asked for in the body.
        parsed = self._kind.parse({**body, "stream": stream}, lenient=False)
        call.named(parsed.request.model)
        return await self._kind.start(parsed.request, tenant=call.tenant, timeout_s=call.timeout_s)  # type: ignore[arg-type]


class ChatMethods:
    """Chat and ChatStream, typed or with the JSON of the HTTP API in them."""

    def __init__(self, kind: Chat, options: WireOptions) -> None:
        self._kind = kind
        self._options = options
        self._typed = GenerateMethods(kind, chat_body, ChatAnswer)

    async def whole(self, request: ChatRequest, call: Call) -> ChatResponse:
        if not request.openai_json:
            answer: ChatResponse = await self._typed.whole(request, call)
            return answer
        generation, parsed = await self._start_json(request, call, stream=False)
        try:
            head = Head.make(self._kind.id_prefix, self._kind.whole_object, generation.model, time.time())
            return ChatResponse(openai_json=(await self._kind.fold(generation, head, parsed)).decode())
        finally:
            await generation.aclose()
            call.ended(generation)

    async def stream(self, request: ChatRequest, call: Call) -> AsyncGenerator[ChatStreamResponse, None]:
        if not request.openai_json:
            async with aclosing(self._typed.stream(request, call)) as answers:
                async for answer in answers:
                    yield answer
            return
        generation, parsed = await self._start_json(request, call, stream=True)
        try:
            head = Head.make(self._kind.id_prefix, self._kind.stream_object, generation.model, time.time())
            chunks = self._kind.chunks(generation, head, parsed)
            begin = chunks.begin()
            async for events in generation:
                yield ChatStreamResponse(openai_json=_texts(begin + chunks.events(events)))
                begin = b""
            if end := chunks.end():
                yield ChatStreamResponse(openai_json=_texts(end))
        finally:
            await generation.aclose()
            call.ended(generation)

    async def _start_json(self, request: ChatRequest, call: Call, *, stream: bool) -> tuple[Generation, Any]:
        if len(request.ListFields()) > 1:
            raise InvalidRequest(_NO_RULE, param="openai_json")
        try:
            body = msgspec.json.decode(request.openai_json)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidRequest("'openai_json' is not JSON", code="invalid_json", param="openai_json") from error
        if not isinstance(body, dict):
            raise InvalidRequest("'openai_json' must be an object", code="invalid_type", param="openai_json")
        parsed = self._kind.parse({**body, "stream": stream}, lenient=self._options.lenient).request
        call.named(parsed.model)
        return await self._kind.start(parsed, tenant=call.tenant, timeout_s=call.timeout_s), parsed  # type: ignore[arg-type]


def _texts(events: bytes) -> list[str]:
    """The JSON in server-sent events."""
    return [event.removeprefix(_EVENT).decode() for event in events.split(b"\n\n") if event]
