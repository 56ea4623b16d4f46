"""LiteLLM, as a client of an OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from typing import Any

import pytest
from asked import GREETING, MODEL, WEATHER, Endpoint

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it asks the network when it is imported
litellm = pytest.importorskip("litellm", reason="litellm is not installed")

SCHEMA = {
    "name": "person",
    "strict": True,
    "schema": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
}


def arguments(endpoint: Endpoint, prompt: str, **options: Any) -> dict[str, Any]:
    given = {"model": f"openai/{MODEL}", "api_base": endpoint.base_url, "api_key": endpoint.key, "timeout": 20}
    return {**given, "messages": [{"role": "user", "content": prompt}], "max_retries": 0, **options}


def test_whole_and_streamed(server: Endpoint) -> None:
    whole = litellm.completion(**arguments(server, "greet"))
    assert whole.choices[0].message.content == GREETING
    chunks = litellm.completion(**arguments(server, "greet", stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == GREETING
    assert asyncio.run(litellm.acompletion(**arguments(server, "greet"))).choices[0].message.content == GREETING
    text = litellm.text_completion(
        model=f"text-completion-openai/{MODEL}",
        api_base=server.base_url,
        api_key=server.key,
        prompt="greet",
        max_tokens=50,
    )
    assert text.choices[0].text == GREETING


def test_tools(server: Endpoint) -> None:
    whole = litellm.completion(**arguments(server, "weather", tools=[WEATHER]))
    assert json.loads(whole.choices[0].message.tool_calls[0].function.arguments) == {"city": "Paris"}
    chunks = list(litellm.completion(**arguments(server, "weather", tools=[WEATHER], stream=True)))
    rebuilt = litellm.stream_chunk_builder(chunks)
    assert rebuilt.choices[0].finish_reason == "tool_calls"
    assert json.loads(rebuilt.choices[0].message.tool_calls[0].function.arguments) == {"city": "Paris"}


def test_structured_output(server: Endpoint) -> None:
    asked = {"type": "json_schema", "json_schema": SCHEMA}
    answer = litellm.completion(**arguments(server, "person", response_format=asked))
    assert json.loads(answer.choices[0].message.content) == {"name": "Ada", "age": 36}


def test_it_tries_again_after_a_429(busy: Endpoint, crowd: Callable[[], Any], refusals: Callable[[], int]) -> None:
    with crowd(), pytest.raises(litellm.RateLimitError):
        litellm.completion(**arguments(busy, "greet"))
    before = refusals()
    with crowd():
        answer = litellm.completion(**arguments(busy, "greet", max_retries=5))
    assert answer.choices[0].message.content == GREETING
    assert refusals() > before


def test_timeouts(server: Endpoint) -> None:
    with pytest.raises(litellm.Timeout):
        litellm.completion(**arguments(server, "slow", timeout=0.5))
