"""Log probabilities as the chat API, the completions API and vLLM spell them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from msgspec import Struct

from tickertape.api.events import Echo, Piece
from tickertape.api.model_tokenizer import ModelTokenizer
from tickertape.core.request import TokenLogprobs

__all__ = [
    "ChatLogprobs",
    "LegacyLogprobs",
    "PromptEntry",
    "TokenNames",
    "chat_logprobs",
    "legacy_logprobs",
    "prompt_entries",
    "token_names",
]

_LEAST: Final = -9999.0
"""Stands for minus infinity, which JSON does not have; OpenAI's own value."""


class TokenNames(Protocol):
    """What tokens are called in log probabilities. A tokenizer is one: it calls them by their texts."""

    def token_text(self, id: int) -> str: ...
    def token_bytes(self, id: int) -> bytes: ...


class _ByIds:
    """`token_id:17`, as vLLM spells it: unlike texts, no two tokens share a name."""

    def __init__(self, tokenizer: ModelTokenizer) -> None:
        self.token_bytes = tokenizer.token_bytes

    def token_text(self, id: int) -> str:
        return f"token_id:{id}"


def token_names(tokenizer: ModelTokenizer, *, as_ids: bool) -> TokenNames:
    """`as_ids`: the field `return_tokens_as_token_ids`."""
    return _ByIds(tokenizer) if as_ids else tokenizer


class TopLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct):
    content: list[ChatLogprob]
    refusal: None = None


class LegacyLogprobs(Struct):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]

    def extend(self, more: LegacyLogprobs) -> None:
        self.tokens += more.tokens
        self.token_logprobs += more.token_logprobs
        self.top_logprobs += more.top_logprobs
        self.text_offset += more.text_offset


class PromptEntry(Struct):
    """One candidate at a position of the prompt, as vLLM spells it."""

    logprob: float
    rank: int
    decoded_token: str


def chat_logprobs(entries: Sequence[TokenLogprobs | None], names: TokenNames) -> ChatLogprobs:
    """The tokens of a message's text. Entries without a value (the first of an echoed prompt) are left out."""
    content = []
    for entry in entries:
        if entry is None:
            continue
        first, *top = [
            TopLogprob(names.token_text(token), max(value, _LEAST), list(names.token_bytes(token)))
            for token, value in zip(entry.ids, entry.values, strict=True)
        ]
        content.append(ChatLogprob(first.token, first.logprob, first.bytes, top))
    return ChatLogprobs(content)


def legacy_logprobs(event: Piece | Echo, names: TokenNames, offset: int) -> LegacyLogprobs:
    """`offset`: how many characters the choice's text has before the text that the event's offsets count from. The top
    candidates hold the chosen token too, unless none were asked for. Texts that occur twice keep the likelier value."""
    found = LegacyLogprobs([], [], [], [])
    tokens = event.tokens if isinstance(event, Echo) else ()
    for n, entry in enumerate(event.logprobs or ()):
        token = entry.ids[0] if entry is not None else tokens[n]
        found.tokens.append(names.token_text(token))
        found.token_logprobs.append(None if entry is None else max(entry.values[0], _LEAST))
        found.top_logprobs.append(None if entry is None else _top(entry, names))
        found.text_offset.append(offset + event.offsets[n])
    return found


def _top(entry: TokenLogprobs, names: TokenNames) -> dict[str, float]:
    if len(entry.ids) == 1:
        return {}
    top: dict[str, float] = {}
    for token, value in (*zip(entry.ids[1:], entry.values[1:], strict=True), (entry.ids[0], entry.values[0])):
        top.setdefault(names.token_text(token), max(value, _LEAST))
    return top


def prompt_entries(entries: Sequence[TokenLogprobs], tokenizer: ModelTokenizer) -> list[dict[str, PromptEntry] | None]:
    """One per position of the prompt, by token id; None for the first. A rank is known for the prompt's own token, and
    follows from the order for the others."""
    found: list[dict[str, PromptEntry] | None] = [None]
    for entry in entries:
        position: dict[str, PromptEntry] = {}
        own = entry.ids[0]
        for n, (token, value) in enumerate(zip(entry.ids, entry.values, strict=True)):
            rank = entry.rank if token == own else n
            position.setdefault(str(token), PromptEntry(max(value, _LEAST), rank, tokenizer.token_text(token)))
        found.append(position)
    return found
