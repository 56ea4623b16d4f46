"""Errors as the OpenAI wire spells them: always four keys, `code` a string."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from tickertape.api.error_table import spelling
from tickertape.core.errors import TickertapeError

__all__ = ["ErrorBody", "error_body", "error_event"]


class _Fault(Struct):
    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(Struct):
    error: _Fault


def error_body(error: TickertapeError) -> bytes:
    return msgspec.json.encode(ErrorBody(_Fault(error.message, spelling(error).type, error.param, error.code)))


def error_event(error: TickertapeError) -> bytes:
    """After the 200: the last thing a stream says, in place of its finish and [DONE]."""
    return b"data: " + error_body(error) + b"\n\n"
