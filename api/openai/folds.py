"""Whole answers, folded from the same events as the streams."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from tickertape.api.events import Echo, Event, Piece, PromptScored, StopReason
from tickertape.api.generation import Generation
from tickertape.api.openai.heads import Head, UsageBody, usage_body
from tickertape.api.openai.logprobs import (
    ChatLogprobs,
    LegacyLogprobs,
    PromptEntry,
    TokenNames,
    chat_logprobs,
    legacy_logprobs,
    prompt_entries,
)
from tickertape.core.errors import EngineFault

__all__ = ["ChatAnswer", "CompletionAnswer", "fold_chat", "fold_completion"]

PromptLogprobs = list[dict[str, PromptEntry] | None]


class _Function(Struct):
    name: str
    arguments: str


class _ToolCall(Struct):
    id: str
    type: str
    function: _Function


class _ChatMessage(Struct):
    """`content` is null when there is none, beside calls and where there was to be nothing else."""

    role: str
    content: str | None
    refusal: None = None
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[_ToolCall] | UnsetType = UNSET


class _ChatChoice(Struct):
    index: int
    message: _ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    stop_reason: StopReason
    token_ids: list[int] | UnsetType = UNSET


class ChatAnswer(Struct):
    id: str
    object: str
    created: int
    model: str
    choices: list[_ChatChoice]
    usage: UsageBody
    system_fingerprint: str
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class _CompletionChoice(Struct):
    text: str
    index: int
    logprobs: LegacyLogprobs | None
    finish_reason: str
    stop_reason: StopReason
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class CompletionAnswer(Struct):
    id: str
    object: str
    created: int
    model: str
    choices: list[_CompletionChoice]
    usage: UsageBody
    system_fingerprint: str


class _Whole:
    """One choice, gathered."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[tuple[str, str, list[str]]] = []  # id, name, parts of the arguments
        self.tokens: list[int] = []
        self.parts: list[tuple[int, Piece | Echo]] = []  # with the offset that the part's own offsets start from
        self.num_echoed = 0
        self.last: Piece | None = None

    def add(self, event: Piece | Echo) -> None:
        if isinstance(event, Piece) and event.kind == "reasoning":
            self.reasoning.append(event.text)
        else:
            self.texts.append(event.text)
        if isinstance(event, Piece) and (part := event.call) is not None:
            if part.id is not None and part.name is not None:
                self.calls.append((part.id, part.name, []))
            self.calls[part.index][2].append(part.arguments)
        if event.logprobs is not None:
            self.parts.append((self.num_echoed, event))
        if isinstance(event, Echo):
            self.num_echoed = len(event.text)
            return
        self.tokens += event.tokens
        if event.finish is not None:
            self.last = event

    def message(self, *, calls_only: bool) -> _ChatMessage:
        content = "".join(self.texts)
        made = _ChatMessage("assistant", content if content or not (self.calls or calls_only) else None)
        if self.reasoning:
            made.reasoning = made.reasoning_content = "".join(self.reasoning)
        if self.calls:
            made.tool_calls = [
                _ToolCall(id, "function", _Function(name, "".join(parts))) for id, name, parts in self.calls
            ]
        return made

    @property
    def finish(self) -> tuple[str, StopReason]:
        if self.last is None or self.last.finish is None:
            raise EngineFault("A choice ended without a reason")
        return self.last.finish, self.last.stop_reason

    def chat_logprobs(self, names: TokenNames) -> ChatLogprobs | None:
        if not self.parts:
            return None
        return chat_logprobs([entry for _, part in self.parts for entry in part.logprobs or ()], names)

    def legacy_logprobs(self, names: TokenNames) -> LegacyLogprobs | None:
        if not self.parts:
            return None
        whole = LegacyLogprobs([], [], [], [])
        for offset, part in self.parts:
            whole.extend(legacy_logprobs(part, names, offset))
        return whole


class _Gathered:
    def __init__(self, num_choices: int) -> None:
        self.choices = [_Whole() for _ in range(num_choices)]
        self.scores: dict[int, PromptScored] = {}

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, PromptScored):
                self.scores[event.prompt] = event
            else:
                self.choices[event.choice].add(event)


async def _gather(generation: Generation) -> _Gathered:
    gathered = _Gathered(generation.num_choices)
    async for events in generation:
        gathered.add(events)
    return gathered


async def fold_chat(
    generation: Generation, head: Head, names: TokenNames, *, return_token_ids: bool, calls_only: bool
) -> bytes:
    """Runs the generation to its end; the body of the answer. Raises what the generation raises."""
    gathered = await _gather(generation)
    tokenizer = generation.model.tokenizer
    choices = []
    for index, whole in enumerate(gathered.choices):
        reason, stop_reason = whole.finish
        choice = _ChatChoice(
            index,
            whole.message(calls_only=calls_only),
            whole.chat_logprobs(names),
            reason,
            stop_reason,
        )
        if return_token_ids:
            choice.token_ids = whole.tokens
        choices.append(choice)
    answer = ChatAnswer(
        head.id, head.object, head.created, head.model, choices, usage_body(generation.usage), head.system_fingerprint
    )
    if (scored := gathered.scores.get(0)) is not None:
        answer.prompt_logprobs = prompt_entries(scored.logprobs, tokenizer)
    if return_token_ids:
        answer.prompt_token_ids = list(generation.prompts[0].tokens)
    return _encoded(answer)


async def fold_completion(generation: Generation, head: Head, names: TokenNames, *, return_token_ids: bool) -> bytes:
    """As `fold_chat`."""
    gathered = await _gather(generation)
    tokenizer = generation.model.tokenizer
    each = generation.num_choices // len(generation.prompts)
    choices = []
    for index, whole in enumerate(gathered.choices):
        reason, stop_reason = whole.finish
        choice = _CompletionChoice("".join(whole.texts), index, whole.legacy_logprobs(names), reason, stop_reason)
        prompt, again = divmod(index, each)
        if again == 0 and (scored := gathered.scores.get(prompt)) is not None:
            choice.prompt_logprobs = prompt_entries(scored.logprobs, tokenizer)
        if return_token_ids:
            choice.token_ids = whole.tokens
            choice.prompt_token_ids = list(generation.prompts[prompt].tokens)
        choices.append(choice)
    return _encoded(
        CompletionAnswer(
            head.id,
            head.object,
            head.created,
            head.model,
            choices,
            usage_body(generation.usage),
            head.system_fingerprint,
        )
    )


def _encoded(answer: Any) -> bytes:
    return msgspec.json.encode(answer)
