"""The OpenAPI document says what the server does."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import jsonschema
import pytest
from starlette.routing import Route

from tickertape.api.app import build_app
from tickertape.api.error_table import TABLE
from tickertape.api.openai.requests import ChatRequest, CompletionRequest
from tickertape.api.openapi import document
from tickertape.testing.front import Front

Make = Callable[..., Awaitable[Front]]

DOCUMENT = document("1", ["scripted"])


def answer_schema(path: str, status: int) -> dict[str, Any]:
    """With the components at hand."""
    operation = next(iter(DOCUMENT["paths"][path].values()))
    schema: dict[str, Any] = operation["responses"][str(status)]["content"]["application/json"]["schema"]
    return {**schema, "components": DOCUMENT["components"]}


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(target := value.get("$ref"), str):
            yield target
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


async def test_it_is_served_and_names_the_models(make_front: Make) -> None:
    front = await make_front()
    answer = await front.client.get("/openapi.json")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    served = answer.json()
    assert served["openapi"] == "3.1.0"
    assert served["components"]["schemas"]["ChatRequest"]["properties"]["model"]["enum"] == ["scripted"]


async def test_every_route_is_described_and_no_other(make_front: Make) -> None:
    front = await make_front()
    edge: Any = build_app(front.service, front.models, front.readiness, front.metrics)
    routes = {
        (re.sub(r"\{\w+(:\w+)?\}", "{}", route.path), method.lower())
        for route in edge._app.routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    described = {
        (re.sub(r"\{\w+\}", "{}", path), method) for path, methods in DOCUMENT["paths"].items() for method in methods
    }
    assert described == routes


def test_every_reference_leads_somewhere() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    targets = set(references(DOCUMENT))
    assert targets
    for target in targets:
        assert target.removeprefix("#/components/schemas/") in schemas


@pytest.mark.parametrize("model", [ChatRequest, CompletionRequest])
def test_every_field_is_there(model: type[ChatRequest | CompletionRequest]) -> None:
    assert set(DOCUMENT["components"]["schemas"][model.__name__]["properties"]) == set(model.model_fields)


def test_every_status_of_the_error_table_is_there() -> None:
    statuses = set(DOCUMENT["paths"]["/v1/chat/completions"]["post"]["responses"])
    assert statuses == {"200"} | {str(line.status) for line in TABLE.values()}


async def test_answers_are_as_described(make_front: Make) -> None:
    front = await make_front()
    chat = await front.chat(max_tokens=4, logprobs=True, top_logprobs=2, n=2, return_token_ids=True)
    jsonschema.validate(chat.json(), answer_schema("/v1/chat/completions", 200))
    completion = await front.complete(max_tokens=4, logprobs=1, echo=True, prompt_logprobs=1)
    jsonschema.validate(completion.json(), answer_schema("/v1/completions", 200))
    jsonschema.validate((await front.chat(n=0)).json(), answer_schema("/v1/chat/completions", 400))
    for path in ("/v1/models", "/v1/plugins"):
        jsonschema.validate((await front.client.get(path)).json(), answer_schema(path, 200))
    broken = {**chat.json(), "choices": None}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, answer_schema("/v1/chat/completions", 200))


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [
        ({}, True),
        ({"stop": "a"}, True),
        ({"stop": ["a"], "temperature": 2}, True),
        ({"temperature": 3}, False),
        ({"top_p": 0}, False),
        ({"nonsense": 1}, False),
        ({"messages": []}, False),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, False),
        ({"messages": [{"role": "nobody", "content": "a"}]}, False),
        ({"model": "other"}, False),
        ({"service_tier": "flex"}, False),
        ({"service_tier": "auto"}, True),
    ],
)
async def test_bodies_are_as_described(make_front: Make, fields: dict[str, Any], allowed: bool) -> None:
    front = await make_front()
    body = {"model": "scripted", "messages": [{"role": "user", "content": "plain"}], **fields}
    schema = {"$ref": "#/components/schemas/ChatRequest", "components": DOCUMENT["components"]}
    assert jsonschema.Draft202012Validator(schema).is_valid(body) is allowed
    answer = await front.client.post("/v1/chat/completions", json.loads(json.dumps(body)), headers=front.headers)
    assert (answer.status == 200) is allowed
