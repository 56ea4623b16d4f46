"""Reads the JSON body of a request, within limits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from starlette.requests import ClientDisconnect, Request

from tickertape.api.connection import ClientGone
from tickertape.api.limits import JSON_PARTS, JSON_TEXTS
from tickertape.core.errors import InvalidRequest, RequestTooLarge, UnsupportedMediaType

__all__ = ["read_json_object"]

_MAX_SHOWN_CHARS: Final = 100

_LONE_SURROGATE: Final = re.compile(rb"\\u[dD](?:[89abAB]..(?!\\u[dD][c-fC-F])|[c-fC-F]..)")


async def read_json_object(request: Request, *, max_bytes: int, max_depth: int) -> dict[str, Any]:
    """The object in the body. JSON is UTF-8, whatever charset is named; of a key that comes twice the last counts;
    NaN, infinities and lone surrogates are no JSON. Raises UnsupportedMediaType, RequestTooLarge, InvalidRequest (code
    invalid_json), ClientGone."""
    _check_type(request)
    data = await _read(request, max_bytes)
    if not data:
        raise InvalidRequest("The request has no body; a JSON object is wanted", code="invalid_json")
    try:
        _check_parts(data)
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"The body is not valid JSON: {_reason(error, data)}", code="invalid_json") from None
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


def _check_parts(data: bytes) -> None:
    """Raises InvalidRequest, which names the field that is too large, for a body of too many parts; and what decoding
    raises."""
    if (fault := _excess(data)) is None:
        return
    fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])  # skips over the values
    found = ((name, _excess(bytes(value))) for name, value in fields.items())
    name, fault = next(((name, own) for name, own in found if own is not None), (None, fault))
    param = None if name is None else name[:_MAX_SHOWN_CHARS]
    raise InvalidRequest(f"Invalid value for {param or 'the body'!r}: {fault}", param=param)


def _excess(data: bytes) -> str | None:
    """Counts at memory speed, and exactly only where the brackets, colons and quotes within texts might be what makes
    them many."""
    if _num_parts(data) <= JSON_PARTS and data.count(b'"') <= 2 * JSON_TEXTS:
        return None
    plain = data.replace(rb"\\", b"").replace(rb"\"", b"")
    if plain.count(b'"') > 2 * JSON_TEXTS:
        return f"more than {JSON_TEXTS} strings"
    if _num_parts(b"".join(plain.split(b'"')[::2])) > JSON_PARTS:
        return f"more than {JSON_PARTS} objects, arrays and their members by name"
    return None


def _num_parts(data: bytes) -> int:
    return data.count(b"{") + data.count(b"[") + data.count(b":")


def _reason(error: Exception, data: bytes) -> str:
    """The decoder calls half a surrogate pair at the end of a text truncation."""
    if ("truncated" in str(error) or "surrogate" in str(error)) and (found := _LONE_SURROGATE.search(data)):
        half = found.group()[:6].decode("ascii", "replace")
        return f"{half} at byte {found.start()} is half of a surrogate pair and stands alone"
    return str(error)


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
