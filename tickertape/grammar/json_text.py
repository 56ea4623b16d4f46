"""JSON that the library can read too: finite numbers and whole characters."""

from __future__ import annotations

import json
import math
from typing import Any, Final

from tickertape.core.errors import InvalidRequest

__all__ = ["JSON_DECODER", "check_characters"]

_MAX_DIGITS: Final = 1000


def _integer(digits: str) -> int:
    _number(digits)
    return int(digits)


def _number(digits: str) -> float:
    if len(digits) > _MAX_DIGITS or not math.isfinite(value := float(digits)):
        raise InvalidRequest("a number of the schema is out of range")
    return value


def _no_number(name: str) -> Any:
    raise InvalidRequest(f"the schema is not JSON: {name} is no number of it")


JSON_DECODER: Final = json.JSONDecoder(parse_int=_integer, parse_float=_number, parse_constant=_no_number)
"""Raises InvalidRequest for numbers that are infinite or beyond the range of a double, ValueError for other faults."""


def check_characters(value: Any) -> None:
    """Raises InvalidRequest where a text or key of the JSON value holds half a surrogate pair."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidRequest("a text of the schema holds half a surrogate pair") from None
