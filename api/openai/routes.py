"""/v1: models, chat completions, completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from tickertape.api.generation import Generation
from tickertape.api.limits import PROMPT_SLACK_TOKENS
from tickertape.api.models import Models, ServedModel
from tickertape.api.openai.chat_stream import ChatStream
from tickertape.api.openai.completion_stream import CompletionStream
from tickertape.api.openai.endpoint import Endpoint, Parsed
from tickertape.api.openai.fields import checked
from tickertape.api.openai.folds import fold_chat, fold_completion
from tickertape.api.openai.heads import Head
from tickertape.api.openai.logprobs import TokenNames, token_names
from tickertape.api.openai.refusals import CHAT_FIXED, COMPLETION_FIXED, refuse_unhonoured, without_unhonoured
from tickertape.api.openai.requests import (
    ChatRequest,
    CompletionRequest,
    SharedRequest,
    to_chat_call,
    to_completion_call,
)
from tickertape.api.openai.stream_tail import StreamTail
from tickertape.api.openai.tools import needs_call
from tickertape.api.options import WireOptions
from tickertape.api.service import Service

__all__ = ["ModelBody", "ModelListBody", "openai_routes"]


class ModelBody(Struct):
    id: str
    object: str
    created: int
    owned_by: str
    max_model_len: int


class ModelListBody(Struct):
    object: str
    data: list[ModelBody]


def _parse(
    model: type[SharedRequest], fixed: Mapping[str, tuple[Any, ...]], body: Mapping[str, Any], lenient: bool
) -> Parsed:
    ignored: tuple[str, ...] = ()
    if lenient:
        body, ignored = without_unhonoured(body, fixed, frozenset(model.model_fields))
    request = checked(model, body)
    refuse_unhonoured(body, fixed)
    return Parsed(request, ignored)


class Chat:
    """The chat completions route, as `Endpoint` needs it."""

    id_prefix = "chatcmpl"
    stream_object = "chat.completion.chunk"
    whole_object = "chat.completion"

    def __init__(self, service: Service, options: WireOptions) -> None:
        self._service = service
        # A template from a client is a program: only where the operator trusts these.
        self._fixed = CHAT_FIXED if options.trust_chat_templates else {**CHAT_FIXED, "chat_template": ()}

    def parse(self, body: Mapping[str, Any], *, lenient: bool) -> Parsed:
        return _parse(ChatRequest, self._fixed, body, lenient)

    async def start(self, request: ChatRequest, *, tenant: str, timeout_s: float | None) -> Generation:
        return await self._service.chat(to_chat_call(request, tenant=tenant, timeout_s=timeout_s))

    def chunks(self, generation: Generation, head: Head, request: ChatRequest) -> ChatStream:
        tail = StreamTail(request.stream_options)
        return ChatStream(
            generation, head, tail, _names(generation, request), return_token_ids=bool(request.return_token_ids)
        )

    async def fold(self, generation: Generation, head: Head, request: ChatRequest) -> bytes:
        names = _names(generation, request)
        return await fold_chat(
            generation,
            head,
            names,
            return_token_ids=bool(request.return_token_ids),
            calls_only=needs_call(request.tool_choice),
        )


class Completion:
    """The completions route."""

    id_prefix = "cmpl"
    stream_object = "text_completion"
    whole_object = "text_completion"

    def __init__(self, service: Service) -> None:
        self._service = service

    def parse(self, body: Mapping[str, Any], *, lenient: bool) -> Parsed:
        return _parse(CompletionRequest, COMPLETION_FIXED, body, lenient)

    async def start(self, request: CompletionRequest, *, tenant: str, timeout_s: float | None) -> Generation:
        longest = max((model.max_model_len for model in self._service.models.list()), default=0)
        call = to_completion_call(
            request, tenant=tenant, timeout_s=timeout_s, max_prompt_ids=longest + PROMPT_SLACK_TOKENS
        )
        return await self._service.complete(call)

    def chunks(self, generation: Generation, head: Head, request: CompletionRequest) -> CompletionStream:
        tail = StreamTail(request.stream_options)
        return CompletionStream(
            generation, head, tail, _names(generation, request), return_token_ids=bool(request.return_token_ids)
        )

    async def fold(self, generation: Generation, head: Head, request: CompletionRequest) -> bytes:
        names = _names(generation, request)
        return await fold_completion(generation, head, names, return_token_ids=bool(request.return_token_ids))


def openai_routes(service: Service, models: Models, options: WireOptions) -> list[BaseRoute]:
    async def list_models(_: Request) -> Response:
        found = ModelListBody("list", [_describe(model) for model in models.list()])
        return Response(msgspec.json.encode(found), media_type="application/json")

    async def get_model(request: Request) -> Response:
        found = _describe(models.get(request.path_params["name"]))
        return Response(msgspec.json.encode(found), media_type="application/json")

    return [
        Route("/v1/models", list_models, methods=["GET"]),
        Route("/v1/models/{name:path}", get_model, methods=["GET"]),
        Route("/v1/chat/completions", Endpoint(Chat(service, options), options, service.running), methods=["POST"]),
        Route("/v1/completions", Endpoint(Completion(service), options, service.running), methods=["POST"]),
    ]


def _names(generation: Generation, request: SharedRequest) -> TokenNames:
    return token_names(generation.model.tokenizer, as_ids=bool(request.return_tokens_as_token_ids))


def _describe(model: ServedModel) -> ModelBody:
    return ModelBody(model.name, "model", model.created, "tickertape", model.max_model_len)
