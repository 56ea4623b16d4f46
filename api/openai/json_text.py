"""Text as JSON that survives clients which take more than a newline for the end of a line."""

from __future__ import annotations

import msgspec

__all__ = ["encode_text"]

_encode = msgspec.json.Encoder().encode


def encode_text(text: str) -> bytes:
    """A JSON string. NEL and the Unicode line and paragraph separators are escaped: JSON does not need it, but readers
    of event streams that split with `str.splitlines` would cut an event in two at them."""
    encoded = _encode(text)
    if text.isascii():
        return encoded
    for raw, escaped in ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029")):
        encoded = encoded.replace(raw, escaped)
    return encoded
