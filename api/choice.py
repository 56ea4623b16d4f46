"""One choice of a generation: its engine request, its text, and what comes before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from tickertape.api.events import Echo, Ending, Event, Piece, PromptScored
from tickertape.api.prompts import Prompt
from tickertape.core.request import Request, TokenDelta, TokenLogprobs

__all__ = ["Choice", "ChoiceText", "Scoring"]


class ChoiceText(Protocol):
    """A TextStream, or a PartStream."""

    num_tokens: int
    num_reasoning_tokens: int

    @property
    def finish(self) -> Ending | None: ...
    def push(self, delta: TokenDelta) -> Sequence[Piece]: ...


class Scoring(Struct, frozen=True):
    """How many top ids beside each of the prompt's own tokens are shown: in the choice's `echo`, and by themselves
    (`alone`). None: not shown there."""

    echo: int | None
    alone: int | None

    @property
    def top(self) -> int | None:
        """How many the engine must give; None: the prompt need not be scored."""
        wanted = [top for top in (self.echo, self.alone) if top is not None]
        return max(wanted) if wanted else None


class Choice:
    """Turns the deltas of one request into events. The scores of the prompt are gathered until the first token, or the
    end, and go out before it."""

    def __init__(
        self, index: int, prompt_index: int, prompt: Prompt, request: Request, text: ChoiceText, scoring: Scoring
    ) -> None:
        self.index = index
        self.prompt_index = prompt_index
        self.request = request
        self.text = text
        self.num_cached_tokens = 0
        self.sum_logprobs = 0.0
        self._echo = prompt.echo
        self._scoring = scoring
        self._scores: list[TokenLogprobs] = []
        self._begun = prompt.echo is None and scoring.alone is None

    @property
    def finished(self) -> bool:
        return self.text.finish is not None

    def push(self, delta: TokenDelta, events: list[Event]) -> None:
        """Appends what the delta gives."""
        if delta.num_cached_tokens:
            self.num_cached_tokens = delta.num_cached_tokens
        if delta.logprobs is not None:
            self.sum_logprobs += sum(entry.values[0] for entry in delta.logprobs)
        if not self._begun:
            self._scores.extend(delta.prompt_logprobs or ())
            if not delta.tokens and delta.finish is None:
                return
            self._begun = True
            self._begin(events)
        events.extend(self.text.push(delta))

    def _begin(self, events: list[Event]) -> None:
        scores, self._scores = self._scores, []
        if (top := self._scoring.alone) is not None:
            events.append(PromptScored(self.prompt_index, tuple([_trimmed(entry, top) for entry in scores])))
        if (echo := self._echo) is not None:
            shown = None
            if (top := self._scoring.echo) is not None:
                shown = (None, *[_trimmed(entry, top) for entry in scores])
            events.append(Echo(self.index, echo.text, echo.tokens, shown, echo.offsets))


def _trimmed(entry: TokenLogprobs, top: int) -> TokenLogprobs:
    if len(entry.ids) == 1 + top:
        return entry
    return TokenLogprobs(entry.ids[: 1 + top], entry.values[: 1 + top], entry.rank)
