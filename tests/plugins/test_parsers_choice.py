"""Which parsers a model gets, and how they work together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tickertape.core.output_parser import FoldedCall, FoldedOutput, fold_parts, new_call_id
from tickertape.plugins import (
    ContentPart,
    ModelSigns,
    OutputParserSpec,
    OutputPart,
    ParserContext,
    PluginError,
    ReasoningPart,
    ToolCallPart,
)
from tickertape.plugins.manager import Plugins
from tickertape.plugins.output_parsers import NONE, OutputParsers, choose_parsers

# What real templates have of their output's format.
QWEN25 = """<|im_start|> <tools> {%- for tool in tools %} <tool_call>\n{\"name\": n, \"arguments\": a}"""
QWEN3 = (
    QWEN25 + "{%- if '</think>' in content %} {%- if enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}"
)
CODER = "<|im_start|> {%- if tools %} <tool_call>\\n<function=f>\\n<parameter=p>\\nv\\n</parameter>\\n</function>"
SEED = "<seed:think> </seed:think> <seed:tool_call>\\n<function=f>\\n<parameter=p>v</parameter> {{ tools }}"
LLAMA3 = """<|start_header_id|> {{ tools }} <|python_tag|> '{"name": "' + name + '", ' }} {{- '"parameters": ' }}"""
LLAMA4 = "<|header_start|> {{ tools }} Use exact format: [func_name1(param1=value1, param2=value2), func_name2(...)]"
MISTRAL = "[INST] {{ tools }} [/INST] [TOOL_CALLS] ["
MISTRAL_V11 = "[INST] [TOOL_CALLS]{{ name }}[ARGS]{{ arguments }} tools [THINK] [/THINK]"
R1 = "<｜User｜> <｜Assistant｜><think>\\n </think> <｜tool▁call▁begin｜> '```json' tool"
V31 = "<｜Assistant｜></think> <｜tool▁call▁begin｜>{{ name }}<｜tool▁sep｜>"
OSS = "<|start|>assistant<|channel|>analysis<|message|> {{ tools }}"
GLM = "<tool_call>{{ name }}<arg_key>k</arg_key> arguments </think> {%- for tool in tools %}"

CHOSEN = [
    (QWEN25, None, "qwen_json"),
    (QWEN3, "qwen3", "qwen_json"),
    (CODER, None, "qwen_xml"),
    (SEED, "seed_think", "seed_xml"),
    (LLAMA3, None, "llama3_json"),
    (LLAMA4, None, "pythonic"),
    (MISTRAL, None, "mistral"),
    (MISTRAL_V11, "magistral", "mistral_v11"),
    (R1, "deepseek_r1", "deepseek_v3"),
    (V31, "deepseek_r1", "deepseek_v31"),
    (OSS, "gpt_oss", "gpt_oss"),
    (GLM, "think", "json"),
    ("{{ system }} {{ tools }}", None, "json"),
    ("{{ messages }}", None, None),
    ("", None, None),
]


def specs() -> list[OutputParserSpec]:
    return list(Plugins.load().parsers.values())


def names(parsers: OutputParsers) -> tuple[str | None, str | None]:
    reasoning, tools = parsers.reasoning, parsers.tools
    return reasoning.name if reasoning else None, tools.name if tools else None


@pytest.mark.parametrize(("template", "reasoning", "tools"), CHOSEN)
def test_the_template_tells_the_format(template: str, reasoning: str | None, tools: str | None) -> None:
    assert names(choose_parsers(specs(), ModelSigns(template=template))) == (reasoning, tools)


def test_the_vocabulary_tells_what_the_template_leaves_out() -> None:
    llama = ModelSigns(template='{{ tools }} {"name": f, "parameters": p}', added_tokens=frozenset({"<|python_tag|>"}))
    assert names(choose_parsers(specs(), llama)) == (None, "llama3_json")
    v11 = ModelSigns(template=MISTRAL, added_tokens=frozenset({"[ARGS]", "[TOOL_CALLS]"}))
    assert names(choose_parsers(specs(), v11)) == (None, "mistral_v11")


def test_a_name_overrides() -> None:
    signs = ModelSigns(template=QWEN3)
    assert names(choose_parsers(specs(), signs, reasoning="deepseek_r1", tools="pythonic")) == (
        "deepseek_r1",
        "pythonic",
    )
    assert names(choose_parsers(specs(), signs, reasoning=NONE, tools=NONE)) == (None, None)


@pytest.mark.parametrize("wrong", ["hermes", "absent"])
def test_a_wrong_name_is_refused_with_the_right_ones(wrong: str) -> None:
    with pytest.raises(PluginError, match=rf"no output parser '{wrong}' for reasoning; there are: auto, none, .*qwen3"):
        choose_parsers(specs(), ModelSigns(), reasoning=wrong)


def test_a_parser_that_cannot_look_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    def detects(_: ModelSigns) -> int:
        raise KeyError("template")

    broken = OutputParserSpec(name="broken", kind="tools", make=Plain, detects=detects)
    assert names(choose_parsers([broken, *specs()], ModelSigns(template=QWEN25))) == (None, "qwen_json")
    assert "'broken'" in caplog.text


class Plain:
    def __init__(self, context: ParserContext) -> None:
        self.context = context

    def feed(self, text: str, final: bool) -> Sequence[OutputPart]:
        return [ContentPart(text)] if text else []


# -- on a choice -----------------------------------------------------------------------------------------------------

CALL = '<tool_call>{"name": "f", "arguments": {"a": "<think>"}}</tool_call>'
CONTEXT = ParserContext(tools={"f": {}}, prompt_end="<|im_start|>assistant\n", new_id=lambda: "id")


def chosen(template: str = QWEN3) -> OutputParsers:
    return choose_parsers(specs(), ModelSigns(template=template))


def test_reasoning_comes_first_and_its_content_is_searched_for_calls() -> None:
    text = f"<think>\nI could {CALL}.\n</think>\n\nLooking.\n{CALL}"
    for pieces in ([text], list(text)):
        parser = chosen().open(CONTEXT)
        parts = [part for piece in pieces for part in parser.feed(piece, False)] + [*parser.feed("", True)]
        assert fold_parts(parts) == FoldedOutput(
            "Looking.", f"I could {CALL}.", (FoldedCall("id", "f", '{"a": "<think>"}'),)
        )
        assert parser.has_calls


def test_the_piece_that_ends_reasoning_gives_two_parts() -> None:
    """Case 038: a part is reasoning or content, never both."""
    parser = chosen().open(CONTEXT)
    parser.feed("<think>why", False)
    assert [*parser.feed(" not</think>Yes", False)] == [ReasoningPart(" not"), ContentPart("Yes")]


@pytest.mark.parametrize(
    ("prompt_end", "text", "reasoning", "content"),
    [
        ("assistant\n<think>\n", "Hm.\n</think>\n\nYes.", "Hm.", "Yes."),
        ("assistant\n<think>\n\n</think>\n\n", "Yes.", "", "Yes."),
        ("assistant\n", "<think>\n\n</think>\n\nYes.", "", "Yes."),
        ("assistant\n", "Yes, <think> is a tag.", "", "Yes, <think> is a tag."),
        ("assistant\n", "a </think> b", "", "a </think> b"),
        ("assistant\n<think>", "never ends", "never ends", ""),
    ],
)
def test_the_prompt_tells_where_reasoning_begins(prompt_end: str, text: str, reasoning: str, content: str) -> None:
    """A template opens the reasoning, closes it (enable_thinking=false), or leaves it to the model."""
    parser = chosen().open(ParserContext(prompt_end=prompt_end))
    assert fold_parts(parser.feed(text, True)) == FoldedOutput(content, reasoning, ())


def test_deepseek_r1_begins_with_reasoning_unless_the_prompt_says_otherwise() -> None:
    parsers = OutputParsers(reasoning=Plugins.load().parsers["deepseek_r1"])
    assert fold_parts(parsers.open(ParserContext()).feed("Hm.</think>Yes.", True)) == FoldedOutput("Yes.", "Hm.", ())
    closed = ParserContext(prompt_end="<｜Assistant｜></think>")
    assert fold_parts(parsers.open(closed).feed("Yes.", True)) == FoldedOutput("Yes.", "", ())


def test_without_tools_nothing_is_a_call() -> None:
    assert fold_parts(chosen().open(ParserContext()).feed(CALL, True)) == FoldedOutput(CALL, "", ())
    oss = "<|channel|>commentary to=functions.f<|message|>{}"
    assert fold_parts(chosen(OSS).open(ParserContext()).feed(oss, True)) == FoldedOutput(oss, "", ())


def test_without_parsers_all_is_content() -> None:
    parser = OutputParsers().open(CONTEXT)
    assert [*parser.feed("<think>", False), *parser.feed("", True)] == [ContentPart("<think>")]
    assert not parser.has_calls


def test_one_format_for_both_runs_once() -> None:
    text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.f<|message|>{}"
    output = fold_parts(chosen(OSS).open(CONTEXT).feed(text, True))
    assert output == FoldedOutput("", "Hm.", (FoldedCall("id", "f", "{}"),))


def test_at_most_one_call_where_only_one_is_wanted() -> None:
    """Case 036: the second call ends the choice, wherever the text is cut."""
    text = f"One.\n{CALL}\n{CALL} more"
    for pieces in ([text], list(text)):
        parser = chosen().open(CONTEXT, parallel_tool_calls=False)
        parts: list[OutputPart] = []
        for piece in pieces:
            parts += parser.feed(piece, False)
        assert parser.ended
        assert not parser.feed("", True)
        assert fold_parts(parts) == FoldedOutput("One.", "", (FoldedCall("id", "f", '{"a": "<think>"}'),))


def test_one_call_is_not_ended_by_itself() -> None:
    parser = chosen().open(CONTEXT, parallel_tool_calls=False)
    assert fold_parts(parser.feed(f"{CALL} so", True)).content == "so"
    assert not parser.ended


def test_the_tokens_to_show_are_those_of_both() -> None:
    assert chosen(MISTRAL_V11).shows == {"[THINK]", "[/THINK]", "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"}


# -- records ---------------------------------------------------------------------------------------------------------


def test_call_ids_are_long_and_differ() -> None:
    ids = {new_call_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(id.startswith("call_") and len(id) == 29 for id in ids)


@pytest.mark.parametrize(
    "parts",
    [
        [ToolCallPart(0, arguments="{}")],
        [ToolCallPart(1, "a", "f")],
        [ToolCallPart(0, "a", "f", "{}")],
        [ToolCallPart(0, "a", "f"), ToolCallPart(1, "b", "g"), ToolCallPart(0, arguments="{}")],
        [ToolCallPart(0, "a", "f"), ToolCallPart(0, "a", "f")],
    ],
)
def test_parts_out_of_order_do_not_fold(parts: list[OutputPart]) -> None:
    with pytest.raises(ValueError, match="out of order"):
        fold_parts(parts)
