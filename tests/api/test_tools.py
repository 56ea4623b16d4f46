"""Tools on the chat route: what the model is shown, what its answer is read as, what it is held to."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import jsonschema
import msgspec
import pytest

from tickertape.core.request import Request, TokenDelta
from tickertape.testing import templates
from tickertape.testing.asgi import Answer
from tickertape.testing.front import Front, spoken
from tickertape.testing.openai_stream import Told, told

Make = Callable[..., Awaitable[Front]]

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


def tool(name: str = "weather", parameters: Any = SCHEMA, **fields: Any) -> dict[str, Any]:
    given = {} if parameters is None else {"parameters": parameters}
    return {"type": "function", "function": {"name": name, **given, **fields}}


ROOMY = {"max_model_len": 1024, "num_blocks": 129}
WEATHER = tool(description="tells")
OTHER = tool("now", None)
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "days": 3}}\n</tool_call>'
ARGUMENTS = '{"city": "Rome", "days": 3}'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


async def model(make_front: Make, text: str, **settings: Any) -> Front:
    """A model that says one thing when it is asked to go."""
    return await make_front(
        {"when": spoken("go"), "tokens": spoken(text)}, **{**ROOMY, "template": templates.THINKS_AND_CALLS, **settings}
    )


async def both(front: Front, content: Any = "go", **fields: Any) -> Told:
    """The answer, streamed and not: they must be the same."""
    streamed, whole = [told(await front.chat(content, stream=stream, **fields))[0] for stream in (True, False)]
    for call in (*streamed.calls, *whole.calls):
        assert call.pop("id").startswith("call_")
    assert vars(streamed) == {**vars(whole), "pieces": streamed.pieces}
    return whole


async def refused(front: Front, param: str, code: str = "invalid_value", **fields: Any) -> str:
    messages = set()
    for stream in (False, True):
        answer = await front.chat("go", stream=stream, **fields)
        error = answer.json()["error"]
        assert (answer.status, error["param"], error["code"]) == (400, param, code), error
        messages.add(error["message"])
    [message] = messages
    return str(message)


def prompt_of(front: Front, answer: Answer) -> str:
    return front.tokenizer.decode(answer.json()["prompt_token_ids"], skip_special_tokens=False)


async def test_calls_are_told_from_the_text(make_front: Make) -> None:
    front = await model(make_front, f"I look.\n{CALL}\n{NOW}")
    found = await both(front, tools=[WEATHER, OTHER])
    assert found.text == "I look."
    assert found.calls == [{"name": "weather", "arguments": ARGUMENTS}, {"name": "now", "arguments": "{}"}]
    assert (found.finish, found.stop_reason) == ("tool_calls", None)


async def test_calls_alone_have_no_content(make_front: Make) -> None:
    front = await model(make_front, CALL)
    message = (await front.chat("go", tools=[WEATHER])).json()["choices"][0]["message"]
    assert list(message) == ["role", "content", "refusal", "tool_calls"]
    assert message["content"] is None
    assert list(message["tool_calls"][0]) == ["id", "type", "function"]


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "weather", "arguments": \n</tool_call>',
        "<tool_call>",
        "<tool_call>what?</tool_call> and more",
        '{"name": "weather"}',
    ],
)
async def test_what_is_no_call_is_content(make_front: Make, text: str) -> None:
    front = await model(make_front, text)
    found = await both(front, tools=[WEATHER])
    assert (found.text, found.calls, found.finish) == (text, [], "stop")


async def test_without_tools_nothing_is_a_call(make_front: Make) -> None:
    front = await model(make_front, CALL)
    unasked = {"tools": [WEATHER], "tool_choice": "none"}
    asked: list[dict[str, Any]] = [{}, {"tools": []}, unasked, {"tool_choice": "auto"}]
    for fields in asked:
        found = await both(front, **fields)
        assert (found.text, found.calls, found.finish) == (CALL, [], "stop")


async def test_the_model_is_shown_its_tools(make_front: Make) -> None:
    front = await model(make_front, "ok")
    shown = prompt_of(front, await front.chat("go", tools=[WEATHER, OTHER], return_token_ids=True))
    first, second = shown.split("\n")[4:6]
    assert json.loads(first) == WEATHER
    assert json.loads(second) == OTHER
    hidden = await front.chat("go", tools=[WEATHER], tool_choice="none", return_token_ids=True)
    assert "weather" not in prompt_of(front, hidden)


async def test_a_template_without_tools_is_told_of_them(make_front: Make) -> None:
    text = f'[{{"name": "weather", "arguments": {ARGUMENTS}}}]'
    front = await model(make_front, text, template=templates.CHATML)
    found = await both(front, tools=[WEATHER])
    assert found.calls == [{"name": "weather", "arguments": ARGUMENTS}]
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [made_call("weather", ARGUMENTS)]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
        {"role": "user", "content": "go"},
    ]
    answer = await front.chat(messages, tools=[WEATHER], return_token_ids=True)
    system, user, assistant, result, *_ = prompt_of(front, answer).split("<|im_start|>")[1:]
    assert json.loads(system.split("\n")[2]) == WEATHER["function"]
    assert system.endswith("Be brief.<|im_end|>\n")
    assert user == "user\nWeather?<|im_end|>\n"
    assert assistant == f"assistant\n{text}<|im_end|>\n"
    assert result == "tool\nrain<|im_end|>\n"


def made_call(name: str, arguments: str, id: str = "call_1") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
@pytest.mark.parametrize("template", [templates.THINKS_AND_CALLS, templates.CHATML])
async def test_forced_calls_satisfy_their_schemas(make_front: Make, choice: Any, template: str) -> None:
    front = await model(make_front, "I would rather talk.", template=template)
    names = set()
    for seed in range(6):
        found = await both(front, tools=[WEATHER, OTHER], tool_choice=choice, seed=seed, parallel_tool_calls=False)
        assert (found.text, found.finish, len(found.calls)) == ("", "tool_calls", 1)
        [call] = found.calls
        names.add(call["name"])
        jsonschema.validate(
            json.loads(call["arguments"]), SCHEMA if call["name"] == "weather" else {"maxProperties": 0}
        )
    assert names <= {"weather", "now"}
    if choice != "required":
        assert names == {"weather"}


async def test_forced_calls_in_a_format_without_json(make_front: Make) -> None:
    front = await model(make_front, "talk", tool_parser="qwen_xml")
    found = await both(front, tools=[OTHER], tool_choice="required", parallel_tool_calls=False)
    assert found.calls == [{"name": "now", "arguments": "{}"}]


async def test_allowed_tools(make_front: Make) -> None:
    front = await model(make_front, f"{CALL}{NOW}")
    names = [{"type": "function", "function": {"name": "now"}}]
    auto = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": names}}
    found = await both(front, tools=[WEATHER, OTHER], tool_choice=auto)
    assert (found.text, found.calls) == (CALL, [{"name": "now", "arguments": "{}"}])
    required = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": names}}
    found = await both(front, tools=[WEATHER, OTHER], tool_choice=required, parallel_tool_calls=False)
    assert (found.text, found.calls) == ("", [{"name": "now", "arguments": "{}"}])


BAD = '{"city": "Atlantis", "days": 0}'


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        ("hermes", '<tool_call>\n{"name": "weather", "arguments": %s}\n</tool_call>'),
        ("mistral", '[TOOL_CALLS][{"name": "weather", "arguments": %s}]'),
        ("json", '[{"name": "weather", "arguments": %s}]'),
    ],
)
async def test_strict_functions_are_called_right_or_not_at_all(make_front: Make, parser: str, text: str) -> None:
    front = await model(make_front, text % BAD, tool_parser=parser)
    loose = await both(front, tools=[WEATHER])
    assert loose.calls == [{"name": "weather", "arguments": BAD}]
    strict = await both(front, tools=[tool(strict=True)], max_tokens=120)
    [call] = strict.calls
    jsonschema.validate(json.loads(call["arguments"]), SCHEMA)
    talk = await make_front(
        {"when": spoken("go"), "tokens": spoken("just words")}, template=templates.THINKS_AND_CALLS, tool_parser=parser
    )
    assert (await both(talk, tools=[tool(strict=True)])).text == "just words"


@pytest.mark.parametrize("parser", ["qwen_xml", "pythonic", "gpt_oss"])
async def test_strict_is_refused_where_it_cannot_be_kept(make_front: Make, parser: str) -> None:
    reasoning = "gpt_oss" if parser == "gpt_oss" else "none"
    front = await model(make_front, "x", tool_parser=parser, reasoning_parser=reasoning)
    assert parser in await refused(front, "tools", "unsupported_value", tools=[tool(strict=True)])
    assert (await front.chat("go", tools=[WEATHER])).status == 200


async def test_a_schema_beside_tools_holds_what_is_no_call(make_front: Make) -> None:
    answer = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    format = {"type": "json_schema", "json_schema": {"name": "n", "schema": answer}}
    front = await model(make_front, '{"a": 5}')
    assert json.loads((await both(front, tools=[WEATHER], response_format=format)).text) == {"a": 5}
    # What is forced is forced in the tokenizer's own cut of it.
    tokens = front.tokenizer.encode(CALL, add_special_tokens=False)
    calling = await make_front({"when": spoken("go"), "tokens": tokens}, template=templates.THINKS_AND_CALLS, **ROOMY)
    found = await both(calling, tools=[WEATHER], response_format=format)
    assert found.calls == [{"name": "weather", "arguments": ARGUMENTS}]
    await refused(front, "guided_regex", "unsupported_value", tools=[WEATHER], guided_regex="a+")


async def test_n_choices_call_each_for_itself(make_front: Make) -> None:
    front = await make_front(
        {"when": spoken("go"), "alternatives": [spoken(CALL), spoken("words"), spoken(NOW)]},
        template=templates.THINKS_AND_CALLS,
    )
    for stream in (True, False):
        choices = told(await front.chat("go", n=3, seed=0, tools=[WEATHER, OTHER], stream=stream))
        assert [[call["name"] for call in choices[n].calls] for n in range(3)] == [["weather"], [], ["now"]]
        assert [choices[n].finish for n in range(3)] == ["tool_calls", "stop", "tool_calls"]
        assert choices[1].text == "words"
        ids = [call["id"] for choice in choices.values() for call in choice.calls]
        assert len(set(ids)) == len(ids)


async def test_every_token_has_its_log_probability(make_front: Make) -> None:
    front = await model(make_front, f"<think>hm</think>I look.{CALL}")
    for stream in (True, False):
        fields = {"logprobs": True, "return_token_ids": True, "tools": [WEATHER]}
        found = told(await front.chat("go", stream=stream, **fields))[0]
        entries = [entry["token"] for part in found.logprobs for entry in part["content"]]
        assert "".join(entries) == f"<think>hm</think>I look.{CALL}"
        assert found.tokens[:-1] == spoken(f"<think>hm</think>I look.{CALL}")


@pytest.mark.parametrize("seed", range(4))
async def test_the_cut_into_tokens_changes_nothing(make_front: Make, seed: int) -> None:
    """Tokens of one byte, of whole words, of both: the parts of an answer are those of its text."""
    text = f'<think>\nhé 😀\n</think>\n\nI look {{"x\n  ": y}}.\n{CALL}\n{NOW}\nbye 👍'
    first = await model(make_front, text)
    expected = await both(first, tools=[WEATHER, OTHER])
    assert [call["name"] for call in expected.calls] == ["weather", "now"]
    draw = random.Random(seed)
    tokens = list(_cut(text, first.tokenizer.encode, draw))
    assert first.tokenizer.decode(tokens, skip_special_tokens=False) == text
    other = await make_front({"when": spoken("go"), "tokens": tokens}, template=templates.THINKS_AND_CALLS, **ROOMY)
    found = await both(other, tools=[WEATHER, OTHER])
    assert {**vars(found), "pieces": []} == {**vars(expected), "pieces": []}


def _cut(text: str, encode: Callable[..., list[int]], draw: random.Random) -> Iterator[int]:
    at = 0
    while at < len(text):
        end = at + draw.randint(1, 8)
        piece = text[at:end]
        yield from encode(piece, add_special_tokens=False) if draw.random() < 0.7 else piece.encode()
        at = end


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type", "unsupported_value"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter"),
        ({"tools": [tool(extra=1)]}, "tools[0].function.extra", "unknown_parameter"),
        ({"tools": [tool("a b")]}, "tools[0].function.name", "invalid_value"),
        ({"tools": [tool("x" * 65)]}, "tools[0].function.name", "invalid_value"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name", "invalid_value"),
        ({"tools": [tool(parameters={"type": "array"})]}, "tools[0].function.parameters", "invalid_value"),
        ({"tools": [tool(f"f{n}") for n in range(129)]}, "tools", "invalid_value"),
        ({"tools": {}}, "tools", "invalid_type"),
        ({"tools": [WEATHER], "tool_choice": "maybe"}, "tool_choice", "unsupported_value"),
        ({"tools": [WEATHER], "tool_choice": {"type": "custom"}}, "tool_choice.type", "unsupported_value"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "no"}}},
            "tool_choice.function.name",
            "invalid_value",
        ),
        ({"parallel_tool_calls": "yes"}, "parallel_tool_calls", "invalid_type"),
        ({"tools": [tool(parameters={"not": {}}, strict=True)]}, "tools[0].function.parameters", "unsupported_value"),
    ],
)  # fmt: skip
async def test_wrong_tools_are_refused_by_name(make_front: Make, fields: Any, param: str, code: str) -> None:
    await refused(await model(make_front, "x"), param, code, **fields)


async def test_an_operator_can_switch_tools_off(make_front: Make) -> None:
    front = await model(make_front, CALL, tool_parser="none")
    await refused(front, "tools", "unsupported_value", tools=[WEATHER])
    assert (await both(front)).text == CALL


async def test_an_engine_of_another_make_gets_one_grammar(make_front: Make) -> None:
    """It knows nothing of parts, and nothing of thinking that comes first."""
    front = await model(make_front, "talk")
    seen: list[Request] = []

    class Recording:
        def __getattr__(self, name: str) -> Any:
            return getattr(front.engine, name)

        def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
            seen.append(request)
            return front.engine.generate(request)

    front.models.replace(msgspec.structs.replace(front.model, own_engine=False, engine=Recording()))
    found = await both(front, tools=[WEATHER, OTHER], tool_choice="required", parallel_tool_calls=False, seed=1)
    assert found.finish == "tool_calls"
    [call] = found.calls
    assert call["name"] in ("weather", "now")
    for request in seen:
        assert request.grammar is not None
        assert (request.grammar.parts, request.grammar.thinking) == ((), None)
        assert '%json {"type": "object"' in request.grammar.source
    opened = {"chat_template_kwargs": {"thinks_at_once": True}}
    await refused(front, "tool_choice", "unsupported_value", tools=[OTHER], tool_choice="required", **opened)
    await refused(front, "guided_regex", "unsupported_value", guided_regex="a", **opened)
    await refused(front, "thinking_token_budget", "unsupported_value", thinking_token_budget=3)
