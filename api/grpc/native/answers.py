"""Events of a generation as messages of the native wire."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from tickertape.api.events import Echo, Ending, Event, Piece, PromptScored, Usage
from tickertape.api.model_tokenizer import ModelTokenizer
from tickertape.api.proto.tickertape.v1 import answer_pb2
from tickertape.api.proto.tickertape.v1.answer_pb2 import Finish, FinishReason, TokenLogprob
from tickertape.api.proto.tickertape.v1.chat_pb2 import ChatChoice, ChatResponse, ChatStreamResponse
from tickertape.api.proto.tickertape.v1.generate_pb2 import GenerateChoice, GenerateResponse, GenerateStreamResponse
from tickertape.core.request import TokenLogprobs

__all__ = ["ChatAnswer", "GenerateAnswer", "usage_message"]

_LEAST: Final = -9999.0
"""Stands for minus infinity, as on the HTTP side."""

_REASONS: Final[dict[Ending, FinishReason]] = {
    "stop": FinishReason.FINISH_REASON_STOP,
    "length": FinishReason.FINISH_REASON_LENGTH,
    "tool_calls": FinishReason.FINISH_REASON_TOOL_CALLS,
}


class GenerateAnswer:
    """Messages of one generation. `num_choices`: of the whole answer."""

    part = GenerateStreamResponse

    def __init__(self, tokenizer: ModelTokenizer, num_choices: int) -> None:
        self._tokenizer = tokenizer
        self._whole = GenerateResponse(choices=[GenerateChoice(index=n) for n in range(num_choices)])

    def stream(self, events: Iterable[Event]) -> GenerateStreamResponse:
        message = GenerateStreamResponse()
        for event in events:
            if isinstance(event, Piece) and event.logprobs is None and event.finish is None:  # most are
                message.choices.add(index=event.choice, text=event.text, token_ids=event.tokens)
            elif isinstance(event, PromptScored):
                self._score(message.prompt_logprobs.add(prompt=event.prompt), event)
            else:
                _fill(message.choices.add(index=event.choice, text=event.text), event, self._tokenizer)
        return message

    def add(self, events: Iterable[Event]) -> None:
        """To the whole answer."""
        for event in events:
            if isinstance(event, PromptScored):
                self._score(self._whole.prompt_logprobs.add(prompt=event.prompt), event)
                continue
            choice = self._whole.choices[event.choice]
            choice.text += event.text
            _fill(choice, event, self._tokenizer)

    def whole(self, usage: Usage) -> GenerateResponse:
        self._whole.usage.CopyFrom(usage_message(usage))
        return self._whole

    def _score(self, message: answer_pb2.PromptLogprobs, scored: PromptScored) -> None:
        message.tokens.extend(_entry(each, self._tokenizer) for each in scored.logprobs)


class ChatAnswer:
    """As `GenerateAnswer`."""

    part = ChatStreamResponse

    def __init__(self, tokenizer: ModelTokenizer, num_choices: int) -> None:
        self._tokenizer = tokenizer
        self._whole = ChatResponse(choices=[ChatChoice(index=n) for n in range(num_choices)])

    def stream(self, events: Iterable[Event]) -> ChatStreamResponse:
        message = ChatStreamResponse()
        for event in events:
            if isinstance(event, PromptScored):
                self._score(message.prompt_logprobs, event)
                continue
            choice = message.choices.add(index=event.choice)
            if isinstance(event, Piece) and event.call is not None:
                call = event.call
                choice.tool_calls.add(
                    index=call.index, id=call.id or "", name=call.name or "", arguments=call.arguments
                )
            self._say(choice, event)
        return message

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, PromptScored):
                self._score(self._whole.prompt_logprobs, event)
                continue
            choice = self._whole.choices[event.choice]
            if isinstance(event, Piece) and (call := event.call) is not None:
                if call.id is not None and call.name is not None:
                    choice.tool_calls.add(index=call.index, id=call.id, name=call.name)
                choice.tool_calls[call.index].arguments += call.arguments
            self._say(choice, event)

    def whole(self, usage: Usage) -> ChatResponse:
        self._whole.usage.CopyFrom(usage_message(usage))
        return self._whole

    def _say(self, choice: ChatChoice, event: Piece | Echo) -> None:
        if isinstance(event, Piece) and event.kind == "reasoning":
            choice.reasoning += event.text
        else:
            choice.content += event.text
        _fill(choice, event, self._tokenizer)

    def _score(self, message: answer_pb2.PromptLogprobs, scored: PromptScored) -> None:
        message.tokens.extend(_entry(each, self._tokenizer) for each in scored.logprobs)


def usage_message(usage: Usage) -> answer_pb2.Usage:
    return answer_pb2.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
        reasoning_tokens=usage.reasoning_tokens,
    )


def _fill(choice: Any, event: Piece | Echo, tokenizer: ModelTokenizer) -> None:
    """What both kinds of choices have."""
    if event.logprobs:
        for n, entry in enumerate(event.logprobs):
            # An echoed prompt's first token has no value.
            choice.logprobs.append(
                TokenLogprob(token_id=event.tokens[n], token=tokenizer.token_text(event.tokens[n]))
                if entry is None
                else _entry(entry, tokenizer)
            )
    if isinstance(event, Echo):
        return
    if event.tokens:
        choice.token_ids.extend(event.tokens)
    if event.finish is not None:
        choice.finish.CopyFrom(_finish(event))


def _finish(piece: Piece) -> Finish:
    reason = _REASONS[piece.finish or "stop"]
    if isinstance(piece.stop_reason, str):
        return Finish(reason=reason, stop=piece.stop_reason)
    if piece.stop_reason is not None:
        return Finish(reason=reason, stop_token_id=piece.stop_reason)
    return Finish(reason=reason)


def _entry(entry: TokenLogprobs, tokenizer: ModelTokenizer) -> TokenLogprob:
    first, *top = (
        TokenLogprob(
            token_id=token,
            token=tokenizer.token_text(token),
            token_bytes=tokenizer.token_bytes(token),
            logprob=max(value, _LEAST),
        )
        for token, value in zip(entry.ids, entry.values, strict=True)
    )
    first.rank = entry.rank
    first.top.extend(top)
    return first
