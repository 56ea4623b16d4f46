"""The openai SDK for Python. More of it, against the app alone, in tests/api/test_openai_sdk.py."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from asked import GREETING, MODEL, WEATHER, Endpoint

openai = pytest.importorskip("openai", reason="openai is not installed")
pydantic = pytest.importorskip("pydantic")


class Person(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    name: str
    age: int


def client(endpoint: Endpoint, **options: Any) -> Any:
    return openai.OpenAI(
        base_url=endpoint.base_url, api_key=endpoint.key, **{"max_retries": 0, "timeout": 20, **options}
    )


def said(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def test_whole_and_streamed(server: Endpoint) -> None:
    with client(server) as opened:
        whole = opened.chat.completions.create(model=MODEL, messages=said("greet"))
        assert whole.choices[0].message.content == GREETING
        chunks = list(
            opened.chat.completions.create(
                model=MODEL, messages=said("greet"), stream=True, stream_options={"include_usage": True}
            )
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == GREETING
        assert chunks[-1].usage == whole.usage
        assert opened.completions.create(model=MODEL, prompt="greet", max_tokens=50).choices[0].text == GREETING
        assert [model.id for model in opened.models.list()] == [MODEL]


async def _streamed(endpoint: Endpoint) -> str:
    async with openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.key) as opened:
        stream = await opened.chat.completions.create(model=MODEL, messages=said("greet"), stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


def test_async(server: Endpoint) -> None:
    assert asyncio.run(_streamed(server)) == GREETING


def test_tools(server: Endpoint) -> None:
    with client(server) as opened:
        whole = opened.chat.completions.create(model=MODEL, messages=said("weather"), tools=[WEATHER])
        assert whole.choices[0].finish_reason == "tool_calls"
        call = whole.choices[0].message.tool_calls[0]
        assert (call.function.name, call.function.arguments) == ("get_weather", '{"city": "Paris"}')
        with opened.chat.completions.stream(model=MODEL, messages=said("weather"), tools=[WEATHER]) as stream:
            streamed = stream.get_final_completion().choices[0]
        assert streamed.message.tool_calls[0].function.arguments == call.function.arguments
        history = [
            *said("weather"),
            whole.choices[0].message,
            {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
        ]
        answer = opened.chat.completions.create(model=MODEL, messages=history, tools=[WEATHER])
        assert answer.choices[0].message.content == "It is sunny in Paris."


def test_structured_output(server: Endpoint) -> None:
    with client(server) as opened:
        parsed = opened.chat.completions.parse(model=MODEL, messages=said("person"), response_format=Person)
        assert parsed.choices[0].message.parsed == Person(name="Ada", age=36)


def test_it_tries_again_after_a_429(busy: Endpoint, crowd: Callable[[], Any], refusals: Callable[[], int]) -> None:
    with client(busy) as opened, crowd(), pytest.raises(openai.RateLimitError) as refused:
        opened.chat.completions.create(model=MODEL, messages=said("greet"))
    assert refused.value.code == "queue_full"
    before = refusals()
    for stream in (False, True):
        with client(busy, max_retries=5) as opened, crowd():
            answer = opened.chat.completions.create(model=MODEL, messages=said("greet"), stream=stream)
            text = (
                "".join(chunk.choices[0].delta.content or "" for chunk in answer)
                if stream
                else answer.choices[0].message.content
            )
        assert text == GREETING
    assert refusals() >= before + 2


def test_timeouts(server: Endpoint) -> None:
    with client(server, timeout=0.5) as opened:
        begun = time.monotonic()
        with pytest.raises(openai.APITimeoutError):
            opened.chat.completions.create(model=MODEL, messages=said("slow"))
        assert time.monotonic() - begun < 5


def test_errors_have_their_classes(server: Endpoint) -> None:
    with client(server) as opened:
        with pytest.raises(openai.NotFoundError):
            opened.chat.completions.create(model="other", messages=said("greet"))
        with pytest.raises(openai.BadRequestError) as bad:
            opened.chat.completions.create(model=MODEL, messages=said("greet"), temperature=9)
        assert bad.value.param == "temperature"
        with pytest.raises(openai.AuthenticationError):
            client(Endpoint(server.url, "wrong")).models.list()
