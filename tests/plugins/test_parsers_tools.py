"""What the built-in formats make of a model's calls, spelled out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tickertape.core.output_parser import FoldedOutput, fold_parts
from tickertape.plugins import ContentPart, OutputPart, ParserContext, ToolCallPart
from tickertape.plugins.manager import Plugins

TOOLS: Mapping[str, Mapping[str, Any]] = {
    "get_weather": {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    "write": {"properties": {"text": {"type": "string"}, "mode": {"enum": ["a", "w"]}, "tags": {"type": "array"}}},
    "now": {},
}


def feed(name: str, *pieces: str, prompt_end: str | None = None) -> list[OutputPart]:
    numbers = count()
    context = ParserContext(tools=TOOLS, prompt_end=prompt_end, new_id=lambda: f"call_{next(numbers)}")
    parser = Plugins.load().parsers[name].make(context)
    parts: list[OutputPart] = []
    for n, piece in enumerate(pieces, 1):
        parts += parser.feed(piece, n == len(pieces))
    return parts


def read(name: str, text: str) -> tuple[str, list[tuple[str, str]]]:
    """The content, and the calls as names and arguments."""
    output = fold_parts(feed(name, text))
    return output.content, [(call.name, call.arguments) for call in output.calls]


PARIS = ("get_weather", '{"city": "Paris"}')
NOW = ("now", "{}")
DS = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"
GOOD = [
    ("hermes", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>', "", [PARIS]),
    ("hermes", 'Hm.\n<tool_call>{"name": "now"}</tool_call>', "Hm.", [NOW]),
    ("hermes", '<tool_call>{"arguments": {"city": "Paris"}, "name": "get_weather"}</tool_call>', "", [PARIS]),
    (
        "qwen_json",
        '<tool_call>{"name": "now", "arguments": {}}</tool_call>\n<tool_call>{"name": "now", "arguments": null}',
        "",
        [NOW, NOW],
    ),
    ("llama3_json", '{"name": "get_weather", "parameters": {"city": "Paris"}}', "", [PARIS]),
    (
        "llama3_json",
        '<|python_tag|>{"type": "function", "name": "now", "parameters": {}}; {"name": "now"}',
        "",
        [NOW, NOW],
    ),
    ("json", '[{"name": "now"}, {"name": "get_weather", "arguments": {"city": "Paris"}}]', "", [NOW, PARIS]),
    ("json", '```json\n{"name": "now", "parameters": {}}\n```', "", [NOW]),
    (
        "mistral",
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "x12345678"}]',
        "",
        [PARIS],
    ),
    (
        "mistral_v11",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]now[CALL_ID]ab12[ARGS]{}',
        "",
        [PARIS, NOW],
    ),
    (
        "deepseek_v3",
        DS + 'function<｜tool▁sep｜>get_weather\n```json\n{"city": "Paris"}\n```<｜tool▁call▁end｜>'
        "<｜tool▁calls▁end｜>",
        "",
        [PARIS],
    ),
    (
        "deepseek_v31",
        DS + 'get_weather<｜tool▁sep｜>{"city": "Paris"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "",
        [PARIS],
    ),
    (
        "qwen_xml",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
        "",
        [PARIS],
    ),
    ("seed_xml", "<seed:tool_call><function=now></function></seed:tool_call>", "", [NOW]),
    (
        "gpt_oss",
        '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>',
        "",
        [PARIS],
    ),
    ("gpt_oss", "<|channel|>commentary to=functions.now<|message|><|call|>", "", [NOW]),
    ("pythonic", "[get_weather(city='Paris'), now()]", "", [PARIS, NOW]),
    ("pythonic", "<|python_start|>[now()]<|python_end|>", "", [NOW]),
]


@pytest.mark.parametrize(("name", "text", "content", "calls"), GOOD)
def test_calls_are_read(name: str, text: str, content: str, calls: list[tuple[str, str]]) -> None:
    assert read(name, text) == (content, calls)


UNKNOWN = [
    ("hermes", '<tool_call>{"name": "rm", "arguments": {}}</tool_call>'),
    ("llama3_json", '{"name": "rm", "parameters": {}}'),
    ("llama3_json", '{"name": "Ann", "age": 4}'),
    ("json", '[{"name": "rm", "arguments": {}}]'),
    ("mistral", '[TOOL_CALLS][{"name": "rm", "arguments": {}}]'),
    ("mistral_v11", "[TOOL_CALLS]rm[ARGS]{}"),
    ("deepseek_v31", DS + "rm<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
    ("qwen_xml", "<tool_call><function=rm><parameter=x>y</parameter></function></tool_call>"),
    ("pythonic", "[rm(x='y')]"),
]


@pytest.mark.parametrize(("name", "text"), UNKNOWN)
def test_a_call_of_no_tool_is_content_as_it_was_written(name: str, text: str) -> None:
    assert read(name, text) == (text, [])


UNPARSEABLE = [
    ("hermes", '<tool_call>{"name": "now", "arguments": [1]}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now", "arguments": "text"}</tool_call>'),
    ("hermes", '<tool_call>{"name": now}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now", "thought": "hm", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "get_wea'),
    ("hermes", "<tool_call>now()</tool_call>"),
    ("mistral", "[TOOL_CALLS]now and then"),
    ("deepseek_v3", DS + "function<｜tool▁sep｜>now\n{}<｜tool▁call▁end｜>"),
    ("qwen_xml", "<tool_call><function=now>now</function></tool_call>"),
    ("pythonic", "[get_weather(city=town)]"),
    ("pythonic", "[get_weather('Paris')]"),
    ("pythonic", "[get_weather(days=1 + 1)]"),
    ("pythonic", "[get_weather(city='Par"),
    ("pythonic", r"[get_weather(city='\ud800')]"),
]


@pytest.mark.parametrize(("name", "text"), UNPARSEABLE)
def test_a_call_that_cannot_be_read_is_content_as_it_was_written(name: str, text: str) -> None:
    assert read(name, text) == (text, [])


CUT = [
    ("hermes", '<tool_call>{"name": "get_weather", "arguments": {"city": "Par', '{"city": "Par'),
    ("llama3_json", '{"name": "get_weather", "parameters": {"city": "Par', '{"city": "Par'),
    ("mistral_v11", '[TOOL_CALLS]get_weather[ARGS]{"city": "Par', '{"city": "Par'),
    ("deepseek_v31", DS + 'get_weather<｜tool▁sep｜>{"city": "Par', '{"city": "Par'),
    ("gpt_oss", '<|channel|>commentary to=functions.get_weather<|message|>{"city": "Par', '{"city": "Par'),
    ("qwen_xml", "<function=get_weather><parameter=city>Par", '{"city": "Par'),
    ("qwen_xml", "<function=get_weather><parameter=city>Paris</parameter>", '{"city": "Paris"'),
    ("qwen_xml", "<function=get_weather><parameter=days>1", '{"days": 1'),
]


@pytest.mark.parametrize(("name", "text", "arguments"), CUT)
def test_a_call_that_was_cut_off_keeps_its_arguments_as_they_are(name: str, text: str, arguments: str) -> None:
    """Case 035: never completed, never repaired."""
    assert read(name, text) == ("", [("get_weather", arguments)])


BROKEN = [
    ("hermes", '<tool_call>{"name": "now", "arguments": {"a": ]}}</tool_call> so', '{"a": ]}}', "so"),
    ("hermes", '<tool_call>{"name": "now", "arguments": {"a": yes}}</tool_call>', '{"a": yes}', ""),
    ("hermes", '<tool_call>{"name": "now", "arguments": {}, "why": 1}</tool_call>', "{}", ', "why": 1}</tool_call>'),
    ("deepseek_v31", DS + "now<｜tool▁sep｜>{]<｜tool▁call▁end｜>", "{]", ""),
    ("llama3_json", '{"name": "now", "parameters": {"a": ]}, more', '{"a": ', "]}, more"),
]


@pytest.mark.parametrize(("name", "text", "arguments", "content"), BROKEN)
def test_what_is_wrong_after_a_call_was_opened_is_kept(name: str, text: str, arguments: str, content: str) -> None:
    """Arguments stay as the model wrote them up to the format's end tag; where there is none, the rest is content."""
    assert read(name, text) == (content, [("now", arguments)])


