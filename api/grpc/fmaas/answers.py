"""Events of a generation as the protocol's responses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tickertape.api.events import Echo, Event, Piece, PromptScored
from tickertape.api.generation import Generation
from tickertape.core.request import TokenLogprobs

__all__ = ["Answer"]


class Answer:
    """What one prompt of a generation was answered with; whole, or since the last time it was asked. `options` is the
    request's ResponseOptions, `text` the prompt."""

    def __init__(self, protocol: Any, generation: Generation, prompt: int, options: Any, text: str) -> None:
        self._protocol = protocol
        self._reasons = protocol.enum("StopReason")
        self._tokenizer = generation.model.tokenizer
        self._prompt = generation.prompts[prompt]
        self._options = options
        self._text = text
        self._num_generated = 0
        self._message = protocol.GenerationResponse()
        self.finished = False

    def input(self) -> None:
        """Adds what is to be said of the prompt. Its scores come with the first events."""
        self._message.input_token_count = len(self._prompt.tokens)
        if self._options.input_text:
            self._message.text += self._text
        if self._options.input_tokens and not self._scored:
            for token in self._prompt.tokens:
                self._message.input_tokens.add(text=self._tokenizer.token_text(token))

    def add(self, events: Iterable[Event]) -> None:
        """Of this prompt only."""
        for event in events:
            if isinstance(event, PromptScored):
                self._message.input_tokens.add(text=self._tokenizer.token_text(self._prompt.tokens[0]))
                for entry in event.logprobs:
                    self._entry(self._message.input_tokens.add(), entry.ids[0], entry)
            elif not isinstance(event, Echo):
                self._add(event)

    def timed_out(self) -> None:
        """The time limit ended it."""
        self.finished = True
        self._message.stop_reason = self._reasons["TIME_LIMIT"]

    def take(self) -> Any:
        """What there is since the last time; None: nothing."""
        message, self._message = self._message, self._protocol.GenerationResponse()
        if not message.ListFields():
            return None
        message.generated_token_count = self._num_generated
        return message

    def _add(self, piece: Piece) -> None:
        message = self._message
        message.text += piece.text
        self._num_generated += len(piece.tokens)
        message.generated_token_count = self._num_generated
        if self._options.generated_tokens:
            entries = piece.logprobs or ()
            for n, token in enumerate(piece.tokens):
                self._entry(message.tokens.add(), token, entries[n] if n < len(entries) else None)
        if piece.finish is not None:
            self.finished = True
            message.stop_reason = self._reasons[_reason(piece)]
            if isinstance(piece.stop_reason, str):
                message.stop_sequence = piece.stop_reason

    @property
    def _scored(self) -> bool:
        options = self._options
        return bool(options.token_logprobs or options.token_ranks or options.top_n_tokens)

    def _entry(self, info: Any, token: int, entry: TokenLogprobs | None) -> None:
        info.text = self._tokenizer.token_text(token)
        if entry is None:
            return
        if self._options.token_logprobs:
            info.logprob = entry.values[0]
        if self._options.token_ranks:
            info.rank = entry.rank
        for each, value in zip(entry.ids[1:], entry.values[1:], strict=True):
            top = info.top_tokens.add(text=self._tokenizer.token_text(each))
            if self._options.token_logprobs:
                top.logprob = value


def _reason(piece: Piece) -> str:
    if piece.finish == "length":
        return "MAX_TOKENS"
    return "EOS_TOKEN" if piece.stop_reason is None else "STOP_SEQUENCE"
