"""Random texts in random pieces give the same parts: each format alone, and reasoning and calls together."""

from __future__ import annotations

from itertools import count, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tickertape.core.output_parser import FoldedOutput, fold_parts
from tickertape.plugins import ParserContext
from tickertape.plugins.manager import Plugins
from tickertape.plugins.output_parsers import OutputParsers
from tickertape.plugins.parsers.tags import Tags

PARSERS = Plugins.load().parsers
TOOLS = {"f": {"properties": {"a": {"type": "string"}}}, "g": {}}
OBJECTS = [
    '{"name": "f", "arguments": {"a": "b"}}', '{"name":"g"}', '{"name": "h", "arguments": {}}', '"arguments": ',
    '{"a": ["}", {"\\"": "\\u00e9\\\\"}]}', '{"a":', "[", "]", "{", "}", '"', "\\", ",", ";", ":", "```json\n", "```",
]  # fmt: skip
PYTHON = ["[f(a='b')", "g()", "(a=", "f(", "'", "None", ")"]
XML = ["<function=f>", "<parameter=a>", "b</parameter>", "</function>", "<function=", "</para"]
HARMONY = ["<|start|>assistant", "analysis", "final", "commentary", " to=functions.f", " json"]
PLAIN = ["text", " ", "\n", "<", ">", "é", "🌦", "", "f", "g", "function"]


def fragments(name: str) -> st.SearchStrategy[str]:
    spec = PARSERS[name]
    marks = [
        *spec.shows,
        *spec.triggers,
        *(spec.call_format.spell([("f", '{"a": 1}')]) for _ in "1" if spec.call_format),
    ]
    marks += [mark[:-1] for mark in marks] + [mark[1:] for mark in marks]
    return st.sampled_from([*marks, *OBJECTS, *PYTHON, *XML, *HARMONY, *PLAIN])


def fold(parsers: OutputParsers, pieces: list[str], prompt_end: str) -> FoldedOutput:
    numbers = count()
    context = ParserContext(tools=TOOLS, prompt_end=prompt_end, new_id=lambda: f"call_{next(numbers)}")
    parser = parsers.open(context)
    parts = [part for piece in pieces for part in parser.feed(piece, False)]
    return fold_parts([*parts, *parser.feed("", True)])


def check(parsers: OutputParsers, data: st.DataObject, names: list[str], prompt_end: str) -> None:
    text = "".join(data.draw(st.lists(st.one_of(*map(fragments, names)), max_size=30)))
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=40))
    pieces = [text[start:end] for start, end in pairwise([0, *sorted(cuts), len(text)])]
    whole = fold(parsers, [text], prompt_end)
    assert fold(parsers, pieces, prompt_end) == whole
    assert fold(parsers, list(text), prompt_end) == whole
    shown = whole.content + whole.reasoning + "".join(call.name + call.arguments for call in whole.calls)
    assert shown.count("text") == text.count("text")
    assert shown.count("🌦") == text.count("🌦")


@pytest.mark.parametrize("name", PARSERS)
@settings(deadline=None, max_examples=150, derandomize=True)
@given(data=st.data())
def test_a_format_alone(name: str, data: st.DataObject) -> None:
    spec = PARSERS[name]
    parsers = OutputParsers(
        reasoning=spec if spec.kind in ("reasoning", "both") else None,
        tools=spec if spec.kind in ("tools", "both") else None,
    )
    check(parsers, data, [name], data.draw(st.sampled_from(["", *spec.shows])))


@pytest.mark.parametrize("tools", [spec.name for spec in PARSERS.values() if spec.kind == "tools"])
@settings(deadline=None, max_examples=100, derandomize=True)
@given(data=st.data())
def test_reasoning_and_calls_together(tools: str, data: st.DataObject) -> None:
    parsers = OutputParsers(reasoning=PARSERS["think"], tools=PARSERS[tools])
    check(parsers, data, ["think", tools], data.draw(st.sampled_from(["", "<think>"])))


@settings(deadline=None, max_examples=300)
@given(
    tags=st.lists(st.text("<ab>", min_size=1, max_size=5), min_size=1, max_size=3),
    text=st.text("<ab>", max_size=30),
    cut=st.integers(0, 30),
)
def test_tags_are_found_wherever_the_text_is_cut(tags: list[str], text: str, cut: int) -> None:
    try:
        finder = Tags(*tags)
    except ValueError:
        assert any(one != other and one in other for one in tags for other in tags)
        return
    start, tag = finder.find(text, 0)
    early, early_tag = finder.find(text[:cut], 0)
    if early_tag is not None:
        assert (early, early_tag) == (start, tag)
    else:
        assert early <= (start if tag is not None else len(text))
        assert start == early or finder.find(text, early) == (start, tag)
