"""Calls written as JSON objects: `{"name": "f", "arguments": {"a": 1}}`, alone or in a list. Half of all formats put
these between tags of their own.

A call is opened when its name is known to be a tool's and its arguments begin. What is wrong before that makes it no
call; what is wrong with the arguments themselves stays in them as the model wrote it; what else comes after them is
content.
"""

from __future__ import annotations

import re
from typing import Final

from tickertape.plugins.parsers.json_text import BracketScan, is_object, read_string, read_value, unquoted
from tickertape.plugins.parsers.reader import Reader, Steps
from tickertape.plugins.parsers.sink import PartSink
from tickertape.plugins.parsers.tags import Tags

__all__ = ["read_arguments", "read_calls"]

_NAME: Final = frozenset({"name", "function"})
_ARGUMENTS: Final = frozenset({"arguments", "parameters"})
_BESIDE: Final = frozenset({"type", "id", "index"})
"""Members that some models write and that say nothing: a type is "function", and a call's id is the server's."""
_ID: Final = re.compile(r'\d+|"[A-Za-z0-9_-]*"|null')


def read_calls(reader: Reader, sink: PartSink, *, end: Tags | None = None) -> Steps[bool]:
    """Reads one call or a list of them, within the reader's attempt. False: the first is none, and the attempt goes on
    for the caller to abandon. `end`: the tags before one of which broken arguments end."""
    if not (yield from reader.expect("[")):
        return (yield from _read_call(reader, sink, end))
    yield from reader.skip_space()
    if not (yield from _read_call(reader, sink, end)):
        return False
    while True:
        reader.attempt()
        yield from reader.skip_space()
        if (yield from reader.expect("]")) or not (yield from reader.peek()):
            reader.commit()
            return True
        if (yield from reader.expect(",")):
            yield from reader.skip_space()
            if (yield from _read_call(reader, sink, end)):
                continue
        sink.content(reader.abandon())
        return True


def read_arguments(reader: Reader, sink: PartSink, *, end: Tags | None) -> Steps[bool]:
    """Hands on an object, which begins here, as the arguments of the call that is open. False when it is broken and
    there is no `end` up to which it could be read."""
    whole = yield from reader.follow(BracketScan(), sink.arguments)
    if not whole and end is not None:
        yield from reader.until(end, sink.arguments)
        return True
    return whole


def _read_call(reader: Reader, sink: PartSink, end: Tags | None) -> Steps[bool]:
    if not (yield from reader.expect("{")):
        return False
    name: str | None = None
    arguments: str | None = None  # when they come before the name
    seen: set[str] = set()
    while True:
        yield from reader.skip_space()
        key = yield from _read_key(reader, seen)
        if key in _NAME and name is None:
            name = yield from read_string(reader)
            if name is None or name not in sink.tools:
                return False
        elif key in _ARGUMENTS and arguments is None:
            if name is not None and (yield from reader.peek()) == "{":
                reader.commit()
                sink.open_call(name)
                if (yield from read_arguments(reader, sink, end=end)):
                    yield from _finish(reader, sink, seen)
                return True
            arguments = _as_arguments((yield from read_value(reader)))
            if arguments is None:
                return False
        elif not (yield from _skip_beside(reader, key)):
            return False
        yield from reader.skip_space()
        mark = yield from reader.expect(",", "}")
        if mark == "}" and name is not None:
            reader.commit()
            sink.open_call(name)
            sink.arguments("{}" if arguments is None else arguments)
            return True
        if mark != ",":
            return False


def _read_key(reader: Reader, seen: set[str]) -> Steps[str | None]:
    """Takes a key that was not `seen` before, and its colon."""
    key = yield from read_string(reader)
    yield from reader.skip_space()
    if key is None or key in seen or not (yield from reader.expect(":")):
        return None
    seen.add(key)
    yield from reader.skip_space()
    return key


def _skip_beside(reader: Reader, key: str | None) -> Steps[bool]:
    if key not in _BESIDE:
        return False
    value = yield from read_value(reader)
    return value is not None and (value == '"function"' if key == "type" else _ID.fullmatch(value) is not None)


def _finish(reader: Reader, sink: PartSink, seen: set[str]) -> Steps[None]:
    """What comes after the arguments, up to the brace that closes the call. A brace that is missing at the end of the
    text is not missed."""
    reader.attempt()
    while True:
        yield from reader.skip_space()
        if (yield from reader.expect("}")) or not (yield from reader.peek()):
            reader.commit()
            return
        if (yield from reader.expect(",")):
            yield from reader.skip_space()
            key = yield from _read_key(reader, seen)
            if (yield from _skip_beside(reader, key)):
                continue
        sink.content(reader.abandon())
        return


def _as_arguments(value: str | None) -> str | None:
    """The arguments that a value stands for: an object, an object quoted as a string, or none at all."""
    if value is None or is_object(value):
        return value
    if value == "null":
        return "{}"
    text = unquoted(value)
    return text if text is not None and is_object(text) else None
