"""Every format of calls and of reasoning through the whole front: with its marks as plain text and as special tokens,
called, forced, held to a schema; the same however the text is cut, streamed or not."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import jsonschema
import pytest

from tickertape.core.output_parser import OutputParserSpec
from tickertape.testing import templates
from tickertape.testing.front import Front, built_in_parsers, spoken
from tickertape.testing.openai_stream import Told, told

Make = Callable[..., Awaitable[Front]]

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
]
STRICT = [{"type": "function", "function": {**tool["function"], "strict": True}} for tool in TOOLS]
CALLS = [("weather", '{"city": "Rome"}'), ("now", "{}")]
BAD = [("weather", '{"city": "Atlantis", "x": 1}')]

SPECS = {spec.name: spec for spec in built_in_parsers()}
JSON_FORMATS = sorted(name for name, spec in SPECS.items() if spec.call_format is not None)
TAGGED = sorted(name for name, spec in SPECS.items() if spec.tags is not None)


def marks(spec: OutputParserSpec, marked: bool) -> tuple[str, ...]:
    return spec.shows if marked else ()


async def model(make_front: Make, spec: OutputParserSpec, tokens: Sequence[int] | str, *, marked: bool) -> Front:
    both = spec.kind == "both"
    settings: dict[str, Any] = {
        "template": templates.THINKS_AND_CALLS,
        "special": marks(spec, marked),
        "reasoning_parser": spec.name if both or spec.kind == "reasoning" else "none",
        "tool_parser": spec.name if spec.kind != "reasoning" else "auto",
        "max_model_len": 1024,
        "num_blocks": 129,
    }
    if isinstance(tokens, str):  # in the tokenizer's own cut
        front = await make_front(**settings)
        tokens = front.tokenizer.encode(tokens, add_special_tokens=False)
    return await make_front({"when": spoken("go"), "tokens": tuple(tokens)}, **settings)


async def both(front: Front, **fields: Any) -> Told:
    streamed, whole = [told(await front.chat("go", stream=stream, **fields))[0] for stream in (True, False)]
    for call in (*streamed.calls, *whole.calls):
        assert call.pop("id")
    assert vars(streamed) == {**vars(whole), "pieces": streamed.pieces}
    return whole


def named(found: Told) -> list[tuple[str, str]]:
    return [(call["name"], call["arguments"]) for call in found.calls]


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("name", JSON_FORMATS)
async def test_calls(make_front: Make, name: str, marked: bool) -> None:
    spec = SPECS[name]
    assert spec.call_format is not None
    text = spec.call_format.spell(CALLS)
    found = await both(await model(make_front, spec, text, marked=marked), tools=TOOLS)
    assert (named(found), found.text, found.finish) == (CALLS, "", "tool_calls")
    if not marked:
        bytewise = await both(await model(make_front, spec, spoken(text), marked=False), tools=TOOLS)
        assert vars(bytewise) | {"pieces": []} == vars(found) | {"pieces": []}


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("name", JSON_FORMATS)
async def test_forced_calls(make_front: Make, name: str, marked: bool) -> None:
    front = await model(make_front, SPECS[name], "I would rather talk.", marked=marked)
    for parallel in (False, True):
        found = await both(
            front, tools=TOOLS, tool_choice="required", parallel_tool_calls=parallel, seed=3, max_tokens=400
        )
        assert found.calls
        # A call whose beginning is cut is no call yet, and is shown as it is.
        assert found.text == "" or found.finish == "length"
        if not parallel:
            assert (len(found.calls), found.finish) == (1, "tool_calls")
        for called, arguments in named(found)[: len(found.calls) - (found.finish == "length")]:
            jsonschema.validate(json.loads(arguments), SCHEMA if called == "weather" else {"maxProperties": 0})


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("name", JSON_FORMATS)
async def test_strict_calls_are_right_or_refused(make_front: Make, name: str, marked: bool) -> None:
    spec = SPECS[name]
    assert spec.call_format is not None
    front = await model(make_front, spec, spec.call_format.spell(BAD), marked=marked)
    assert named(await both(front, tools=TOOLS)) == BAD
    answer = await front.chat("go", tools=STRICT, max_tokens=300)
    if answer.status == 400:
        error = answer.json()["error"]
        assert (error["param"], error["code"]) == ("tools", "unsupported_value")
        assert name in error["message"]
        return
    found = await both(front, tools=STRICT, max_tokens=300)
    for called, arguments in named(found)[: len(found.calls) - (found.finish == "length")]:
        jsonschema.validate(json.loads(arguments), SCHEMA if called == "weather" else {"maxProperties": 0})
    assert BAD[0] not in named(found)


@pytest.mark.parametrize(
    ("marked", "refused"), [(True, {"gpt_oss"}), (False, {"gpt_oss", "deepseek_v3", "deepseek_v31", "llama3_json"})]
)
async def test_which_formats_keep_strict(make_front: Make, marked: bool, refused: set[str]) -> None:
    """So that a format which loses it is noticed. Where a call may begin in several ways, plain text could hide one."""
    kept = set()
    for name in JSON_FORMATS:
        front = await model(make_front, SPECS[name], "words", marked=marked)
        if (await front.chat("go", tools=STRICT)).status == 200:
            kept.add(name)
    assert kept == set(JSON_FORMATS) - refused


async def test_functions_that_are_not_strict_are_called_as_the_model_likes(make_front: Make) -> None:
    spec = SPECS["hermes"]
    assert spec.call_format is not None
    front = await model(make_front, spec, spec.call_format.spell(BAD), marked=False)
    assert named(await both(front, tools=[TOOLS[0], STRICT[1]])) == BAD


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("name", TAGGED)
async def test_reasoning(make_front: Make, name: str, marked: bool) -> None:
    spec = SPECS[name]
    assert spec.tags is not None
    start, end = spec.tags
    front = await model(make_front, spec, f"{start}hm hm{end}yes", marked=marked)
    found = await both(front)
    assert (found.reasoning, found.text) == ("hm hm", "yes")
    short = await both(front, thinking_token_budget=2, temperature=0)
    assert short.reasoning == "hm"
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [11, 12]}}}
    held = await both(front, response_format=schema)
    assert held.reasoning == "hm hm"
    assert held.text in ("11", "12")


@pytest.mark.parametrize("marked", [False, True])
async def test_channels(make_front: Make, marked: bool) -> None:
    text = (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.weather "
        '<|constrain|>json<|message|>{"city": "Rome"}<|call|>'
    )
    found = await both(await model(make_front, SPECS["gpt_oss"], text, marked=marked), tools=TOOLS)
    assert (found.reasoning, named(found), found.finish) == ("hm", CALLS[:1], "tool_calls")
