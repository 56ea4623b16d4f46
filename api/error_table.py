"""How the wires spell the error tree: the one table from an error's class to its HTTP and gRPC status.

What an error *is* stands in `core/errors.py`. A class that has no line of its own is spelled like its parent; what is
not of the tree at all is a fault of ours, and its text stays in the log.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from tickertape.core.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    EngineDead,
    EngineFault,
    InvalidApiKey,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    RequestAborted,
    RequestError,
    RequestTooLarge,
    RouteNotFound,
    StreamNotFound,
    TickertapeError,
    Unavailable,
    UnsupportedMediaType,
)

__all__ = ["OUTCOMES", "TABLE", "Spelling", "public_error", "retry_after_s", "retry_headers", "spelling"]

_DEFAULT_RETRY_S: Final = 1.0
_MAX_MESSAGE_CHARS: Final = 2000


class Spelling(NamedTuple):
    """`type` is the `error.type` of the OpenAI wire, `outcome` the label under which the request is counted, `retry`
    whether the client is told when to come back (None: it is not told; False: not to)."""

    status: int
    type: str
    grpc: str
    outcome: str
    retry: bool | None = None


_CLIENT: Final = "invalid_request_error"

TABLE: Final[Mapping[type[TickertapeError], Spelling]] = MappingProxyType(
    {
        RequestError: Spelling(400, _CLIENT, "INVALID_ARGUMENT", "invalid"),
        InvalidRequest: Spelling(400, _CLIENT, "INVALID_ARGUMENT", "invalid"),
        ContextLengthExceeded: Spelling(400, _CLIENT, "INVALID_ARGUMENT", "invalid"),
        InvalidApiKey: Spelling(401, _CLIENT, "UNAUTHENTICATED", "unauthorized"),
        ModelNotFound: Spelling(404, _CLIENT, "NOT_FOUND", "not_found"),
        RouteNotFound: Spelling(404, _CLIENT, "UNIMPLEMENTED", "not_found"),
        StreamNotFound: Spelling(404, _CLIENT, "NOT_FOUND", "not_found"),
        RequestAborted: Spelling(409, _CLIENT, "ABORTED", "cancelled", False),
        RequestTooLarge: Spelling(413, _CLIENT, "RESOURCE_EXHAUSTED", "too_large"),
        UnsupportedMediaType: Spelling(415, _CLIENT, "INVALID_ARGUMENT", "invalid"),
        Overloaded: Spelling(429, "rate_limit_exceeded", "RESOURCE_EXHAUSTED", "overloaded", True),
        DeadlineExceeded: Spelling(408, "timeout", "DEADLINE_EXCEEDED", "timeout", False),
        Unavailable: Spelling(503, "server_error", "UNAVAILABLE", "unavailable", True),
        EngineFault: Spelling(500, "server_error", "INTERNAL", "failed"),
        TickertapeError: Spelling(500, "server_error", "INTERNAL", "failed"),
    }
)

OUTCOMES: Final = ("ok", "cancelled", *dict.fromkeys(line.outcome for line in TABLE.values()))
"""Every value of the `outcome` label: bounded, whatever clients send."""


def spelling(error: TickertapeError) -> Spelling:
    """The line of the error's class, or of its nearest parent that has one."""
    return next(TABLE[kind] for kind in type(error).__mro__ if kind in TABLE)


def public_error(error: BaseException) -> TickertapeError:
    """What a client may see of any exception: errors of the tree as they are, cut to one line; of a dead engine, whose
    message quotes what killed it, and of other exceptions only what failed."""
    if not isinstance(error, TickertapeError):
        return EngineFault("The server failed to answer this request", code="internal_error")
    if isinstance(error, EngineDead):
        return EngineDead("The engine of this model stopped while it had the request", code=error.code)
    line = error.message.strip().partition("\n")[0][:_MAX_MESSAGE_CHARS]
    if line == error.message:
        return error
    return type(error)(line, code=error.code, param=error.param, retry_after_s=error.retry_after_s)


def retry_after_s(error: TickertapeError) -> float:
    """When to try again, of an error whose line has `retry`."""
    return _DEFAULT_RETRY_S if error.retry_after_s is None else max(error.retry_after_s, 0.0)


def retry_headers(error: TickertapeError) -> dict[str, str]:
    """Advice on trying again, as openai-python reads it."""
    retry = spelling(error).retry
    if retry is None:
        return {}
    if not retry:
        return {"x-should-retry": "false"}
    after_s = retry_after_s(error)
    return {"retry-after": str(max(1, math.ceil(after_s))), "retry-after-ms": str(math.ceil(after_s * 1000))}
