"""Reads the JSON body of a request, within limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request

from tickertape.api.connection import ClientGone
from tickertape.core.errors import InvalidRequest, RequestTooLarge, UnsupportedMediaType

__all__ = ["read_json_object"]


async def read_json_object(request: Request, *, max_bytes: int, max_depth: int) -> dict[str, Any]:
    """The object in the body. JSON is UTF-8, whatever charset is named; of a key that comes twice the last counts;
    NaN, infinities and lone surrogates are no JSON. Raises UnsupportedMediaType, RequestTooLarge, InvalidRequest (code
    invalid_json), ClientGone."""
    _check_type(request)
    data = await _read(request, max_bytes)
    if not data:
        raise InvalidRequest("The request has no body; a JSON object is wanted", code="invalid_json")
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise InvalidRequest(f"The body is nested deeper than {max_depth} levels", code="invalid_json") from None
    if not isinstance(value, dict):
        raise InvalidRequest("The body must be a JSON object", code="invalid_json")
    # Brackets bound the depth from above and are counted at memory speed; few bodies need the walk.
    if data.count(b"{") + data.count(b"[") > max_depth and _depth_exceeds(value, max_depth):
        raise InvalidRequest(f"The body is nested deeper than {max_depth} levels", code="invalid_json")
    return value


def _check_type(request: Request) -> None:
    given = request.headers.get("content-type", "")
    if given.partition(";")[0].strip().lower() != "application/json":
        named = f", not {given[:100]!r}" if given else ""
        raise UnsupportedMediaType(f"The Content-Type must be application/json{named}")
    if (encoding := request.headers.get("content-encoding", "identity").strip().lower()) != "identity":
        raise UnsupportedMediaType(f"The Content-Encoding {encoding[:100]!r} is not supported; send the body as it is")


async def _read(request: Request, max_bytes: int) -> bytes:
    too_large = RequestTooLarge(f"The body is larger than {max_bytes} bytes, the limit")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > max_bytes:
        raise too_large
    data = bytearray()
    try:
        async for chunk in request.stream():
            data += chunk
            if len(data) > max_bytes:
                raise too_large
    except ClientDisconnect:
        raise ClientGone from None
    return bytes(data)


def _depth_exceeds(value: Any, most: int) -> bool:
    level: list[Any] = [value]
    for _ in range(most):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return False
    return True


def _children(value: Any) -> Iterator[Any]:
    values = value.values() if isinstance(value, dict) else value
    return (child for child in values if isinstance(child, dict | list))
