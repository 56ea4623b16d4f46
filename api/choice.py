"""One choice of a generation: its engine request, its text, and what comes before it."""

from __future__ import annotations

from tickertape.api.detokenizer import Detokenizer
from tickertape.api.events import Echo, Event, PromptScored
from tickertape.api.models import ServedModel
from tickertape.api.prompts import Prompt
from tickertape.api.text_stream import TextStream
from tickertape.core.request import Request, TokenDelta, TokenLogprobs

__all__ = ["Choice", "Echoing", "echo_event"]


class Echoing:
    """What of its prompt a choice shows: `text` the prompt before the new text, `logprobs` with how many top ids,
    `prompt_logprobs` whether the scores go out by themselves too (once per prompt)."""

    __slots__ = ("logprobs", "prompt_logprobs", "skip_special_tokens", "text")

    def __init__(
        self, *, text: bool, logprobs: int | None, prompt_logprobs: int | None, skip_special_tokens: bool
    ) -> None:
        self.text = text
        self.logprobs = logprobs
        self.prompt_logprobs = prompt_logprobs
        self.skip_special_tokens = skip_special_tokens

    @property
    def top_of_prompt(self) -> int | None:
        """How many top ids the engine must give for the prompt; None: it need not be scored."""
        wanted = [top for top in (self.logprobs, self.prompt_logprobs) if top is not None]
        return max(wanted) if wanted else None


class Choice:
    """Turns the deltas of one request into events. The scores of the prompt are gathered until the first token, or the
    end, and go out before it."""

    def __init__(
        self, index: int, prompt_index: int, prompt: Prompt, request: Request, text: TextStream, echoing: Echoing
    ) -> None:
        self.index = index
        self.prompt_index = prompt_index
        self.prompt = prompt
        self.request = request
        self.text = text
        self.num_cached_tokens = 0
        self.sum_logprobs = 0.0
        self._echoing = echoing
        self._scores: list[TokenLogprobs] = []
        self._begun = not (echoing.text or echoing.prompt_logprobs is not None)

    @property
    def finished(self) -> bool:
        return self.text.finish is not None

    def push(self, delta: TokenDelta, model: ServedModel, events: list[Event]) -> None:
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
            self._begin(model, events)
        if (piece := self.text.push(delta)) is not None:
            events.append(piece)

    def _begin(self, model: ServedModel, events: list[Event]) -> None:
        echoing = self._echoing
        scores, self._scores = self._scores, []
        if echoing.prompt_logprobs is not None:
            kept = tuple(_trimmed(entry, echoing.prompt_logprobs) for entry in scores)
            events.append(PromptScored(self.prompt_index, kept))
        if echoing.text:
            shown = None
            if echoing.logprobs is not None:
                shown = (None, *(_trimmed(entry, echoing.logprobs) for entry in scores))
            events.append(echo_event(self.index, self.prompt, model, shown, echoing.skip_special_tokens))


def echo_event(
    choice: int,
    prompt: Prompt,
    model: ServedModel,
    logprobs: tuple[TokenLogprobs | None, ...] | None,
    skip_special_tokens: bool,
) -> Echo:
    """The prompt as text, with where each of its tokens starts."""
    detokenizer = Detokenizer(model.tokenizer, skip_special_tokens=skip_special_tokens)
    offsets: list[int] = []
    made: list[str] = []
    length = 0
    for token in prompt.tokens:
        offsets.append(length)
        text = detokenizer.push(token)
        made.append(text)
        length += len(text)
    # A character that the prompt leaves open comes whole with the new text, so what is held here is not shown.
    decoded = "".join(made)
    text = decoded if prompt.text is None else prompt.text
    return Echo(choice, text, tuple(prompt.tokens), logprobs, tuple(min(start, len(text)) for start in offsets))


def _trimmed(entry: TokenLogprobs, top: int) -> TokenLogprobs:
    if len(entry.ids) == 1 + top:
        return entry
    return TokenLogprobs(entry.ids[: 1 + top], entry.values[: 1 + top], entry.rank)
