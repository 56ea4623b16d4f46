"""How every chunk of a stream ends: its usage and its padding, as `stream_options` asks."""

from __future__ import annotations

import secrets
from typing import Final

import msgspec

from tickertape.api.events import Usage
from tickertape.api.openai.heads import usage_body
from tickertape.api.openai.requests import StreamOptions

__all__ = ["StreamTail"]

_PAD_TO: Final = 32
_ALPHABET: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


class StreamTail:
    """`usage` null on all chunks but the last with `include_usage`, the counts so far with `continuous_usage_stats`,
    absent without either. With `include_obfuscation` the padding makes content and padding together a multiple of 32
    bytes, so that the size of a chunk tells little of its text."""

    def __init__(self, options: StreamOptions | None) -> None:
        chosen = StreamOptions() if options is None else options
        self.include_usage = bool(chosen.include_usage)
        self.continuous = bool(chosen.continuous_usage_stats)
        self._obfuscate = bool(chosen.include_obfuscation)
        self._plain = b',"usage":null}\n\n' if self.include_usage else b"}\n\n"
        self.constant = not (self.continuous or self._obfuscate)

    def close(self, usage: Usage, content_bytes: int) -> bytes:
        """What follows the `choices` of a chunk."""
        if self.constant:
            return self._plain
        end = b',"usage":null' if self.include_usage else b""
        if self.continuous:
            end = b',"usage":' + msgspec.json.encode(usage_body(usage))
        if self._obfuscate:
            end += b',"obfuscation":"' + _padding(content_bytes) + b'"'
        return end + b"}\n\n"

    def usage_chunk(self, head: bytes, usage: Usage) -> bytes:
        """The chunk before [DONE], when it is asked for. `head` is how every chunk of the stream begins."""
        if not self.include_usage:
            return b""
        return head + b',"choices":[],"usage":' + msgspec.json.encode(usage_body(usage)) + b"}\n\n"


def _padding(content_bytes: int) -> bytes:
    missing = -content_bytes % _PAD_TO
    return bytes(_ALPHABET[byte % len(_ALPHABET)] for byte in secrets.token_bytes(missing))
