"""A completion as server-sent chunks."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tickertape.api.events import Echo, Event, Piece, PromptScored, Usage
from tickertape.api.generation import Generation
from tickertape.api.openai.heads import Head
from tickertape.api.openai.json_text import encode_text
from tickertape.api.openai.logprobs import TokenNames, legacy_logprobs, prompt_entries
from tickertape.api.openai.stream_tail import StreamTail

__all__ = ["CompletionStream"]

_encode = msgspec.json.Encoder().encode


class CompletionStream:
    """As `ChatStream`; there are no role chunks, and logprobs are the legacy ones, with offsets into the whole text of
    the choice, its echoed prompt included."""

    def __init__(
        self, generation: Generation, head: Head, tail: StreamTail, names: TokenNames, *, return_token_ids: bool
    ) -> None:
        self._generation = generation
        self._tokenizer = generation.model.tokenizer
        self._names = names
        self._open = b"data: " + head.json_open()
        self._choice = self._open + b',"choices":[{"text":'
        self._tail = tail
        self._return_token_ids = return_token_ids
        self._num_echoed = [0] * generation.num_choices
        self._scores: dict[int, bytes] = {}  # by prompt, until a choice of it has carried them
        self._begun: set[int] = set()
        plain = b"]" + tail.close(Usage(0, 0, 0), 0) if tail.constant else b""
        self._text_end = b',"logprobs":null,"finish_reason":null}' + plain

    def begin(self) -> bytes:
        return b""

    def events(self, events: Iterable[Event]) -> bytes:
        return b"".join([self._event(event) for event in events])

    def end(self) -> bytes:
        return self._tail.usage_chunk(self._open, self._generation.usage)

    def _event(self, event: Event) -> bytes:
        if isinstance(event, Piece):
            return self._piece(event)
        if isinstance(event, PromptScored):
            self._scores[event.prompt] = _encode(prompt_entries(event.logprobs, self._tokenizer))
            return b""
        self._num_echoed[event.choice] = len(event.text)
        return self._chunk(event.choice, event.text, event if event.logprobs is not None else None, 0)

    def _piece(self, piece: Piece) -> bytes:
        index = piece.choice
        if piece.finish is None:
            if piece.logprobs is None and not self._scores and self._tail.constant and not self._return_token_ids:
                return b'%b%b,"index":%d%b' % (self._choice, encode_text(piece.text), index, self._text_end)
            return self._with_entries(piece, piece.text)
        sent = self._with_entries(piece, piece.text) if piece.text else b""
        reason = b'"%b","stop_reason":%b' % (piece.finish.encode(), _encode(piece.stop_reason))
        if sent:
            return sent + self._chunk(index, "", None, 0, finish=reason)
        return self._with_entries(piece, "", finish=reason)

    def _with_entries(self, piece: Piece, text: str, finish: bytes = b"null") -> bytes:
        entries = piece if piece.logprobs else None
        return self._chunk(piece.choice, text, entries, self._num_echoed[piece.choice], piece.tokens, finish=finish)

    def _chunk(
        self,
        index: int,
        text: str,
        entries: Piece | Echo | None,
        offset: int,
        tokens: tuple[int, ...] = (),
        *,
        finish: bytes = b"null",
    ) -> bytes:
        content = encode_text(text)
        logprobs = b"null" if entries is None else _encode(legacy_logprobs(entries, self._names, offset))
        return b'%b%b,"index":%d,"logprobs":%b,"finish_reason":%b%b}]%b' % (
            self._choice, content, index, logprobs, finish, self._extra(index, tokens),
            self._tail.close(self._generation.usage, len(content)),
        )  # fmt: skip

    def _extra(self, index: int, tokens: tuple[int, ...]) -> bytes:
        generation = self._generation
        prompt = index * len(generation.prompts) // generation.num_choices
        extra = b""
        if (scores := self._scores.pop(prompt, None)) is not None:
            extra += b',"prompt_logprobs":' + scores
        if self._return_token_ids:
            extra += b',"token_ids":' + _encode(tokens)
            if index not in self._begun:
                self._begun.add(index)
                extra += b',"prompt_token_ids":' + _encode(list(generation.prompts[prompt].tokens))
        return extra
