"""Every built-in parser passes the kit, on answers as models write them and on what only looks like that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest

from tickertape.plugins.manager import Plugins
from tickertape.testing.output_parser import OutputParserConformance, ParserSubject

TOOLS: Final[Mapping[str, Mapping[str, Any]]] = {
    "get_weather": {
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "tags": {"type": "array"},
            "note": {"type": ["string", "null"]},
            "any": {},
        }
    },
    "now": {},
}
OBJECT_WORDS = frozenset({"name", "function", "arguments", "parameters", "type", "id", "index", "a1", "null"})

OBJECTS = (
    '{"name": "get_weather", "arguments": {"city": "Paris"}}',
    '{"name":"get_weather","arguments":{"city":"a \\"b\\" {c} ]","days":[[1],{"x":{}}]}}',
    '{"arguments": {"city": "Zürich 🌦"}, "name": "get_weather", "id": "a1"}',
    '{"name": "get_weather", "arguments": "{\\"city\\": \\"Bonn\\"}"}',
    '{"type": "function", "name": "now"}',
    '{"name": "now", "arguments": {}}',
    '{"name": "now", "arguments": null}',
    '{"name": "get_weather", "arguments": {"city": "caf\\u00e9 \\\\"}, "type": "function"}',
)
NEAR_OBJECTS = (
    '{"name": "unknown", "arguments": {"city": "Rome"}}',
    '{"name": "now", "arguments": [1, 2]}',
    '{"name": "now", "extra": true}',
    '{"name": 5, "arguments": {}}',
    '{"name" "now"}',
    '{"city": "Oslo", "nested": {"name": "now"}}',
    '{"name": "now", "arguments": "not an object"}',
    "{}",
    "{",
)
BROKEN_OBJECTS = (
    '{"name": "get_weather", "arguments": {"city": ]}, more',
    '{"name": "get_weather", "arguments": {"city": oops}} tail',
    '{"name": "get_weather", "arguments": {"city": "x"}, "extra": 1}',
    '{"name": "get_weather", "arguments": {"city": "cut',
)

HERMES = (
    *(f"<tool_call>\n{call}\n</tool_call>" for call in (*OBJECTS[:4], *NEAR_OBJECTS[:3], *BROKEN_OBJECTS)),
    f"Let me see.\n<tool_call>{OBJECTS[0]}</tool_call> and then",
    f"<tool_call>{OBJECTS[5]}</tool_call>\n<tool_call>\n{OBJECTS[0]}\n</tool_call>\nBoth.",
    f"<tool_call>[{OBJECTS[5]}, {OBJECTS[6]}]</tool_call>",
    f"<tool_call>[{OBJECTS[5]}, {NEAR_OBJECTS[2]}]</tool_call>",
    '<tool_call>{"name": "get_weather", "arguments": {"city": "</tool_call><tool_call>"}}</tool_call>',
    f"<tool_call><tool_call>{OBJECTS[5]}<tool_call>",
    "a <tool_cal> < tool_call> <<tool_call",
    "\n\n",
    "",
)

LLAMA = (
    *OBJECTS[:6],
    *NEAR_OBJECTS,
    *BROKEN_OBJECTS,
    f"<|python_tag|>{OBJECTS[0]}",
    f"<|python_tag|>{OBJECTS[5]}; {OBJECTS[0]} ; {NEAR_OBJECTS[0]}",
    f"{OBJECTS[5]}\n{OBJECTS[5]}\nDone; {OBJECTS[5]}",
    f"Well <|python_tag|>\n{OBJECTS[5]}",
    '<|python_tag|>brave_search.call(query="x")',
    "<|python_ta <|python_tag|",
    "  Just text.\n",
)

JSON = (
    *OBJECTS[:6],
    *NEAR_OBJECTS,
    *BROKEN_OBJECTS,
    f"[{OBJECTS[5]}, {OBJECTS[0]}]",
    f" ```json\n[\n {OBJECTS[5]}\n]\n```\n",
    f"```json\n{OBJECTS[0]}\n```\n```\n{OBJECTS[5]}\n``` done",
    f"```python\n{OBJECTS[5]}\n```",
    f"Text before {OBJECTS[5]}",
    "[1, 2]",
    "[]",
    "``",
)

MISTRAL = (
    f"[TOOL_CALLS][{OBJECTS[0]}, {OBJECTS[2]}]",
    f"[TOOL_CALLS] [{OBJECTS[5]}]",
    f"Text. [TOOL_CALLS][{OBJECTS[1]}] more",
    f"[TOOL_CALLS]{OBJECTS[5]}",
    f"[TOOL_CALLS][{OBJECTS[5]}, {NEAR_OBJECTS[0]}]",
    *(f"[TOOL_CALLS][{call}]" for call in (*NEAR_OBJECTS[1:4], *BROKEN_OBJECTS)),
    '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]now[CALL_ID]a1[ARGS]{}',
    '[TOOL_CALLS]get_weather{"city": "[ARGS]"}',
    'Hm [TOOL_CALLS] now [ARGS] {"x": "[TOOL_CALLS]"} after',
    "[TOOL_CALLS]unknown[ARGS]{}",
    "[TOOL_CALLS]now[CALL_ID]a1{}",
    "[TOOL_CALLS]now[CALL_ID]a1 and no more",
    "[TOOL_CALLS]now[ARGS]nothing",
    '[TOOL_CALLS]get_weather[ARGS]{"city": ]}[TOOL_CALLS]now[ARGS]{}',
    "[TOOL_CALLS",
    "[TOOL_CALLS]",
)


def v3(name: str, arguments: str) -> str:
    return f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"


def v31(name: str, arguments: str) -> str:
    return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>"


BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
DEEPSEEK = (
    BEGIN + v3("get_weather", '{"city": "Paris"}') + END,
    BEGIN + v31("get_weather", '{"city": "<｜tool▁call▁end｜>"}') + END,
    f"Hm.\n{BEGIN}{v31('now', '{}')}\n{v31('now', '{}')}{END} after",
    f"{BEGIN}{v3('now', '{}')}\n{v3('now', '{}')}{END}",
    BEGIN + v31("unknown", '{"city": 1}') + END,
    BEGIN + v3("unknown", "{}") + END,
    BEGIN + v31("get_weather", '{"city": ]}') + END,
    BEGIN + v31("now", "none") + END,
    BEGIN + " stray " + v31("now", "{}"),
    f"{BEGIN}<｜tool▁call▁begin｜>now<｜tool▁call▁end｜>",
    "<｜tool▁call <｜tool",
)

XML = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
    "<function=get_weather><parameter=days>3</parameter><parameter=tags>[1]</parameter></function>",
    "<function=get_weather><parameter=city>\n</parameter> <b>\n\n</parameter></function>",
    '<function=get_weather>\n<parameter=note>null</parameter><parameter=any>{"x": 1}</parameter></function>',
    "<function=get_weather><parameter=days>many</parameter><parameter=zip>077</parameter></tool_call> so",
    "Now:\n<tool_call><function=now></function></tool_call>\n<tool_call><function=now>\n</function></tool_call> ok",
    "<tool_call><function=unknown><parameter=city>x</parameter></function></tool_call>",
    "<tool_call><function=get_weather><parameter=city>cut",
    "<function=get_weather><parameter=city",
    "<function=now>junk</function>",
    "<tool_call>\n{1}</tool_call> <function <function=",
)

HARMONY = (
    "<|channel|>analysis<|message|>I think.<|end|><|start|>assistant<|channel|>final<|message|>Hi, <b>.<|return|>",
    '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>',
    "<|start|>assistant to=functions.now<|channel|>commentary<|message|> {}",
    " to=functions.now<|channel|>commentary json<|message|><|call|>",
    "<|channel|>commentary<|message|>First.<|end|><|start|>assistant<|channel|>final<|message|>Then.",
    "<|channel|>analysis<|message|>a<|start|>assistant<|channel|>analysis<|message|>b<|end|>\n",
    "<|channel|>commentary to=functions.unknown<|message|>{1}<|call|>",
    "<|channel|>analysis to=python code<|message|>print(2)<|end|>",
    "<|channel|>final<|end|> x <|start|>user<|message|>y",
    "plain <|chan text <|channel|>final",
    "<|channel|>final<|message|>cut <|ret",
)

PYTHONIC = (
    "[get_weather(city='Paris', days=3)]",
    '[get_weather(city="a \\"]) (", tags=[1, -2.5e3, {"x": [None]}], any={}), now()]',
    " [now( ) , get_weather(days = 3,)] ",
    "<|python_start|>[now()]<|python_end|>",
    "Text <|python_tag|>[now()] more",
    "[now(), unknown(x=1)]",
    "[get_weather(days=1+2)]",
    "[get_weather('Paris')]",
    "[get_weather(city=f'x')]",
    "[get_weather(city='cut",
    "[now()",
    "[now(]",
    "[1, 2] [now()]",
    "now()",
)


def think(start: str, end: str) -> tuple[str, ...]:
    return (
        f"{start}\nOne.\n\nTwo.\n{end}\n\nThe answer.\n",
        f"\n{start}a{end}{start}b{end} c",
        f"{start}{end}x",
        f"{start}never ends\n",
        f"x {start}y{end}",
        f"y{end} z",
        f"{start}<tool_call>{end[:-1]}x{end}<tool_call>{start}",
        start[:-1],
        f"< {start[1:]}",
        "",
    )


def prompts(start: str, end: str) -> tuple[str | None, ...]:
    return (None, "<|im_start|>assistant\n", f"x{start}\n", f"{start}\n\n{end}\n\n")


DEEPSEEK_WORDS = frozenset({"tool", "calls", "call", "begin", "end", "sep", "function", "json"})
HARMONY_WORDS = frozenset(
    {"channel", "analysis", "commentary", "final", "message", "start", "end", "call", "return", "constrain", "json"}
    | {"assistant", "to", "functions"}
)
SUBJECTS: Final = {
    "hermes": (HERMES, {*OBJECT_WORDS, "tool_call"}),
    "qwen_json": (HERMES[:4], {*OBJECT_WORDS, "tool_call"}),
    "llama3_json": (LLAMA, {*OBJECT_WORDS, "python_tag"}),
    "json": (JSON, {*OBJECT_WORDS, "json"}),
    "mistral": (MISTRAL, {*OBJECT_WORDS, "TOOL_CALLS", "CALL_ID", "ARGS"}),
    "mistral_v11": (MISTRAL[-9:], {*OBJECT_WORDS, "TOOL_CALLS", "CALL_ID", "ARGS"}),
    "deepseek_v3": (DEEPSEEK, DEEPSEEK_WORDS),
    "deepseek_v31": (DEEPSEEK[1:3], DEEPSEEK_WORDS),
    "qwen_xml": (XML, {"tool_call", "function", "parameter"}),
    "seed_xml": (
        tuple(text.replace("tool_call", "seed:tool_call") for text in XML[:3]),
        {"seed", "tool_call", "function", "parameter"},
    ),
    "gpt_oss": (HARMONY, HARMONY_WORDS),
    "pythonic": (PYTHONIC, {"python_start", "python_end", "python_tag", "None", "null"}),
    "think": (think("<think>", "</think>"), {"think"}),
    "qwen3": (think("<think>", "</think>")[:3], {"think"}),
    "deepseek_r1": (think("<think>", "</think>"), {"think"}),
    "thinking": (think("<thinking>", "</thinking>")[:3], {"thinking"}),
    "thought": (think("<thought>", "</thought>")[:3], {"thought"}),
    "reasoning": (think("<reasoning>", "</reasoning>")[:3], {"reasoning"}),
    "seed_think": (think("<seed:think>", "</seed:think>"), {"seed", "think"}),
    "magistral": (think("[THINK]", "[/THINK]"), {"THINK"}),
}
HARMONY_PROMPTS = (None, "<|start|>assistant", "<|start|>assistant<|channel|>final<|message|>")


def subject_of(name: str) -> ParserSubject:
    spec = Plugins.load().parsers[name]
    texts, markup = SUBJECTS[name]
    prompt_ends: tuple[str | None, ...] = (None,)
    if spec.kind == "both":
        prompt_ends = HARMONY_PROMPTS
    elif spec.kind == "reasoning":
        prompt_ends = prompts(*spec.shows)
    return ParserSubject(spec, texts, markup=markup, tools=TOOLS, prompt_ends=prompt_ends, repeated=texts[:2])


class TestBuiltinParsers(OutputParserConformance):
    @pytest.fixture(scope="class", params=SUBJECTS)
    @classmethod
    def subject(cls, request: pytest.FixtureRequest) -> ParserSubject:
        return subject_of(request.param)


def test_every_builtin_parser_is_tested() -> None:
    assert set(Plugins.load(allow=()).parsers) == set(SUBJECTS)
