"""`tickertape.v1.TokenStream`, method by method."""

from __future__ import annotations

from typing import Final

from tickertape.api.grpc.native.bodies import chat_field, generate_field
from tickertape.api.grpc.native.generating import ChatMethods, GenerateMethods
from tickertape.api.grpc.rpc import Call, Method
from tickertape.api.models import ServedModel
from tickertape.api.openai.routes import Chat, Completion
from tickertape.api.options import WireOptions
from tickertape.api.proto.tickertape.v1 import chat_pb2, generate_pb2, token_stream_pb2
from tickertape.api.proto.tickertape.v1.token_stream_pb2 import (
    AbortRequest,
    AbortResponse,
    DetokenizeRequest,
    DetokenizeResponse,
    EmbedRequest,
    EmbedResponse,
    GetLoadRequest,
    GetLoadResponse,
    ListModelsRequest,
    ListModelsResponse,
    Model,
    ModelLoad,
    TokenizeRequest,
    TokenizeResponse,
)
from tickertape.api.sampling import check_tokens
from tickertape.api.service import Service
from tickertape.core.errors import RouteNotFound

__all__ = ["NATIVE", "NativeService"]

NATIVE: Final = "tickertape.v1.TokenStream"


class NativeService:
    """Used on the front's loop only."""

    def __init__(self, service: Service, options: WireOptions) -> None:
        self._service = service
        self._models = service.models
        self._generate = GenerateMethods.over(Completion(service), service.kept)
        self._chat = ChatMethods(Chat(service, options), options, service.kept)

    def methods(self) -> dict[str, Method]:
        generate, chat, of = self._generate, self._chat, token_stream_pb2
        return {
            "Generate": Method(
                generate.whole, generate_pb2.GenerateRequest, generate_pb2.GenerateResponse, naming=generate_field
            ),
            "GenerateStream": Method(
                generate.stream, generate_pb2.GenerateRequest, generate_pb2.GenerateStreamResponse, stream=True,
                naming=generate_field,
            ),
            "Chat": Method(chat.whole, chat_pb2.ChatRequest, chat_pb2.ChatResponse, naming=chat_field),
            "ChatStream": Method(
                chat.stream, chat_pb2.ChatRequest, chat_pb2.ChatStreamResponse, stream=True, naming=chat_field
            ),
            "Tokenize": Method(self.tokenize, of.TokenizeRequest, of.TokenizeResponse),
            "Detokenize": Method(self.detokenize, of.DetokenizeRequest, of.DetokenizeResponse),
            "Embed": Method(self.embed, of.EmbedRequest, of.EmbedResponse),
            "ListModels": Method(self.list_models, of.ListModelsRequest, of.ListModelsResponse),
            "Abort": Method(self.abort, of.AbortRequest, of.AbortResponse),
            "GetLoad": Method(self.get_load, of.GetLoadRequest, of.GetLoadResponse),
        }  # fmt: skip

    async def tokenize(self, request: TokenizeRequest, call: Call) -> TokenizeResponse:
        call.named(request.model)
        model = self._models.get(request.model)
        add = request.add_special_tokens if request.HasField("add_special_tokens") else True
        tokens = await self._service.tokenize(model, request.text, add_special_tokens=add)
        return TokenizeResponse(token_ids=tokens, max_model_len=model.max_model_len)

    async def detokenize(self, request: DetokenizeRequest, call: Call) -> DetokenizeResponse:
        call.named(request.model)
        model = self._models.get(request.model)
        check_tokens(model, request.token_ids, "token_ids")
        text = model.tokenizer.decode(list(request.token_ids), skip_special_tokens=request.skip_special_tokens)
        return DetokenizeResponse(text=text)

    async def embed(self, request: EmbedRequest, call: Call) -> EmbedResponse:
        call.named(request.model)
        raise RouteNotFound("This server serves no embedding models")

    async def list_models(self, _: ListModelsRequest, __: Call) -> ListModelsResponse:
        return ListModelsResponse(models=[_described(model) for model in self._models.list()])

    async def abort(self, request: AbortRequest, call: Call) -> AbortResponse:
        return AbortResponse(found=self._service.running.abort(call.tenant, request.request_id))

    async def get_load(self, request: GetLoadRequest, call: Call) -> GetLoadResponse:
        call.named(request.model)
        models = [self._models.get(request.model)] if request.model else self._models.list()
        return GetLoadResponse(models=[_load(model) for model in models])


def _described(model: ServedModel) -> Model:
    return Model(
        name=model.name,
        created=model.created,
        max_model_len=model.max_model_len,
        vocab_size=model.vocab_size,
        chat=model.template is not None,
    )


def _load(model: ServedModel) -> ModelLoad:
    stats = model.engine.stats()
    return ModelLoad(
        name=model.name,
        running=stats.num_running,
        waiting=stats.num_waiting,
        used_blocks=stats.num_used_blocks,
        total_blocks=stats.num_blocks,
    )
