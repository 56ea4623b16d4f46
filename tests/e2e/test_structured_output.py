"""Structured output through a worker: grammars cross the socket, and a bad one harms nobody."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from tickertape.testing.processes import Server

SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "n": {"enum": [1, 2, 3]}},
    "required": ["ok", "n"],
    "additionalProperties": False,
}


def ask(server: Server, **fields: Any) -> httpx.Response:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Q"}], "max_tokens": 200, **fields}
    return server.client.post("/v1/chat/completions", json=body, timeout=30)


def by_schema(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}


def test_schemas_through_a_worker(serve: Callable[..., Server]) -> None:
    server = serve().until_ready()
    whole = ask(server, response_format=by_schema(SCHEMA))
    choice = whole.json()["choices"][0]
    assert choice["finish_reason"] == "stop", whole.text
    assert json.loads(choice["message"]["content"]).keys() == {"ok", "n"}
    chosen = ask(server, guided_choice=["alpha", "beta"]).json()["choices"][0]["message"]["content"]
    assert chosen in ("alpha", "beta")
    wrong: list[dict[str, Any]] = [{"type": "objekt"}, {"$ref": "#/x"}, {"not": {}}]
    for schema in wrong:
        for stream in (False, True):
            bad = ask(server, response_format=by_schema(schema), stream=stream)
            assert (bad.status_code, bad.json()["error"]["param"]) == (400, "response_format.json_schema.schema")
    assert server.ask("Q").json()["choices"][0]["text"] == "The answer."


def test_many_schemas_at_once_and_none_between(serve: Callable[..., Server]) -> None:
    server = serve().until_ready()
    schemas = [{"type": "array", "items": {"enum": [n, n + 1]}, "minItems": 2, "maxItems": 2} for n in range(32)]
    with ThreadPoolExecutor(33) as pool:
        plain = pool.submit(server.ask, "Q")
        answers = list(pool.map(lambda schema: ask(server, response_format=by_schema(schema)), schemas))
        assert plain.result().json()["choices"][0]["text"] == "The answer."
    for n, answer in enumerate(answers):
        choice = answer.json()["choices"][0]
        assert choice["finish_reason"] == "stop"
        assert set(json.loads(choice["message"]["content"])) <= {n, n + 1}
