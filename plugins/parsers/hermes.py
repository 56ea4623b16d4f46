"""Calls as JSON objects between `<tool_call>` tags, anywhere in the answer: Hermes, Qwen 2.5 and 3, and many more."""

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

__all__ = ["API", "read", "register_output_parsers"]

API = (1, 0)

_START: Final = "<tool_call>"
_END: Final = "</tool_call>"
_STARTS: Final = Tags(_START)
_ENDS: Final = Tags(_END)


def read(reader: Reader, sink: PartSink) -> Steps[None]:
    while (yield from reader.until(_STARTS, sink.content)) is not None:
        reader.attempt()
        yield from reader.expect(_START)
        yield from reader.skip_space()
        if not (yield from read_calls(reader, sink, end=_ENDS)):
            sink.content(reader.abandon())
            continue
        yield from read_closing(reader, sink, _END)


def _hermes(signs: ModelSigns) -> int:
    # Others put these tags around calls that are not JSON.
    if "<function=" in signs.template or "<arg_key>" in signs.template:
        return 0
    return 2 if _START in signs.template and "arguments" in signs.template else 0


def _qwen(signs: ModelSigns) -> int:
    return 3 if _hermes(signs) and "<|im_start|>" in signs.template and "<tools>" in signs.template else 0


@hookimpl
def register_output_parsers(register: Callable[[OutputParserSpec], None]) -> None:
    for name, detects in (("hermes", _hermes), ("qwen_json", _qwen)):
        register(
            OutputParserSpec(
                name=name,
                kind="tools",
                make=partial(Machine, read),
                detects=detects,
                shows=(_START, _END),
                triggers=(_START,),
                call_format=CallFormat(
                    open='<tool_call>\n{"name": "',
                    middle='", "arguments": ',
                    close="}\n</tool_call>",
                    between="\n",
                ),
                summary='<tool_call>{"name": ..., "arguments": ...}</tool_call>',
            )
        )
