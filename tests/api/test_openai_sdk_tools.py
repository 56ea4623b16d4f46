"""The openai SDK, unchanged, with tools and reasoning, against uvicorn on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import openai
import pydantic
import pytest
from openai import AsyncOpenAI, OpenAI

from tickertape.testing import templates
from tickertape.testing.front import Front, spoken
from tickertape.testing.loopback import served

Make = Callable[..., Awaitable[Front]]

CALL = '<think>\nhm\n</think>\n\nI look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
ASK: Any = {"model": "scripted", "messages": [{"role": "user", "content": "go"}]}


class Weather(pydantic.BaseModel):
    """Tells the weather."""

    city: str


TOOL = openai.pydantic_function_tool(Weather, name="weather")


@pytest.fixture
async def made(make_front: Make) -> Front:
    return await make_front(
        {"when": spoken("rain"), "tokens": spoken("It rains.")},
        {"when": spoken("go"), "tokens": spoken(CALL)},
        template=templates.THINKS_AND_CALLS,
        max_model_len=2048,
        num_blocks=257,
    )


@pytest.fixture
async def base_url(made: Front) -> AsyncIterator[str]:
    async with served(made.app) as port:
        yield f"http://127.0.0.1:{port}/v1"


@pytest.fixture
async def client(base_url: str) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=10) as opened:
        yield opened


LOOSE: Any = [{"type": "function", "function": {**TOOL["function"], "strict": False}}]


async def test_a_whole_round_trip(client: AsyncOpenAI) -> None:
    chat = await client.chat.completions.create(**ASK, tools=LOOSE)
    [choice] = chat.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    [call] = choice.message.tool_calls
    assert call.type == "function"
    assert json.loads(call.function.arguments) == {"city": "Rome"}
    assert choice.message.model_dump()["reasoning"] == "hm"
    assert chat.usage is not None
    assert chat.usage.completion_tokens_details is not None
    assert chat.usage.completion_tokens_details.reasoning_tokens == len("<think>\nhm")
    messages = [*ASK["messages"], choice.message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    again = await client.chat.completions.create(model="scripted", messages=messages, tools=LOOSE)
    assert again.choices[0].message.content == "It rains."


@pytest.mark.parametrize("n", [1, 2])
async def test_streamed(client: AsyncOpenAI, n: int) -> None:
    stream = await client.chat.completions.create(**ASK, tools=LOOSE, stream=True, n=n)
    arguments: dict[tuple[int, int], str] = {}
    ids = set()
    async for chunk in stream:
        for choice in chunk.choices:
            for call in choice.delta.tool_calls or ():
                assert call.function is not None
                key = (choice.index, call.index)
                arguments[key] = arguments.get(key, "") + (call.function.arguments or "")
                if call.id:
                    ids.add(call.id)
    assert arguments == {(index, 0): '{"city": "Rome"}' for index in range(n)}
    assert len(ids) == n


async def test_the_stream_helper(client: AsyncOpenAI) -> None:
    kinds = set()
    async with client.chat.completions.stream(**ASK, tools=[TOOL]) as stream:
        async for event in stream:
            kinds.add(event.type)
        final = await stream.get_final_completion()
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    assert final.choices[0].finish_reason == "tool_calls"
    [call] = list(final.choices[0].message.tool_calls or [])
    assert isinstance(call.function.parsed_arguments, Weather)


async def test_the_parse_helper(client: AsyncOpenAI) -> None:
    parsed = await client.chat.completions.parse(**ASK, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    [call] = list(parsed.choices[0].message.tool_calls or [])
    assert isinstance(call.function.parsed_arguments, Weather)
    answer = await client.chat.completions.parse(**ASK, response_format=Weather)
    assert isinstance(answer.choices[0].message.parsed, Weather)


async def test_sync(base_url: str) -> None:
    def work() -> None:
        with OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=10) as client:
            named: Any = {"type": "function", "function": {"name": "weather"}}
            chat = client.chat.completions.create(**ASK, tools=[TOOL], tool_choice=named, parallel_tool_calls=False)
            [call] = list(chat.choices[0].message.tool_calls or [])
            assert call.type == "function"
            Weather.model_validate_json(call.function.arguments)
            with client.chat.completions.stream(**ASK, tools=[TOOL]) as stream:
                final = stream.get_final_completion()
            assert final.choices[0].message.tool_calls
            with pytest.raises(openai.BadRequestError) as bad:
                client.chat.completions.create(**ASK, tool_choice=named)
            assert bad.value.param == "tool_choice.function.name"

    await asyncio.to_thread(work)
