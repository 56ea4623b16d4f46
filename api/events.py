"""What a generation tells a wire, in no wire's spelling."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from tickertape.core.output_parser import ToolCallPart
from tickertape.core.request import FinishReason, TokenLogprobs

__all__ = ["Echo", "Ending", "Event", "Piece", "PromptScored", "StopReason", "Usage"]

Ending = FinishReason | Literal["tool_calls"]
"""Why a choice ended; a model's own end behind calls is the end of these."""

StopReason = str | int | None
"""The stop string or the stop token id of the request that ended a choice; None: the model's own end, or the limit."""


class Piece(Struct, frozen=True, gc=False):
    """More of one choice: whole characters that can no longer be part of a stop string. They are of one kind; of a
    `call` there is more of that instead.

    `tokens`, `logprobs` and `offsets` (where a token's text starts in the new text, in characters) travel with the
    piece that releases the token's text; they are empty or None unless asked for. The last piece of a choice has
    `finish`; its tokens may outnumber its logprobs, since an end token and a stop string show no text.
    """

    choice: int
    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    offsets: tuple[int, ...] = ()
    finish: Ending | None = None
    stop_reason: StopReason = None
    kind: Literal["content", "reasoning"] = "content"
    call: ToolCallPart | None = None


class Echo(Struct, frozen=True):
    """The prompt as the first part of a choice's text. The first token has no log probability."""

    choice: int
    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs | None, ...] | None
    offsets: tuple[int, ...]


class PromptScored(Struct, frozen=True):
    """The prompt's log probabilities, from its second token on; once per prompt, before any piece of its choices."""

    prompt: int
    logprobs: tuple[TokenLogprobs, ...]


Event = Piece | Echo | PromptScored


class Usage(Struct, frozen=True):
    """Prompt tokens count once per prompt, whatever n. Completion tokens are all that were generated up to the end or
    the stop string, of every candidate when `best_of` is used; `reasoning_tokens` of them are reasoning.
    `cached_tokens` of the prompt came from the cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int = 0

    def plus(self, other: Usage) -> Usage:
        return Usage(*(mine + its for mine, its in zip(self._counts(), other._counts(), strict=True)))

    def minus(self, other: Usage) -> Usage:
        return Usage(*(mine - its for mine, its in zip(self._counts(), other._counts(), strict=True)))

    def _counts(self) -> tuple[int, ...]:
        return self.prompt_tokens, self.completion_tokens, self.cached_tokens, self.reasoning_tokens
