"""Errors as gRPC spells them: a status of the one table, with google.rpc details."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc.code_pb2 import Code
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from tickertape.api.error_table import retry_after_s, spelling
from tickertape.core.errors import TickertapeError

__all__ = ["DOMAIN", "GrpcStatus", "Naming", "as_status", "same_name"]

DOMAIN: Final = "tickertape"
"""Of ErrorInfo; its reason is the error's code."""

_DETAILS_KEY: Final = "grpc-status-details-bin"
_MAX_MESSAGE_CHARS: Final = 1000  # the status travels in headers, twice

Naming = Callable[[str], str]
"""How a wire calls the field that OpenAI calls so."""


class GrpcStatus(NamedTuple):
    """Arguments of `ServicerContext.abort`."""

    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, bytes], ...]


def same_name(param: str) -> str:
    return param


def as_status(error: TickertapeError, naming: Naming = same_name) -> GrpcStatus:
    """`error` as `public_error` gives it."""
    line = spelling(error)
    message = error.message[:_MAX_MESSAGE_CHARS]
    found = Status(code=Code.Value(line.grpc), message=message)
    info = ErrorInfo(reason=error.code, domain=DOMAIN)
    if error.param is not None:
        field = naming(error.param)
        info.metadata["param"] = field
        found.details.add().Pack(info)
        violation = BadRequest.FieldViolation(field=field, description=message)
        found.details.add().Pack(BadRequest(field_violations=[violation]))
    else:
        found.details.add().Pack(info)
    if line.retry:
        delay = Duration()
        delay.FromMilliseconds(round(retry_after_s(error) * 1000))
        found.details.add().Pack(RetryInfo(retry_delay=delay))
    return GrpcStatus(grpc.StatusCode[line.grpc], message, ((_DETAILS_KEY, found.SerializeToString()),))
