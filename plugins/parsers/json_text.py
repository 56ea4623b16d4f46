"""JSON inside a text that is still being written."""

from __future__ import annotations

import json
import re
from typing import Final

from tickertape.plugins.parsers.reader import Reader, Steps

__all__ = ["BracketScan", "StringScan", "is_json", "is_object", "read_string", "read_value", "unquoted"]

_OUTSIDE: Final = re.compile(r'["{}\[\]]')
_INSIDE: Final = re.compile(r'["\\]')
_SCALAR: Final = re.compile(r"[-+.\w]+")
_CLOSING: Final = {"{": "}", "[": "]"}


class BracketScan:
    """Follows an object or list to its end by its brackets and strings. It checks no more than that: what a model wrote
    inside is handed on as it is."""

    def __init__(self) -> None:
        self.done = False
        self.broken = False  # by a bracket that closes no open one; it is not part of the value
        self._open: list[str] = []
        self._string: StringScan | None = None

    def scan(self, text: str, at: int) -> int:
        while at < len(text):
            if self._string is not None:
                at = self._string.scan(text, at)
                if not self._string.done:
                    return at
                self._string = None
            found = _OUTSIDE.search(text, at)
            if found is None:
                return len(text)
            at, mark = found.end(), found.group()
            if mark == '"':
                self._string = StringScan(opened=True)
            elif mark in _CLOSING:
                self._open.append(_CLOSING[mark])
            elif not self._open or self._open.pop() != mark:
                self.broken = True
                return found.start()
            elif not self._open:
                self.done = True
                return at
        return at


class StringScan:
    """Follows a string literal to its closing quote."""

    def __init__(self, *, opened: bool = False) -> None:
        self.done = False
        self.broken = False
        self._opened = opened
        self._escaped = False

    def scan(self, text: str, at: int) -> int:
        if not self._opened and at < len(text):
            self._opened = True
            at += 1
        if self._escaped and at < len(text):
            self._escaped = False
            at += 1
        while (found := _INSIDE.search(text, at)) is not None:
            at = found.end()
            if found.group() == '"':
                self.done = True
                return at
            if at == len(text):
                self._escaped = True
                return at
            at += 1
        return len(text)


def read_string(reader: Reader) -> Steps[str | None]:
    """Takes a string literal and gives what it stands for. None: there is no good one here."""
    if (yield from reader.peek()) != '"':
        return None
    pieces: list[str] = []
    if not (yield from reader.follow(StringScan(), pieces.append)):
        return None
    return unquoted("".join(pieces))


def read_value(reader: Reader) -> Steps[str | None]:
    """Takes one JSON value and gives its text. None: there is no good one here."""
    start = yield from reader.peek()
    pieces: list[str] = []
    if start == '"':
        yield from reader.follow(StringScan(), pieces.append)
    elif start and start in _CLOSING:
        yield from reader.follow(BracketScan(), pieces.append)
    else:
        pieces.append((yield from reader.run(_SCALAR)))
    text = "".join(pieces)
    return text if is_json(text) else None


def unquoted(literal: str) -> str | None:
    """What a string literal stands for; None when it is none, or holds half a character."""
    value = _parsed(literal)
    if not isinstance(value, str):
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        return None
    return value


def is_json(text: str) -> bool:
    return _parsed(text) is not _BAD


def is_object(text: str) -> bool:
    return isinstance(_parsed(text), dict)


_BAD: Final = object()


def _parsed(text: str) -> object:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return _BAD


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
