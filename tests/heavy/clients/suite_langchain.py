"""LangChain's ChatOpenAI."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from asked import GREETING, MODEL, WEATHER, Endpoint

chat_models = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
messages = pytest.importorskip("langchain_core.messages")
openai = pytest.importorskip("openai")

PERSON = {
    "title": "Person",
    "description": "Somebody",
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
ADA = {"name": "Ada", "age": 36}


def model(endpoint: Endpoint, **options: Any) -> Any:
    given = {"model": MODEL, "base_url": endpoint.base_url, "api_key": endpoint.key, "max_retries": 0, "timeout": 20}
    return chat_models.ChatOpenAI(**{**given, **options})


def test_whole_and_streamed(server: Endpoint) -> None:
    chat = model(server, temperature=0)
    answer = chat.invoke("greet")
    assert answer.content == GREETING
    assert answer.usage_metadata["output_tokens"] > 0
    assert "".join(chunk.content for chunk in chat.stream("greet")) == GREETING
    assert asyncio.run(chat.ainvoke("greet")).content == GREETING


def test_tools(server: Endpoint) -> None:
    chat = model(server).bind_tools([WEATHER])
    asked = messages.HumanMessage("weather")
    answer = chat.invoke([asked])
    assert [(call["name"], call["args"]) for call in answer.tool_calls] == [("get_weather", {"city": "Paris"})]
    gathered: Any = None
    for chunk in chat.stream([asked]):
        gathered = chunk if gathered is None else gathered + chunk
    assert [call["args"] for call in gathered.tool_calls] == [{"city": "Paris"}]
    result = messages.ToolMessage("sunny", tool_call_id=answer.tool_calls[0]["id"])
    assert chat.invoke([asked, answer, result]).content == "It is sunny in Paris."


@pytest.mark.parametrize(
    ("method", "prompt"), [("json_schema", "person"), ("json_mode", "person"), ("function_calling", "record")]
)
def test_structured_output(server: Endpoint, method: str, prompt: str) -> None:
    structured = model(server).with_structured_output(PERSON, method=method)
    assert structured.invoke(prompt) == ADA
    assert list(structured.stream(prompt))[-1] == ADA


def test_it_tries_again_after_a_429(busy: Endpoint, crowd: Callable[[], Any], refusals: Callable[[], int]) -> None:
    before = refusals()
    with crowd():
        assert model(busy, max_retries=5).invoke("greet").content == GREETING
    with crowd():
        assert "".join(chunk.content for chunk in model(busy, max_retries=5).stream("greet")) == GREETING
    assert refusals() >= before + 2


def test_timeouts(server: Endpoint) -> None:
    with pytest.raises(openai.APITimeoutError):
        model(server, timeout=0.5).invoke("slow")
