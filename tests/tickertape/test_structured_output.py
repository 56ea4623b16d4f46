"""Structured output of real models: whatever a model says under a schema and ends with "stop" satisfies the schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tickertape.plugins.sources.wheel import WheelSource
from tickertape.testing.local_server import LocalServer
from tickertape.testing.models import write_llama
from tickertape.testing.openai_stream import told
from tickertape.testing.tokenizers import byte_level_tokenizer, write_byte_level
from tickertape.weights.materialize import materialize
from tickertape.weights.store import Store

SCHEMAS: dict[str, Any] = {
    "person": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer"}},
               "required": ["name", "age"], "additionalProperties": False},
    "optional": {"type": "object", "properties": {name: {"type": "boolean"} for name in ("a", "b", "c")}},
    "list": {"type": "array", "items": {"enum": ["red", "green", None, 7]}, "minItems": 1, "maxItems": 5},
    "choice of two": {"anyOf": [{"type": "number", "minimum": -1, "maximum": 1}, {"type": "string", "format": "date"}]},
    "tree": {"$defs": {"n": {"type": "object", "properties": {"v": {"type": "integer"},
                                                            "c": {"type": "array", "items": {"$ref": "#/$defs/n"}}},
                             "required": ["v"], "additionalProperties": False}}, "$ref": "#/$defs/n"},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,5}$"},
    "whole": {"type": "object", "additionalProperties": {"type": "integer", "multipleOf": 3}},
    "tuple": {"type": "array", "prefixItems": [{"type": "string", "maxLength": 5}, {"type": "null"}], "items": False},
}  # fmt: skip


def by_schema(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}


def check(text: str, schema: Any) -> None:
    jsonschema.Draft202012Validator(schema).validate(json.loads(text))


@pytest.fixture(scope="module", params=["float64", "float32"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """The reference backend over a model that knows nothing."""
    directory = tmp_path_factory.mktemp("model")
    spec = write_llama(directory, vocab_size=512, dtype=request.param, max_position_embeddings=1024)
    write_byte_level(directory)
    with LocalServer(spec, backend="reference") as started:
        yield started


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_model_that_knows_nothing_satisfies_schemas(server: LocalServer, name: str) -> None:
    closing = {str(byte_level_tokenizer().token_to_id(mark)): 6 for mark in '"}]'}  # so that texts come to their end
    num_ended = 0
    for seed in range(4):
        for temperature in (0, 1.2):
            answer = server.chat(
                "go",
                response_format=by_schema(SCHEMAS[name]),
                seed=seed,
                temperature=temperature,
                max_tokens=200,
                n=2 if temperature else 1,
                logit_bias=closing,
                stream=bool(seed % 2),
            )
            for choice in told(answer).values():
                assert choice.finish in ("stop", "length")
                if choice.finish == "stop":
                    num_ended += 1
                    check(choice.text, SCHEMAS[name])
    assert num_ended, "nothing came to its end"


@pytest.mark.parametrize("seed", range(20))
def test_041_json_mode_over_twenty_seeds(server: LocalServer, seed: int) -> None:
    answer = server.chat("go", response_format={"type": "json_object"}, seed=seed, max_tokens=64)
    [choice] = told(answer).values()
    if choice.finish == "stop":
        assert isinstance(json.loads(choice.text), dict)
    else:
        assert choice.finish == "length"


def test_the_same_seed_gives_the_same_text_in_any_company(server: LocalServer) -> None:
    alone = told(server.chat("go", response_format=by_schema(SCHEMAS["tree"]), seed=5, max_tokens=60))[0].text
    crowd = told(server.chat("go", response_format=by_schema(SCHEMAS["tree"]), seed=5, max_tokens=60, n=5))[0].text
    assert alone == crowd


@pytest.fixture(scope="module")
def demo() -> Iterator[LocalServer]:
    store = Store(Path("~/.cache/tickertape").expanduser())
    spec = materialize(None, store=store, sources={"wheel": WheelSource()}, report=lambda _: None)
    with LocalServer(spec) as started:
        yield started


@pytest.mark.demo
@pytest.mark.parametrize("name", SCHEMAS)
def test_the_demo_model_satisfies_schemas(demo: LocalServer, name: str) -> None:
    for seed in (1, 2):
        answer = demo.chat(
            "Describe a person as JSON.", response_format=by_schema(SCHEMAS[name]), seed=seed, max_tokens=60
        )
        [choice] = told(answer).values()
        if choice.finish == "stop":
            check(choice.text, SCHEMAS[name])


@pytest.mark.demo
def test_the_demo_model_answers_in_json_and_by_choice(demo: LocalServer) -> None:
    [choice] = told(
        demo.chat(
            "Give me the capital of France as a JSON object with the key city.",
            response_format=by_schema(
                {
                    "type": "object",
                    "properties": {"city": {"type": "string", "maxLength": 30}},
                    "required": ["city"],
                    "additionalProperties": False,
                }
            ),
            temperature=0,
            max_tokens=60,
        )
    ).values()
    assert choice.finish == "stop"
    assert json.loads(choice.text)["city"].startswith("Paris")
    [choice] = told(demo.chat("Is water wet?", guided_choice=["yes", "no", "who knows"], temperature=0)).values()
    assert choice.text in ("yes", "no", "who knows")
