"""Schemas against the library: whatever is sampled under a schema's masks satisfies it, and what cannot be held to is
refused by name."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from tickertape.api.tokenizer import TextTokenizer
from tickertape.core.errors import InvalidRequest
from tickertape.core.grammar import Constraint
from tickertape.core.request import Grammar
from tickertape.grammar.compiler import MatcherCompiler
from tickertape.grammar.vocabulary import model_vocabulary
from tickertape.testing.constraints import allowed_tokens
from tickertape.testing.tokenizers import write_byte_level

VOCAB = 512

TREE = {
    "$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}},
                       "required": ["v"], "additionalProperties": False}},
    "$ref": "#/$defs/node",
}  # fmt: skip

SCHEMAS: dict[str, Any] = {
    "anything": {},
    "true": True,
    "string": {"type": "string"},
    "length": {"type": "string", "minLength": 2, "maxLength": 4},
    "pattern": {"type": "string", "pattern": "^[a-f]+(-[0-9]{2})?$"},
    "unanchored": {"type": "string", "pattern": "b[0-9]", "maxLength": 9},
    "date": {"type": "string", "format": "date"},
    "uuid": {"type": "string", "format": "uuid"},
    "integer": {"type": "integer", "minimum": -3, "maximum": 1200},
    "exclusive": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 2.5},
    "multiple": {"type": "integer", "multipleOf": 7},
    "decimal": {"type": "number", "multipleOf": 0.5},
    "boolean": {"type": ["boolean", "null"]},
    "enum": {"enum": ["red", 5, None, {"a": [1, 2]}, "é\n\"\\"]},
    "const": {"const": {"a": [1, {"b": None}]}},
    "array": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "minItems": 2, "maxItems": 4},
    "tuple": {"type": "array", "prefixItems": [{"type": "boolean"}, {"type": "integer"}], "items": False},
    "nested": {"type": "array", "items": {"type": "array", "items": {"type": "null"}, "maxItems": 2}, "maxItems": 3},
    "object": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}},
               "required": ["a"], "additionalProperties": False},
    "optional": {"type": "object", "properties": {c: {"type": "null"} for c in "abcdef"}, "required": ["c"],
                 "additionalProperties": False},
    "open": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
             "additionalProperties": {"type": "boolean"}},
    "pattern properties": {"type": "object", "patternProperties": {"^x[0-9]$": {"type": "integer"}},
                           "additionalProperties": False},
    "sized": {"type": "object", "additionalProperties": {"type": "null"}, "minProperties": 1, "maxProperties": 2},
    "any of": {"anyOf": [{"type": "integer"}, {"type": "object", "properties": {"k": {"const": 1}},
                                               "required": ["k"], "additionalProperties": False}]},
    "one of": {"oneOf": [{"type": "integer"}, {"type": "boolean"}, {"type": "string", "maxLength": 3}]},
    "all of": {"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                         {"properties": {"b": {"type": "null"}}, "required": ["b"]}]},
    "any of beside": {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
                      "additionalProperties": False, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    "ref": {"$defs": {"n": {"type": "integer"}}, "type": "array", "items": {"$ref": "#/$defs/n"}, "maxItems": 3},
    "ref with siblings": {"$defs": {"s": {"type": "string"}}, "$ref": "#/$defs/s", "maxLength": 2},
    "ref into an array": {"type": "object", "properties": {"x": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                                                           "y": {"$ref": "#/properties/x/anyOf/0"}},
                          "required": ["x", "y"], "additionalProperties": False},
    "ref to escaped": {"$defs": {"a/b c": {"type": "null"}}, "type": "array", "items": {"$ref": "#/$defs/a~1b%20c"},
                       "minItems": 1, "maxItems": 2},
    "recursive": TREE,
    "mutual": {"$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/b"}, "maxItems": 2},
                         "b": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"},
    "itself": {"type": "object", "properties": {"c": {"$ref": "#"}}, "additionalProperties": False},
    "annotations": {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "urn:x", "title": "t",
                    "description": "d", "default": 1, "examples": [1], "$comment": "c", "type": "integer",
                    "minimum": 1, "maximum": 2, "deprecated": True, "readOnly": True, "nullable": True},
    "no effect": {"type": "array", "items": {"type": "null"}, "maxItems": 2, "uniqueItems": False, "not": False,
                  "unevaluatedItems": True, "minContains": 2, "then": {"const": 3}, "propertyNames": {},
                  "dependentRequired": {}, "x-guidance": {"lenient": True}},
    "keyword as a name": {"type": "object", "properties": {"not": {"type": "null"}, "uniqueItems": {"type": "null"}},
                          "required": ["not"], "additionalProperties": False},
    "draft 7": {"$schema": "http://json-schema.org/draft-07/schema#", "type": "array",
                "items": [{"type": "integer"}, {"type": "null"}], "additionalItems": False},
}  # fmt: skip


def sample(constraint: Constraint, tokenizer: TextTokenizer, rng: random.Random, most: int = 300) -> tuple[str, bool]:
    """A text drawn at random, the ends of things more often than their middles; and whether it came to its end."""
    ends = tokenizer.eos_token_ids
    tokens: list[int] = []
    while len(tokens) < most and not constraint.is_done:
        choices = allowed_tokens(constraint, VOCAB)
        closing = [
            token for token in choices if token in ends or tokenizer.token_bytes(token) in b'"}]' or token in ends
        ]
        token = rng.choice(closing if closing and rng.random() < 0.4 else choices)
        if token in ends:
            return tokenizer.decode(tokens, skip_special_tokens=True), True
        tokens.append(token)
        constraint.accept((token,))
    return tokenizer.decode(tokens, skip_special_tokens=True), constraint.is_done


def validator(schema: Any) -> Any:
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    return kind(schema)


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_ends_satisfies_its_schema(vocabulary: tuple[MatcherCompiler, TextTokenizer], name: str) -> None:
    compiler, tokenizer = vocabulary
    schema = SCHEMAS[name]
    texts = set()
    for seed in range(12):
        constraint = compiler.compile(Grammar("json_schema", json.dumps(schema)), tokenizer.eos_token_ids)
        text, ended = sample(constraint, tokenizer, random.Random(seed))
        if ended:
            texts.add(text)
            validator(schema).validate(json.loads(text))
    assert texts, "none of the texts came to its end"


UNSUPPORTED: dict[str, Any] = {
    "not": {"not": {"type": "string"}},
    "nothing": {"type": "object", "properties": {"a": {"not": {}}}},
    "if": {"if": {"type": "string"}, "then": {"minLength": 2}},
    "uniqueItems": {"type": "array", "uniqueItems": True},
    "contains": {"type": "array", "contains": {"type": "integer"}},
    "propertyNames": {"type": "object", "propertyNames": {"pattern": "^a"}},
    "dependentRequired": {"dependentRequired": {"a": ["b"]}},
    "not ": {"properties": {"n" * 5000: {"not": {"type": "null"}}}},
    "dependencies": {"dependencies": {"a": ["b"]}},
    "unevaluatedProperties": {"anyOf": [{"unevaluatedProperties": False}]},
    "$dynamicRef": {"$defs": {"x": {"$dynamicRef": "#y"}}},
    "disallow": {"disallow": "string"},
    "minProperties": {"type": "object", "required": ["a"], "minProperties": 3},
    "multipleOf": {"type": "integer", "multipleOf": 1000003},
    "multipleOf ": {"allOf": [{"multipleOf": 9973}, {"$ref": "#/x"}], "x": {"multipleOf": 9967}},
    "control character": {"const": "a\x01"},
    "optional": {"type": "object", "properties": {f"p{n}": {} for n in range(1501)}},
    "oneOf": {"oneOf": [{"type": "string"}, {"minLength": 2}]},
    "format": {"type": "string", "format": "int32"},
}
WRONG: dict[str, Any] = {
    "objekt": {"type": "objekt"},
    "string or array": {"type": 5},
    "object or a boolean": [1],
    "/nowhere": {"$ref": "#/nowhere"},
    "http://127.0.0.1/x": {"$ref": "http://127.0.0.1/x"},
    "file:///etc/hostname": {"$ref": "file:///etc/hostname"},
    "object or boolean": {"type": "object", "properties": {"a": 3}},
    "enum": {"enum": 3},
    "unclosed": {"type": "string", "pattern": "("},
    "look-around": {"type": "string", "pattern": "(?=a)"},
    "minLength": {"minLength": -1},
    "minimum (5) is greater": {"type": "integer", "minimum": 5, "maximum": 3},
    "false": False,
    "'#' refers to itself": {"$ref": "#"},
    "'#/properties/a' refers to itself": {"properties": {"a": {"$ref": "#/properties/a"}}},
    "refers to itself": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    "circular": {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {"type": "string"}]}}, "$ref": "#/$defs/a"},
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_cannot_be_held_to_is_refused_by_name(refusal: Callable[[str, str], InvalidRequest], name: str) -> None:
    error = refusal("json_schema", json.dumps(UNSUPPORTED[name]))
    assert "not" if name == "nothing" else name.strip() in error.message
    if name not in ("oneOf", "format"):
        assert error.code == "unsupported_value"
        assert "unsupported" in error.message


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_schema_is_told_what_is_wrong(refusal: Callable[[str, str], InvalidRequest], name: str) -> None:
    assert name in refusal("json_schema", json.dumps(WRONG[name])).message


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "object", "properties": {"a": {"type": "integer"}}}, '{"a":1,"a":"x"}'),
        ({"type": "object", "properties": {"a": {"type": "integer"}}}, '{"a":1,"\\u0061":"x"}'),
        ({"type": "object", "patternProperties": {"^a": {"type": "integer"}}}, '{"\\u0061b":"x"}'),
        ({"type": "string", "enum": ["a", 1]}, "1"),
        ({"enum": ["a", "bbb"], "minLength": 2}, '"a"'),
        ({"type": "string", "maxLength": 1}, '"ab"'),
        ({"type": "string"}, '"\\ud83d"'),
    ],
)
def test_what_would_not_satisfy_is_not_sampled(
    refused_text: Callable[[Any, str], bool], schema: Any, text: str
) -> None:
    assert refused_text(schema, text)


@pytest.fixture(scope="module")
def refused_text(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any, str], bool]:
    directory = tmp_path_factory.mktemp("model")
    write_byte_level(directory)
    compiler = MatcherCompiler(VOCAB, lambda: model_vocabulary(directory, VOCAB, {}))

    def refuses(schema: Any, text: str) -> bool:
        constraint = compiler.compile(Grammar("json_schema", json.dumps(schema)), (500,))
        for token in text.encode():
            if token not in allowed_tokens(constraint, VOCAB):
                return True
            constraint.accept((token,))
        return not constraint.is_done and 500 not in allowed_tokens(constraint, VOCAB)

    return refuses


def test_white_space_comes_in_short_runs(vocabulary: tuple[MatcherCompiler, TextTokenizer]) -> None:
    compiler, tokenizer = vocabulary
    for seed in range(20):
        rng = random.Random(seed)
        constraint = compiler.compile(Grammar("json_schema", '{"type":"object"}'), ())
        text = b""
        for _ in range(64):
            blank = [token for token in allowed_tokens(constraint, VOCAB) if not tokenizer.token_bytes(token).strip()]
            token = rng.choice(blank or allowed_tokens(constraint, VOCAB))
            constraint.accept((token,))
            text += tokenizer.token_bytes(token)
            if constraint.is_done:
                break
            if text.count(b'"') % 2 == 0:
                run = len(text) - len(text.rstrip(b" \t\r\n"))
                assert run <= 40
        assert text.strip(b" \t\r\n") != b"{", "nothing but white space"


def test_stop_tokens_come_where_the_text_is_complete(vocabulary: tuple[MatcherCompiler, TextTokenizer]) -> None:
    compiler, tokenizer = vocabulary
    a, comma = (tokenizer.encode(text, add_special_tokens=False)[-1] for text in ("xa", "x,"))
    stops = {500, comma}

    def texts(constraint: Constraint) -> set[bytes]:
        """What may come beside stop tokens; some characters have two tokens."""
        return {tokenizer.token_bytes(token) for token in allowed_tokens(constraint, VOCAB) if token not in stops}

    grammar = Grammar("regex", "ab?")
    constraint = compiler.compile(grammar, (500, comma))
    assert texts(constraint) == {b"a"}
    assert stops.isdisjoint(allowed_tokens(constraint, VOCAB))
    constraint.accept((a,))
    assert texts(constraint) == {b"b"}
    assert stops <= set(allowed_tokens(constraint, VOCAB))
    constraint.accept(tokenizer.encode("xb", add_special_tokens=False)[-1:])
    assert constraint.is_done
    bare = compiler.compile(grammar, ())
    bare.accept((a,))
    assert texts(bare) == {b"b"}
    assert len(allowed_tokens(bare, VOCAB)) == len(
        [t for t in allowed_tokens(bare, VOCAB) if tokenizer.token_bytes(t) == b"b"]
    ), "no end token"
