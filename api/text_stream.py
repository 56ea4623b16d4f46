"""The text of one choice, from its tokens: whole characters, cut at a stop string, log probabilities in step."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tickertape.api.detokenizer import Detokenizer
from tickertape.api.events import Ending, Piece, StopReason
from tickertape.api.stop_strings import StopStrings
from tickertape.core.request import TokenDelta, TokenLogprobs

__all__ = ["TextStream"]

_NO_END = -1


class TextStream:
    """Turns token deltas into pieces.

    Text is held while it may be the start of a stop string or half a character. Stop strings are looked for in the
    text after the first `min_tokens` tokens. `with_tokens` and `with_logprobs`: each token, or its entry, travels with
    the piece that releases the end of its text. What comes after the token that completed a stop string is neither
    counted nor delivered; entries of tokens that lie wholly in the stop string are dropped.
    """

    def __init__(
        self,
        choice: int,
        detokenizer: Detokenizer,
        stops: StopStrings | None,
        *,
        min_tokens: int = 0,
        include_stop: bool = False,
        with_tokens: bool = False,
        with_logprobs: bool = False,
        end_tokens: frozenset[int] = frozenset(),
    ) -> None:
        self._choice = choice
        self._detokenizer = detokenizer
        self._stops = stops
        self._min_tokens = min_tokens
        self._include_stop = include_stop
        self._with_tokens = with_tokens
        self._with_logprobs = with_logprobs
        self._aligned = with_tokens or with_logprobs
        self._end_tokens = end_tokens
        self._pending: deque[tuple[int, TokenLogprobs | None, int, int]] = deque()  # token, entry, start, end
        self._num_unended = 0
        self._produced = self._released = 0  # characters
        self.num_tokens = 0
        self.num_reasoning_tokens = 0
        self.finish: Ending | None = None
        self.stop_reason: StopReason = None

    def push(self, delta: TokenDelta) -> Sequence[Piece]:
        """The next piece; none while all of it is held. Once a piece had `finish`, nothing more may be pushed."""
        tokens = delta.tokens
        end = delta.finish
        hidden = len(tokens) - 1 if end is not None and end.stop_token is not None and not self._include_stop else -1
        text = ""
        for n, token in enumerate(tokens):
            self.num_tokens += 1
            made = "" if n == hidden else self._detokenizer.push(token)
            if self._aligned:
                shown = self._with_logprobs and delta.logprobs is not None and n != hidden
                self._note(token, delta.logprobs[n] if shown and delta.logprobs else None, len(made))
            if made:
                text += self._release(made)
            if self.finish is not None:
                break
        if end is not None and self.finish is None:
            text += self._release(self._detokenizer.finish())
            if self.finish is None:
                self.finish = end.reason
                if end.stop_token is not None and end.stop_token not in self._end_tokens:
                    self.stop_reason = end.stop_token
                if self._stops is not None:
                    text += self._stops.flush()
        if not self._aligned:
            if not text and self.finish is None:
                return ()
            return (Piece(self._choice, text, finish=self.finish, stop_reason=self.stop_reason),)
        return self._align(text)

    def _release(self, made: str) -> str:
        """What of the newly made text may go out."""
        self._produced += len(made)
        if self._stops is None or self.num_tokens <= self._min_tokens:
            return made
        out, matched = self._stops.feed(made)
        if matched is not None:
            self.finish = "stop"
            self.stop_reason = matched
        return out

    def _note(self, token: int, entry: TokenLogprobs | None, num_chars: int) -> None:
        if not num_chars:  # its text, if any, comes with a later token
            self._pending.append((token, entry, self._produced, _NO_END))
            self._num_unended += 1
            return
        end = self._produced + num_chars
        if self._num_unended:
            waiting = [(t, e, start, end if stop == _NO_END else stop) for t, e, start, stop in self._pending]
            self._pending = deque(waiting)
            self._num_unended = 0
        self._pending.append((token, entry, self._produced, end))

    def _align(self, text: str) -> Sequence[Piece]:
        self._released += len(text)
        tokens: list[int] = []
        entries: list[TokenLogprobs] = []
        offsets: list[int] = []
        pending = self._pending
        while pending and (self.finish is not None or _NO_END < pending[0][3] <= self._released):
            token, entry, start, _ = pending.popleft()
            tokens.append(token)
            # After a stop string only tokens with some text before its cut keep their entry.
            if entry is not None and (start < self._released or not isinstance(self.stop_reason, str)):
                entries.append(entry)
                offsets.append(start)
        if not text and not tokens and self.finish is None:
            return ()
        piece = Piece(
            self._choice,
            text,
            tuple(tokens) if self._with_tokens else (),
            tuple(entries) if self._with_logprobs else None,
            tuple(offsets),
            self.finish,
            self.stop_reason,
        )
        return (piece,)
