"""A chat generation as server-sent chunks."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from tickertape.api.events import Echo, Event, Piece, PromptScored, Usage
from tickertape.api.generation import Generation
from tickertape.api.openai.heads import Head
from tickertape.api.openai.json_text import encode_text
from tickertape.api.openai.logprobs import TokenNames, chat_logprobs, prompt_entries
from tickertape.api.openai.stream_tail import StreamTail

__all__ = ["ChatStream"]

_ROLE = b'{"role":"assistant","content":"","refusal":null}'
_encode = msgspec.json.Encoder().encode


class ChatStream:
    """Bytes of events, ready to send. The shape of a chunk is `wire.md`'s, key by key; the parts that do not change
    during a stream are encoded once."""

    def __init__(
        self, generation: Generation, head: Head, tail: StreamTail, names: TokenNames, *, return_token_ids: bool
    ) -> None:
        self._generation = generation
        self._tokenizer = generation.model.tokenizer
        self._names = names
        self._open = b"data: " + head.json_open()
        self._choice = self._open + b',"choices":[{"index":'
        self._tail = tail
        self._return_token_ids = return_token_ids
        self._extra = b""  # what the next chunk carries beside its choices
        plain = b"]" + tail.close(Usage(0, 0, 0), 0) if tail.constant else b""
        self._text_end = b'},"logprobs":null,"finish_reason":null}' + plain

    def begin(self) -> bytes:
        """A role chunk per choice."""
        usage = replace(self._generation.usage, completion_tokens=0)
        if self._return_token_ids:
            self._extra = b',"prompt_token_ids":' + _encode(list(self._generation.prompts[0].tokens))
        return b"".join(self._chunk(n, _ROLE, usage=usage) for n in range(self._generation.num_choices))

    def events(self, events: Iterable[Event]) -> bytes:
        return b"".join([self._event(event) for event in events])

    def end(self) -> bytes:
        return self._tail.usage_chunk(self._open, self._generation.usage)

    def _event(self, event: Event) -> bytes:
        if isinstance(event, Piece):
            return self._piece(event)
        if isinstance(event, PromptScored):
            self._extra += b',"prompt_logprobs":' + _encode(prompt_entries(event.logprobs, self._tokenizer))
            return b""
        return self._echo(event)

    def _piece(self, piece: Piece) -> bytes:
        if piece.finish is None:
            if piece.kind != "content" or piece.call is not None:
                return self._text(piece)
            if piece.logprobs is None and not piece.tokens and self._tail.constant and not self._extra:
                content = encode_text(piece.text)
                return b'%b%d,"delta":{"content":%b%b' % (self._choice, piece.choice, content, self._text_end)
            return self._text(piece)
        # Text and finish never share a chunk; what belongs to no text goes with the finish.
        sent = self._text(piece) if piece.text else b""
        return sent + self._finish(piece, with_entries=not piece.text)

    def _text(self, piece: Piece) -> bytes:
        logprobs = b"null"
        if piece.logprobs is not None:
            logprobs = _encode(chat_logprobs(piece.logprobs, self._names))
        delta, content_bytes = _delta(piece)
        return self._chunk(piece.choice, delta, logprobs=logprobs, tokens=piece.tokens, content_bytes=content_bytes)

    def _finish(self, piece: Piece, *, with_entries: bool) -> bytes:
        logprobs = b"null"
        if with_entries and piece.logprobs:
            logprobs = _encode(chat_logprobs(piece.logprobs, self._names))
        reason = b'"%b","stop_reason":%b' % ((piece.finish or "stop").encode(), _encode(piece.stop_reason))
        return self._chunk(
            piece.choice, b"{}", logprobs=logprobs, finish=reason, tokens=piece.tokens if with_entries else ()
        )

    def _echo(self, echo: Echo) -> bytes:
        logprobs = b"null" if echo.logprobs is None else _encode(chat_logprobs(echo.logprobs, self._names))
        content = encode_text(echo.text)
        delta = b'{"content":' + content + b"}"
        return self._chunk(echo.choice, delta, logprobs=logprobs, content_bytes=len(content))

    def _chunk(
        self,
        index: int,
        delta: bytes,
        *,
        logprobs: bytes = b"null",
        finish: bytes = b"null",
        tokens: tuple[int, ...] = (),
        content_bytes: int = 0,
        usage: Usage | None = None,
    ) -> bytes:
        ids = b',"token_ids":' + _encode(tokens) if self._return_token_ids else b""
        extra, self._extra = self._extra, b""
        so_far = self._generation.usage if usage is None else usage
        return b'%b%d,"delta":%b,"logprobs":%b,"finish_reason":%b%b}]%b%b' % (
            self._choice, index, delta, logprobs, finish, ids, extra, self._tail.close(so_far, content_bytes),
        )  # fmt: skip


def _delta(piece: Piece) -> tuple[bytes, int]:
    """What a piece adds to the message, and how many bytes of it are the model's own words."""
    if (call := piece.call) is not None:
        words = encode_text(call.arguments if call.name is None else call.name)
        if call.name is None:
            return b'{"tool_calls":[{"index":%d,"function":{"arguments":%b}}]}' % (call.index, words), len(words)
        head = b'{"tool_calls":[{"index":%d,"id":%b,"type":"function","function":{"name":%b,"arguments":""}}]}'
        return head % (call.index, encode_text(call.id or ""), words), len(words)
    words = encode_text(piece.text)
    if piece.kind == "reasoning":
        return b'{"reasoning":%b,"reasoning_content":%b}' % (words, words), len(words)
    return b'{"content":' + words + b"}", len(words)
