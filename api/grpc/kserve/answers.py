"""Events of a generation as infer responses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from tickertape.api.events import Echo, Event, Piece, PromptScored
from tickertape.api.generation import Generation
from tickertape.api.grpc.kserve.requests import InferRequest
from tickertape.api.grpc.kserve.tensors import pack_texts, pack_uint32
from tickertape.api.openai.logprobs import chat_logprobs

__all__ = ["InferAnswer"]

_FINAL = "triton_final_response"
_VERSION = "1"


class _Choice:
    def __init__(self) -> None:
        self.texts: list[str] = []
        self.logprobs: list[Any] = []
        self.num_tokens = 0
        self.finish: str | None = None


class InferAnswer:
    """Responses of one generation. `messages` are the protocol's classes."""

    def __init__(self, messages: Any, request: InferRequest, id: str, generation: Generation) -> None:
        self._messages = messages
        self._request = request
        self._id = id
        self._generation = generation

    def response(self, events: Iterable[Event], *, final: bool) -> Any:
        """What the events say, for all choices."""
        choices = [_Choice() for _ in range(self._generation.num_choices)]
        tokenizer = self._generation.model.tokenizer
        for event in events:
            if isinstance(event, PromptScored):
                continue
            choice = choices[event.choice]
            choice.texts.append(event.text)
            if isinstance(event, Echo):
                continue
            if event.logprobs and self._request.logprobs:
                choice.logprobs += chat_logprobs(event.logprobs, tokenizer).content
            _count(choice, event)
        response = self.empty(final=final)
        request = self._request
        self._add(response, "text_output", "BYTES", pack_texts(["".join(c.texts).encode() for c in choices]))
        if request.finish_reason:
            reasons = [(c.finish or "None").encode() for c in choices]  # Triton says None while there is none
            self._add(response, "finish_reason", "BYTES", pack_texts(reasons))
        if request.num_input_tokens:
            length = self._generation.usage.prompt_tokens
            self._add(response, "num_input_tokens", "UINT32", pack_uint32([length]), 1)
        if request.num_output_tokens:
            self._add(response, "num_output_tokens", "UINT32", pack_uint32([c.num_tokens for c in choices]))
        if request.logprobs:
            texts = [msgspec.json.encode(c.logprobs) for c in choices]
            self._add(response, "logprobs", "BYTES", pack_texts(texts))
        return response

    def empty(self, *, final: bool) -> Any:
        """Without outputs."""
        response = self._messages.ModelInferResponse(
            model_name=self._generation.model.name, model_version=_VERSION, id=self._id
        )
        if self._request.stream or final:
            response.parameters[_FINAL].bool_param = final
        return response

    def _add(self, response: Any, name: str, datatype: str, data: bytes, length: int | None = None) -> None:
        wanted = self._request.wanted
        if wanted is None or name in wanted:
            shape = [self._generation.num_choices if length is None else length]
            response.outputs.add(name=name, datatype=datatype, shape=shape)
            response.raw_output_contents.append(data)


def _count(choice: _Choice, piece: Piece) -> None:
    choice.num_tokens += len(piece.tokens)
    if piece.finish is not None:
        choice.finish = piece.finish