STREAMED = [
    ("hermes", '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}</tool_call>'),
    ("llama3_json", '{"name": "get_weather", "parameters": {"city": "Paris", "days": 3}}'),
    ("json", '{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}'),
    ("mistral", '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}]'),
    ("mistral_v11", '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris", "days": 3}'),
    ("deepseek_v3", DS + 'function<｜tool▁sep｜>get_weather\n```json\n{"city": "Paris", "days": 3}\n```'),
    ("deepseek_v31", DS + 'get_weather<｜tool▁sep｜>{"city": "Paris", "days": 3}'),
    ("gpt_oss", '<|channel|>commentary to=functions.get_weather<|message|>{"city": "Paris", "days": 3}'),
    ("qwen_xml", "<function=get_weather><parameter=city>Paris</parameter><parameter=days>3</parameter></function>"),
]


@pytest.mark.parametrize(("name", "text"), STREAMED)
def test_name_and_id_come_first_then_the_arguments_as_they_are_written(name: str, text: str) -> None:
    first, *later = feed(name, *text, "")
    assert first == ToolCallPart(0, "call_0", "get_weather")
    assert all(isinstance(part, ToolCallPart) and part.id is part.name is None for part in later)
    assert "".join(part.arguments for part in later if isinstance(part, ToolCallPart)) == '{"city": "Paris", "days": 3}'
    assert len(later) > 8, "the arguments did not come piece by piece"


