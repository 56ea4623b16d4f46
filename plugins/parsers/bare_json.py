"""Calls as JSON objects with nothing around them, at the start of the answer: Llama 3, and models without a format of
their own.

An object that calls no tool of the request is an answer in JSON. Further calls may follow, after a semicolon or a line.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from tickertape.plugins import CallFormat, ModelSigns, OutputParserSpec, hookimpl
from tickertape.plugins.parsers.call_objects import read_calls
from tickertape.plugins.parsers.closing import read_closing
from tickertape.plugins.parsers.machine import Machine
from tickertape.plugins.parsers.reader import Reader, Steps
from tickertape.plugins.parsers.sink import PartSink
from tickertape.plugins.parsers.tags import Tags

__all__ = ["API", "read_json", "read_llama", "register_output_parsers"]

API = (1, 0)

_PYTHON: Final = "<|python_tag|>"
_PYTHONS: Final = Tags(_PYTHON)
_FENCES: Final = ("```json\n", "```\n")


def read_llama(reader: Reader, sink: PartSink) -> Steps[None]:
    """`<|python_tag|>` may come before the calls, and has calls follow it anywhere."""
    yield from _read_run(reader, sink, before=(_PYTHON,))
    while (yield from reader.until(_PYTHONS, sink.content)) is not None:
        yield from _read_run(reader, sink, before=(_PYTHON,))


def read_json(reader: Reader, sink: PartSink) -> Steps[None]:
    """The calls may be fenced as a block of code."""
    yield from _read_run(reader, sink, before=_FENCES, after="```")
    yield from reader.rest(sink.content)


def _read_run(reader: Reader, sink: PartSink, *, before: tuple[str, ...], after: str | None = None) -> Steps[None]:
    """Calls one after the other, up to what is none."""
    num_read = 0
    while True:
        reader.attempt()
        yield from reader.skip_space()
        if num_read and (yield from reader.expect(";")):
            yield from reader.skip_space()
        opened = yield from reader.expect(*before)
        yield from reader.skip_space()
        if not (yield from read_calls(reader, sink)):
            sink.content(reader.abandon())
            return
        num_read += 1
        if opened and after is not None:
            yield from read_closing(reader, sink, after)


def _llama(signs: ModelSigns) -> int:
    return 3 if signs.mention(_PYTHON) and '"parameters"' in signs.template else 0


def _any_with_tools(signs: ModelSigns) -> int:
    return 1 if "tools" in signs.template else 0


@hookimpl
def register_output_parsers(register: Callable[[OutputParserSpec], None]) -> None:
    register(
        OutputParserSpec(
            name="llama3_json",
            kind="tools",
            make=partial(Machine, read_llama),
            detects=_llama,
            shows=(_PYTHON,),
            triggers=(_PYTHON,),
            call_format=CallFormat(open='{"name": "', middle='", "parameters": ', close="}", between="; "),
            summary='{"name": ..., "parameters": ...}, with or without <|python_tag|>',
        )
    )
    register(
        OutputParserSpec(
            name="json",
            kind="tools",
            make=partial(Machine, read_json),
            detects=_any_with_tools,
            call_format=CallFormat(
                before="[", open='{"name": "', middle='", "arguments": ', close="}", between=", ", after="]"
            ),
            summary='{"name": ..., "arguments": ...}, a list of these, or either in a block of code',
        )
    )
