"""The parts of one choice, from its tokens: content, reasoning and tool calls, as the model's parsers tell them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tickertape.api.detokenizer import Detokenizer
from tickertape.api.events import Ending, Piece, StopReason
from tickertape.api.stop_strings import StopStrings
from tickertape.core.output_parser import ContentPart, OutputPart, ReasoningPart, ToolCallPart
from tickertape.core.request import TokenDelta, TokenLogprobs
from tickertape.plugins.output_parsers import ChoiceParser

__all__ = ["PartStream"]


class PartStream:
    """Turns token deltas into pieces, each of one kind; `TextStream` with a parser in between.

    Stop strings are looked for in content alone, in each stretch of it, after the first `min_tokens` tokens. Tokens
    and log probabilities travel with the next piece that goes out at or after them, of whatever kind: every token has
    its entry, those of markup too, but the ones that lie wholly in the stop string and behind it.

    Without `with_content`, for answers that are calls alone, what is no call is markup that was cut, and is dropped.

    A token counts as reasoning when what it writes, or what comes out next where that is nothing, is reasoning.
    """

    def __init__(
        self,
        choice: int,
        detokenizer: Detokenizer,
        parser: ChoiceParser,
        stops: StopStrings | None,
        *,
        min_tokens: int = 0,
        include_stop: bool = False,
        with_tokens: bool = False,
        with_logprobs: bool = False,
        with_reasoning: bool = True,
        with_content: bool = True,
        end_tokens: frozenset[int] = frozenset(),
    ) -> None:
        self._choice = choice
        self._detokenizer = detokenizer
        self._parser = parser
        self._stops = stops
        self._min_tokens = min_tokens
        self._include_stop = include_stop
        self._with_tokens = with_tokens
        self._with_logprobs = with_logprobs
        self._with_reasoning = with_reasoning
        self._with_content = with_content
        self._end_tokens = end_tokens
        self._pending: list[tuple[int, TokenLogprobs | None, int]] = []  # token, entry, where its text starts
        self._num_produced = 0  # characters
        self._num_held = 0  # of content, for the sake of a stop string
        self._num_open_tokens = 0  # that have written nothing yet
        self.num_tokens = 0
        self.num_reasoning_tokens = 0
        self.finish: Ending | None = None
        self.stop_reason: StopReason = None

    def push(self, delta: TokenDelta) -> Sequence[Piece]:
        """The next pieces, the last of which has `finish` when the choice ends; then nothing more may be pushed."""
        tokens, end = delta.tokens, delta.finish
        hidden = len(tokens) - 1 if end is not None and end.stop_token is not None and not self._include_stop else -1
        pieces: list[Piece] = []
        for n, token in enumerate(tokens):
            self.num_tokens += 1
            entry = delta.logprobs[n] if self._with_logprobs and delta.logprobs and n != hidden else None
            self._pending.append((token, entry, self._num_produced))
            if n != hidden:
                self._take(self._detokenizer.push(token), False, pieces)
            if self.finish is not None:
                break
        if end is not None and self.finish is None:
            self._take(self._detokenizer.finish(), True, pieces)
            if self.finish is None:
                if end.stop_token is not None and end.stop_token not in self._end_tokens:
                    self.stop_reason = end.stop_token
                self._flush(pieces)
                self._finish(end.reason)
        if self.finish is not None:
            pieces.append(self._piece(finish=self.finish))
        return pieces

    def _take(self, text: str, final: bool, pieces: list[Piece]) -> None:
        self._num_produced += len(text)
        self._num_open_tokens += not final
        if not text and not final:
            return
        parts = self._parser.feed(text, final)
        if parts:
            if isinstance(parts[0], ReasoningPart):
                self.num_reasoning_tokens += self._num_open_tokens
            self._num_open_tokens = 0
        for n, part in enumerate(parts):
            self._add(part, parts[n + 1 :], pieces)
            if self.finish is not None:
                return
        if self._parser.ended:
            self._finish("stop")

    def _add(self, part: OutputPart, following: Sequence[OutputPart], pieces: list[Piece]) -> None:
        match part:
            case ContentPart(text) if self._with_content:
                self._content(text, following, pieces)
            case ReasoningPart(text):
                self._flush(pieces)
                if self._with_reasoning:
                    pieces.append(self._piece(text, "reasoning"))
            case ToolCallPart():
                self._flush(pieces)
                pieces.append(self._piece(call=part))

    def _content(self, text: str, following: Sequence[OutputPart], pieces: list[Piece]) -> None:
        out, matched = text, None
        if self._stops is not None and self.num_tokens > self._min_tokens:
            out, matched = self._stops.feed(text)
            self._num_held += len(text) - len(out)
        if matched is not None:
            # Tokens from the end of what goes out on have no entry.
            behind = sum(len(part.text) for part in following if not isinstance(part, ToolCallPart))
            shown = self._num_produced - behind - self._num_held
            self._pending = [(token, entry if start < shown else None, start) for token, entry, start in self._pending]
            self.stop_reason = matched
            self._finish("stop")
        if out:
            pieces.append(self._piece(out))

    def _flush(self, pieces: list[Piece]) -> None:
        """What was held for a stop string that the text's end, or a part of another kind, has made impossible."""
        self._num_held = 0
        if self._stops is not None and (held := self._stops.flush()):
            pieces.append(self._piece(held))

    def _finish(self, reason: Literal["stop", "length"]) -> None:
        self.finish = "tool_calls" if reason == "stop" and self._parser.has_calls else reason

    def _piece(
        self,
        text: str = "",
        kind: Literal["content", "reasoning"] = "content",
        *,
        call: ToolCallPart | None = None,
        finish: Ending | None = None,
    ) -> Piece:
        count = len(self._pending)
        if finish is None and self._num_held:  # what is held may never be shown, and its tokens neither
            settled = self._num_produced - self._num_held
            count = sum(start < settled for _, _, start in self._pending)
        pending, self._pending = self._pending[:count], self._pending[count:]
        entries = tuple(entry for _, entry, _ in pending if entry is not None) if self._with_logprobs else None
        return Piece(
            self._choice,
            text,
            tuple(token for token, _, _ in pending) if self._with_tokens else (),
            entries,
            (0,) * len(entries) if entries else (),
            finish,
            self.stop_reason if finish is not None else None,
            kind,
            call,
        )