def test_the_text_before_a_call_does_not_wait_for_it() -> None:
    assert feed("hermes", "Let me see. <tool_call>", "")[0] == ContentPart("Let me see.")


@pytest.mark.parametrize(
    ("value", "argument"),
    [
        ("plain", '"plain"'),
        ("\nplain\n", '"plain"'),
        ("\n\n two \n\n", '"\\n two \\n"'),
        ('a "b" \\ é', '"a \\"b\\" \\\\ é"'),
        ("12", '"12"'),
        ("<p>x</p></parameter>y", '"<p>x</p></parameter>y"'),
        ("", '""'),
    ],
)
def test_xml_text_is_quoted_as_it_stands(value: str, argument: str) -> None:
    text = f"<function=write><parameter=text>{value}</parameter></function>"
    assert read("qwen_xml", text) == ("", [("write", f'{{"text": {argument}}}')])
    assert json.loads(argument) == value.removeprefix("\n").removesuffix("\n")


@pytest.mark.parametrize(
    ("tool", "key", "value", "argument"),
    [
        ("get_weather", "days", "3", "3"),
        ("get_weather", "days", "\n3\n", "3"),
        ("get_weather", "days", "soon", '"soon"'),
        ("write", "tags", '["a", 1]', '["a", 1]'),
        ("write", "tags", "NaN", '"NaN"'),
        ("write", "mode", "1", '"1"'),
        ("write", "unknown", "1", '"1"'),
        ("now", "unknown", "true", '"true"'),
    ],
)
def test_xml_values_are_what_the_schema_says(tool: str, key: str, value: str, argument: str) -> None:
    text = f"<function={tool}><parameter={key}>{value}</parameter></function>"
    assert read("qwen_xml", text) == ("", [(tool, f'{{"{key}": {argument}}}')])


@pytest.mark.parametrize(
    ("literal", "argument"),
    [
        ("True", "true"),
        ("None", "null"),
        ("-2.5e3", "-2.5e3"),
        ("[1, 'a', [],]", '[1, "a", []]'),
        ("{'k': {}, \"l\": 'x)'}", '{"k": {}, "l": "x)"}'),
        (r"'it\'s \n \x41 \u00e9 \d'", json.dumps("it's \n A é \\d", ensure_ascii=False)),
        (r"'\ud83d\ude00'", '"😀"'),
        ("'a, b=(c'", '"a, b=(c"'),
    ],
)
def test_python_literals_become_json(literal: str, argument: str) -> None:
    assert read("pythonic", f"[write(text={literal})]") == ("", [("write", f'{{"text": {argument}}}')])


