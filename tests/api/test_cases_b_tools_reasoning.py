"""Topic b of the case list: tools and reasoning. (Structured output has a file of its own.)"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tickertape.testing import templates
from tickertape.testing.front import Front, spoken
from tickertape.testing.openai_stream import Told, told

Make = Callable[..., Awaitable[Front]]

ROOMY = {"max_model_len": 1024, "num_blocks": 129}
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "the sea"}}\n</tool_call>'


def tool(name: str = "look", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


AT = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"], "additionalProperties": False}
LOOK = tool(parameters=AT)


async def model(make_front: Make, text: str) -> Front:
    return await make_front(
        {"when": spoken("go"), "tokens": spoken(text)}, template=templates.THINKS_AND_CALLS, **ROOMY
    )


async def each(front: Front, **fields: Any) -> list[Told]:
    """The answer of both modes."""
    return [told(await front.chat("go", stream=stream, **fields))[0] for stream in (True, False)]


@pytest.mark.parametrize(
    "function",
    [
        {},
        {"parameters": None},
        {"parameters": {}},
        {"parameters": {"type": "object"}},
        {"parameters": {"type": "object", "properties": {}}},
        {"parameters": {"properties": {}, "required": []}},
        {"parameters": {"type": "object", "properties": {}, "additionalProperties": False}},
    ],
)
async def test_case_030_functions_without_arguments(make_front: Make, function: dict[str, Any]) -> None:
    forced = await model(make_front, "no")
    willing = await model(make_front, '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>')
    for found in (
        *await each(forced, tools=[tool(**function)], tool_choice="required", parallel_tool_calls=False),
        *await each(willing, tools=[tool(**function)]),
        *await each(willing, tools=[tool(strict=True, **function)]),
    ):
        assert [(call["name"], call["arguments"]) for call in found.calls] == [("look", "{}")]
        assert found.finish == "tool_calls"


async def test_case_030_a_property_that_is_not_anything(make_front: Make) -> None:
    front = await model(make_front, CALL)
    odd = tool(parameters={"type": "object", "properties": {"at": {"not": {}}}})
    for found in await each(front, tools=[odd]):  # nothing is held to the schema
        assert found.finish == "tool_calls"
    for stream in (False, True):
        answer = await front.chat("go", tools=[odd], tool_choice="required", stream=stream)
        error = answer.json()["error"]
        assert (answer.status, error["param"]) == (400, "tools[0].function.parameters")
        assert "'not'" in error["message"]


async def test_numbers_that_no_schema_can_hold(make_front: Make) -> None:
    front = await model(make_front, CALL)
    huge = {"type": "object", "properties": {"at": {"type": "integer", "maximum": 10**400}}}
    for fields in (
        {"tools": [tool(parameters=huge)], "tool_choice": "required"},
        {"tools": [tool(parameters=huge, strict=True)]},
    ):
        answer = await front.chat("go", **fields)
        assert (answer.status, answer.json()["error"]["param"]) == (400, "tools[0].function.parameters")


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "function": {"name": "look"}},
        {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "look"}}]},
        },
    ],
)
async def test_a_structure_beside_a_required_call_is_refused(make_front: Make, choice: Any) -> None:
    front = await model(make_front, CALL)
    for param, fields in (
        ("guided_regex", {"guided_regex": "a+"}),
        ("guided_choice", {"guided_choice": ["a"]}),
        ("response_format", {"response_format": {"type": "json_object"}}),
        ("structured_outputs.json", {"structured_outputs": {"json": AT}}),
    ):
        for stream in (False, True):
            answer = await front.chat("go", tools=[LOOK], tool_choice=choice, stream=stream, **fields)
            error = answer.json()["error"]
            assert (answer.status, error["param"], error["code"]) == (400, param, "unsupported_value")


async def test_case_034_the_id_is_there_and_taken_back(make_front: Make) -> None:
    front = await model(make_front, "no")
    fields = {"tools": [LOOK], "tool_choice": {"type": "function", "function": {"name": "look"}}}
    for stream in (True, False):
        answer = await front.chat("go", stream=stream, parallel_tool_calls=False, max_tokens=200, **fields)
        [call] = told(answer)[0].calls
        assert call["id"].startswith("call_")
        function = {"name": call["name"], "arguments": call["arguments"]}
        made = {"id": call["id"], "type": "function", "function": function}
        messages = [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "tool_calls": [made]},
            {"role": "tool", "tool_call_id": call["id"], "content": "blue"},
        ]
        assert (await front.chat(messages, tools=[LOOK])).status == 200


@pytest.mark.parametrize("max_tokens", [1, 16, 25, 30, 45])
async def test_case_035_a_call_that_is_cut(make_front: Make, max_tokens: int) -> None:
    front = await model(make_front, "no")
    fields = {"tools": [LOOK], "tool_choice": "required", "seed": 1, "max_tokens": max_tokens}
    streamed, whole = await each(front, **fields)
    assert streamed.finish == whole.finish == "length"
    shown = [[(call["name"], call["arguments"]) for call in found.calls] for found in (streamed, whole)]
    assert shown[0] == shown[1]
    assert streamed.text == whole.text == "", "the beginning of a call is not content"
    message = (await front.chat("go", **fields)).json()["choices"][0]["message"]
    assert message["content"] is None
    full = await front.chat("go", return_token_ids=True, **{**fields, "max_tokens": 400})
    text = front.tokenizer.decode(full.json()["choices"][0]["token_ids"], skip_special_tokens=True)
    for _, arguments in shown[0]:  # as written, never mended
        assert arguments in text


async def test_case_036_one_call_at_most(make_front: Make) -> None:
    front = await model(make_front, f"{CALL}\n{CALL}\nand so on and on and on")
    for found in await each(front, tools=[LOOK]):
        assert len(found.calls) == 2
    front.batches.clear()
    for found in await each(front, tools=[LOOK], parallel_tool_calls=False):
        assert [call["arguments"] for call in found.calls] == ['{"at": "the sea"}']
        assert (found.text, found.finish) == ("", "tool_calls")
    answer = await front.chat("go", tools=[LOOK], parallel_tool_calls=False)
    # What was not to be shown was not generated either.
    assert answer.json()["usage"]["completion_tokens"] <= len(f"{CALL}\n{CALL}")
    for found in await each(
        await model(make_front, "no"), tools=[tool()], tool_choice="required", parallel_tool_calls=False
    ):
        assert len(found.calls) == 1


async def test_case_038_a_delta_has_reasoning_or_content(make_front: Make) -> None:
    first = await model(make_front, "")
    merged = [*spoken("<think>"), *first.tokenizer.encode("hm</think>Hello", add_special_tokens=False)]
    front = await make_front({"when": spoken("go"), "tokens": merged}, template=templates.THINKS_AND_CALLS)
    chunks = (await front.chat("go", stream=True)).chunks
    for chunk in chunks[1:]:
        delta = chunk["choices"][0]["delta"]
        assert set(delta) in ({"reasoning", "reasoning_content"}, {"content"}, set())
    for found in await each(front):
        assert (found.reasoning, found.text) == ("hm", "Hello")


async def test_case_039_stop_strings_do_not_cut_the_reasoning(make_front: Make) -> None:
    front = await model(make_front, "<think>first STOP second</think>final")
    for found in await each(front, stop=["STOP"]):
        assert (found.reasoning, found.text) == ("first STOP second", "final")
        assert (found.finish, found.stop_reason) == ("stop", None)
    cut = await model(make_front, "<think>first STOP second</think>final STOP more")
    for found in await each(cut, stop=["STOP"]):
        assert (found.text, found.finish, found.stop_reason) == ("final ", "stop", "STOP")


async def test_case_039_stop_strings_do_not_cut_the_arguments(make_front: Make) -> None:
    front = await model(make_front, f"I see.{CALL}")
    for found in await each(front, stop=["the sea"], tools=[LOOK]):
        assert [json.loads(call["arguments"]) for call in found.calls] == [{"at": "the sea"}]
    for found in await each(front, stop=["see.</never>", "ee"], tools=[LOOK]):
        assert (found.text, found.calls, found.finish, found.stop_reason) == ("I s", [], "stop", "ee")


async def test_case_042_a_stop_string_is_in_neither(make_front: Make) -> None:
    front = await model(make_front, "<think>so</think>one END two")
    for found in await each(front, stop=["END"]):
        assert (found.reasoning, found.text, found.stop_reason) == ("so", "one ", "END")
    # What is held for a stop string that does not come true is shown, in front of what comes next.
    held = await model(make_front, f"one EN{CALL}")
    for found in await each(held, stop=["END"], tools=[LOOK]):
        assert (found.text, len(found.calls), found.finish) == ("one EN", 1, "tool_calls")
    for found in await each(front, stop=["END"], include_stop_str_in_output=True):
        assert found.text == "one END"
