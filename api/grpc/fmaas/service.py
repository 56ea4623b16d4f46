"""`fmaas.GenerationService`, method by method."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from itertools import pairwise
from typing import Any

from tickertape.api.detokenizer import Detokenizer
from tickertape.api.events import Event, PromptScored
from tickertape.api.generation import Generation
from tickertape.api.grpc.fmaas.answers import Answer
from tickertape.api.grpc.fmaas.protocol import messages
from tickertape.api.grpc.fmaas.requests import body_of, check_adapter, field_of
from tickertape.api.grpc.rpc import Call, Method
from tickertape.api.models import ServedModel
from tickertape.api.openai.routes import Completion
from tickertape.api.service import Service

__all__ = ["FmaasService"]


class FmaasService:
    """Used on the front's loop only."""

    def __init__(self, service: Service) -> None:
        self.protocol = messages()
        self._service = service
        self._models = service.models
        self._kind = Completion(service)

    def methods(self) -> dict[str, Method]:
        of = self.protocol
        return {
            "Generate": Method(
                self.generate, of.BatchedGenerationRequest, of.BatchedGenerationResponse, naming=field_of
            ),
            "GenerateStream": Method(
                self.generate_stream, of.SingleGenerationRequest, of.GenerationResponse, stream=True, naming=field_of
            ),
            "Tokenize": Method(self.tokenize, of.BatchedTokenizeRequest, of.BatchedTokenizeResponse, naming=field_of),
            "ModelInfo": Method(self.model_info, of.ModelInfoRequest, of.ModelInfoResponse, naming=field_of),
        }

    async def generate(self, request: Any, call: Call) -> Any:
        """All requests at once, each an answer of its own."""
        texts = [each.text for each in request.requests]
        generation, answers = await self._start(request, texts, call, stream=False)
        try:
            for answer in answers:
                answer.input()
            async with aclosing(_limited(generation, request.params)) as batches:
                async for events in batches:
                    for n, answer in enumerate(answers):
                        answer.add(_of_prompt(events, n))
            for answer in answers:
                if not answer.finished:
                    answer.timed_out()
            return self.protocol.BatchedGenerationResponse(responses=[answer.take() for answer in answers])
        finally:
            await generation.aclose()
            call.ended(generation)

    async def generate_stream(self, request: Any, call: Call) -> AsyncGenerator[Any, None]:
        """First what is to be said of the input, then the text as it comes."""
        generation, (answer,) = await self._start(request, [request.request.text], call, stream=True)
        try:
            answer.input()
            async with aclosing(_limited(generation, request.params)) as batches:
                async for events in batches:
                    if (first := answer.take()) is not None:
                        yield first
                    answer.add(events)
                    if not answer.finished and (message := answer.take()) is not None:
                        yield message
            if not answer.finished:
                answer.timed_out()
            yield answer.take()
        finally:
            await generation.aclose()
            call.ended(generation)

    async def tokenize(self, request: Any, call: Call) -> Any:
        check_adapter(request)
        model = self._model(request.model_id, call)
        found = self.protocol.BatchedTokenizeResponse()
        for each in request.requests:
            tokens = await self._service.tokenize(model, each.text, add_special_tokens=True)
            tokens = tokens[-request.truncate_input_tokens :]
            answer = found.responses.add(token_count=len(tokens))
            if request.return_tokens:
                answer.tokens.extend(model.tokenizer.token_text(token) for token in tokens)
                if request.return_offsets:
                    for start, end in _offsets(model, tokens):
                        answer.offsets.add(start=start, end=end)
        return found

    async def model_info(self, request: Any, call: Call) -> Any:
        model = self._model(request.model_id, call)
        length = model.max_model_len
        return self.protocol.ModelInfoResponse(max_sequence_length=length, max_new_tokens=max(length - 1, 0))

    async def _start(
        self, request: Any, texts: Sequence[str], call: Call, *, stream: bool
    ) -> tuple[Generation, list[Answer]]:
        check_adapter(request)
        call.named(request.model_id)
        body = body_of(request.model_id, texts, request.params, stream=stream)
        parsed = self._kind.parse(body, lenient=False)
        generation = await self._kind.start(parsed.request, tenant=call.tenant, timeout_s=call.timeout_s)  # type: ignore[arg-type]
        call.started(generation)
        options = request.params.response
        answers = [Answer(self.protocol, generation, n, options, text) for n, text in enumerate(texts)]
        return generation, answers

    def _model(self, name: str, call: Call) -> ServedModel:
        call.named(name)
        return self._models.get(name)


async def _limited(generation: Generation, params: Any) -> AsyncGenerator[list[Event], None]:
    """Ends quietly when the request's time limit has passed."""
    limit_s = params.stopping.time_limit_millis / 1000 or None
    when = None if limit_s is None else asyncio.get_running_loop().time() + limit_s
    while True:
        timer = asyncio.timeout_at(when)
        try:
            async with timer:
                events = await anext(generation, None)
        except TimeoutError:
            if not timer.expired():
                raise
            return
        if events is None:
            return
        yield events


def _of_prompt(events: Sequence[Event], prompt: int) -> list[Event]:
    """Each prompt has one choice, of its number."""
    return [
        event for event in events
        if (event.prompt if isinstance(event, PromptScored) else event.choice) == prompt
    ]  # fmt: skip


def _offsets(model: ServedModel, tokens: Sequence[int]) -> list[tuple[int, int]]:
    """Where each token's text stands in the text of all, in characters."""
    detokenizer = Detokenizer(model.tokenizer, skip_special_tokens=False)
    ends = [0]
    for token in tokens:
        ends.append(ends[-1] + len(detokenizer.push(token)))
    return list(pairwise(ends))
