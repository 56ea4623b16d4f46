"""Reasoning between a pair of tags at the start of the answer: `<think>...</think>` and its family.

A start tag opens reasoning only before any content, so that a tag the answer talks about, or one inside a tool call's
arguments, stays what it is. Where the template has opened the reasoning already, the prompt's end shows it; where it
has closed it again (`enable_thinking=false`), the prompt's end shows that too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from tickertape.plugins import ModelSigns, OutputParserSpec, ParserContext, hookimpl
from tickertape.plugins.parsers.machine import Machine
from tickertape.plugins.parsers.reader import Reader, Steps
from tickertape.plugins.parsers.sink import PartSink
from tickertape.plugins.parsers.tags import Tags

__all__ = ["API", "ThinkFormat", "register_output_parsers"]

API = (1, 0)


class ThinkFormat:
    """Reasoning between `start` and `end`. `opened` says where it begins when the prompt's end is not known."""

    def __init__(self, start: str, end: str, *, opened: bool = False) -> None:
        self.tags = (start, end)
        self._closing = Tags(end)
        self._opened = opened

    def make(self, context: ParserContext) -> Machine:
        opened = self._opened if context.prompt_end is None else context.prompt_end.rstrip().endswith(self.tags[0])
        return Machine(partial(self._read, opened=opened), context)

    def _read(self, reader: Reader, sink: PartSink, *, opened: bool) -> Steps[None]:
        while opened or (yield from self._starts(reader, sink)):
            opened = False
            sink.markup()
            sink.reasoning("\n")  # between two stretches
            if (yield from reader.until(self._closing, sink.reasoning)) is not None:
                yield from reader.expect(self.tags[1])
                sink.markup()
        yield from reader.rest(sink.content)

    def _starts(self, reader: Reader, sink: PartSink) -> Steps[bool]:
        """Whether a stretch of reasoning begins here."""
        reader.attempt()
        yield from reader.skip_space()
        if (yield from reader.expect(self.tags[0])):
            reader.commit()
            return True
        sink.content(reader.abandon())
        return False


def _mentions(score: int, *marks: str) -> Callable[[ModelSigns], int]:
    return lambda signs: score if signs.mention(*marks) else 0


def _qwen3(signs: ModelSigns) -> int:
    return 3 if signs.mention("</think>", "<|im_start|>") and "enable_thinking" in signs.template else 0


_FAMILY: Final = (
    ("think", ThinkFormat("<think>", "</think>"), _mentions(2, "</think>")),
    ("qwen3", ThinkFormat("<think>", "</think>"), _qwen3),
    # Older templates leave the start tag to the model, and some of its models leave it out.
    ("deepseek_r1", ThinkFormat("<think>", "</think>", opened=True), _mentions(3, "</think>", "<｜Assistant｜>")),
    ("thinking", ThinkFormat("<thinking>", "</thinking>"), _mentions(2, "</thinking>")),
    ("thought", ThinkFormat("<thought>", "</thought>"), _mentions(2, "</thought>")),
    ("reasoning", ThinkFormat("<reasoning>", "</reasoning>"), _mentions(2, "</reasoning>")),
    ("seed_think", ThinkFormat("<seed:think>", "</seed:think>"), _mentions(3, "</seed:think>")),
    ("magistral", ThinkFormat("[THINK]", "[/THINK]"), _mentions(3, "[THINK]", "[/THINK]")),
)


@hookimpl
def register_output_parsers(register: Callable[[OutputParserSpec], None]) -> None:
    for name, format, detects in _FAMILY:
        register(
            OutputParserSpec(
                name=name,
                kind="reasoning",
                make=format.make,
                detects=detects,
                shows=format.tags,
                tags=format.tags,
                summary=f"reasoning between {' and '.join(format.tags)}, before the answer",
            )
        )
