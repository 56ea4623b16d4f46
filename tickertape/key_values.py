"""Settings that are tables: KEY=VALUE on the command line and in the environment, a table in the file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

__all__ = ["key_values"]

_PAIR: Final = re.compile(r"([A-Za-z][A-Za-z0-9_]*)=(.*)", re.DOTALL)


def key_values(given: object) -> dict[str, Any]:
    """A mapping as it is; texts KEY=VALUE, whose values are JSON where they can be read so, else plain text; one text
    that holds such pairs between spaces, or is a JSON object. Raises ValueError."""
    if isinstance(given, Mapping):
        return dict(given)
    if isinstance(given, str):
        if given.lstrip().startswith("{"):
            return dict(json.loads(given))
        given = given.split()
    if not isinstance(given, Iterable):
        raise ValueError("must be a table")
    return dict(_pair(text) for text in given)


def _pair(text: object) -> tuple[str, Any]:
    match = _PAIR.fullmatch(str(text))
    if match is None:
        raise ValueError(f"{text!r} is not KEY=VALUE")
    key, value = match.groups()
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value