@pytest.mark.parametrize(
    "literal", ["f'x'", "1_000", "0x10", "1+1", "x", "(1, 2)", "{1: 2}", "b'x'", "[" * 70 + "]" * 70]
)
def test_what_is_no_json_is_no_argument(literal: str) -> None:
    text = f"[write(text={literal})]"
    assert read("pythonic", text) == (text, [])


def test_content_is_only_trimmed_beside_calls() -> None:
    call = '<tool_call>{"name": "now"}</tool_call>'
    assert read("hermes", "  a  b \n") == ("  a  b \n", [])
    assert read("hermes", f"\n{call}\n") == ("", [NOW])
    assert read("hermes", f"a\n{call}\n{call} b\n") == ("a\n\n b\n", [NOW, NOW])
    assert read("hermes", f" {call} b") == ("b", [NOW])


def test_channels_of_gpt_oss() -> None:
    text = (
        "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>analysis<|message|>More.<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>I will look.<|end|>"
        "<|start|>assistant to=functions.now<|channel|>commentary <|constrain|>json<|message|>{}"
    )
    output = fold_parts(feed("gpt_oss", text))
    assert (output.reasoning, output.content) == ("Think.\nMore.", "I will look.")
    assert [(call.name, call.arguments) for call in output.calls] == [NOW]


def test_gpt_oss_goes_on_where_the_prompt_ends() -> None:
    final = "<|start|>user<|message|>x<|end|><|start|>assistant<|channel|>final<|message|>"
    assert fold_parts(feed("gpt_oss", "Yes.", prompt_end=final)) == FoldedOutput("Yes.", "", ())
    call = "<|start|>assistant<|channel|>commentary to=functions.now"
    [found] = fold_parts(feed("gpt_oss", "<|message|>{}", prompt_end=call)).calls
    assert (found.name, found.arguments) == NOW
    history = "<|start|>assistant<|channel|>final<|message|>x<|end|><|start|>user<|message|>y"
    assert fold_parts(feed("gpt_oss", "Yes.", prompt_end=history)) == FoldedOutput("Yes.", "", ())


def test_gpt_oss_shows_what_is_addressed_to_nobody_here() -> None:
    text = "<|channel|>commentary to=functions.rm <|constrain|>json<|message|>{}"
    assert read("gpt_oss", text + "<|call|>") == (text, [])


def test_mistral_common_writes_what_the_parser_reads() -> None:
    """Its own encoder, with the vocabulary that it ships."""
    mistral = pytest.importorskip("mistral_common", reason="mistral-common is not installed")
    messages = import_module("mistral_common.protocol.instruct.messages")
    tool_calls = import_module("mistral_common.protocol.instruct.tool_calls")
    request = import_module("mistral_common.protocol.instruct.request")
    keep = import_module("mistral_common.tokens.tokenizers.base").SpecialTokenPolicy.KEEP
    tokenizers = import_module("mistral_common.tokens.tokenizers.mistral")
    vocabulary = Path(mistral.__file__).parent / "data" / "tekken_240911.json"
    tokenizer = tokenizers.MistralTokenizer.from_file(str(vocabulary))
    written = [("get_weather", '{"city": "Zürich \\"x\\""}'), NOW]
    calls = [
        tool_calls.ToolCall(id=f"abcdefgh{n}", function=tool_calls.FunctionCall(name=name, arguments=arguments))
        for n, (name, arguments) in enumerate(written)
    ]
    results = [messages.ToolMessage(content="ok", tool_call_id=call.id) for call in calls]
    chat = [messages.UserMessage(content="hi"), messages.AssistantMessage(tool_calls=calls), *results]
    tokens = tokenizer.encode_chat_completion(request.ChatCompletionRequest(messages=chat)).tokens
    text = tokenizer.instruct_tokenizer.tokenizer.decode(tokens, special_token_policy=keep)
    answer = text.partition("[/INST]")[2].partition("</s>")[0]
    assert answer.startswith("[TOOL_CALLS]")
    content, found = read("mistral", answer)
    assert content == ""
    assert [(name, json.loads(arguments)) for name, arguments in found] == [
        (name, json.loads(arguments)) for name, arguments in written
    ]
