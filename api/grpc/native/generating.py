"""The methods that generate: a message in, a generation, its answer out."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Final

import msgspec

from tickertape.api.generation import Generation
from tickertape.api.grpc.native.answers import ChatAnswer, GenerateAnswer, usage_message
from tickertape.api.grpc.native.bodies import chat_body, generate_body
from tickertape.api.grpc.native.streams import RESUMING, Streams, refuse_resuming
from tickertape.api.grpc.rpc import Call
from tickertape.api.kept_streams import KeptStreams
from tickertape.api.openai.heads import Head
from tickertape.api.openai.routes import Chat, Completion
from tickertape.api.options import WireOptions
from tickertape.api.proto.tickertape.v1.chat_pb2 import ChatRequest, ChatResponse, ChatStreamResponse
from tickertape.core.errors import InvalidRequest

__all__ = ["ChatMethods", "GenerateMethods"]

_NO_RULE: Final = "'openai_json' excludes every other field, but for those of resuming"
_EVENT: Final = b"data: "


class GenerateMethods:
    """Generate and GenerateStream, or Chat and ChatStream typed. Bodies are checked by `kind`, as the HTTP side checks
    them."""

    def __init__(
        self,
        kind: Completion | Chat,
        body: Callable[[Any], dict[str, Any]],
        answer: Callable[..., Any],
        streams: Streams,
    ) -> None:
        self._kind = kind
        self._body = body
        self._answer = answer
        self._streams = streams

    @classmethod
    def over(cls, kind: Completion, kept: KeptStreams) -> GenerateMethods:
        return cls(kind, generate_body, GenerateAnswer, Streams(kept, "GenerateStream"))

    async def whole(self, request: Any, call: Call) -> Any:
        refuse_resuming(request)
        generation = await self._start(self._body(request), call, stream=False)
        call.started(generation)
        answer = self._answer(generation.model.tokenizer, generation.num_choices)
        try:
            async for events in generation:
                answer.add(events)
            return answer.whole(generation.usage)
        finally:
            await generation.aclose()
            call.ended(generation)

    def stream(self, request: Any, call: Call) -> AsyncGenerator[Any, None]:
        async def begin() -> tuple[Generation, AsyncGenerator[Any, None]]:
            generation = await self._start(self._body(request), call, stream=True)
            return generation, self._messages(generation)

        return self._streams.answers(request, call, begin)

    async def _messages(self, generation: Generation) -> AsyncGenerator[Any, None]:
        answer = self._answer(generation.model.tokenizer, 0)
        last = None
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

    async def _start(self, body: Mapping[str, Any], call: Call, *, stream: bool) -> Generation:
        # As the HTTP side has it, a stream is asked for in the body.
        parsed = self._kind.parse({**body, "stream": stream}, lenient=False)
        call.named(parsed.request.model)
        return await self._kind.start(parsed.request, tenant=call.tenant, timeout_s=call.timeout_s)  # type: ignore[arg-type]


class ChatMethods:
    """Chat and ChatStream, typed or with the JSON of the HTTP API in them."""

    def __init__(self, kind: Chat, options: WireOptions, kept: KeptStreams) -> None:
        self._kind = kind
        self._options = options
        self._streams = Streams(kept, "ChatStream")
        self._typed = GenerateMethods(kind, chat_body, ChatAnswer, self._streams)

    async def whole(self, request: ChatRequest, call: Call) -> ChatResponse:
        if not request.openai_json:
            answer: ChatResponse = await self._typed.whole(request, call)
            return answer
        refuse_resuming(request)
        generation, parsed = await self._start_json(request, call, stream=False)
        call.started(generation)
        try:
            head = self._head(self._kind.whole_object, generation, call)
            return ChatResponse(openai_json=(await self._kind.fold(generation, head, parsed)).decode())
        finally:
            await generation.aclose()
            call.ended(generation)

    def stream(self, request: ChatRequest, call: Call) -> AsyncGenerator[Any, None]:
        if not request.openai_json:
            return self._typed.stream(request, call)

        async def begin() -> tuple[Generation, AsyncGenerator[Any, None]]:
            generation, parsed = await self._start_json(request, call, stream=True)
            head = self._head(self._kind.stream_object, generation, call)
            return generation, self._json_messages(generation, head, parsed)

        return self._streams.answers(request, call, begin)

    async def _json_messages(
        self, generation: Generation, head: Head, parsed: Any
    ) -> AsyncGenerator[ChatStreamResponse, None]:
        chunks = self._kind.chunks(generation, head, parsed)
        begin = chunks.begin()
        async for events in generation:
            yield ChatStreamResponse(openai_json=_texts(begin + chunks.events(events)))
            begin = b""
        if end := chunks.end():
            yield ChatStreamResponse(openai_json=_texts(end))

    def _head(self, kind: str, generation: Generation, call: Call) -> Head:
        head = Head.make(self._kind.id_prefix, kind, generation.model, time.time())
        call.called(head.id)
        return head

    async def _start_json(self, request: ChatRequest, call: Call, *, stream: bool) -> tuple[Generation, Any]:
        if {field.name for field, _ in request.ListFields()} - {"openai_json", *RESUMING}:
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
