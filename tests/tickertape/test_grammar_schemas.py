"""Schemas against the library: whatever is sampled under a schema's masks satisfies it, and what cannot be held to is
refused by name."""

from __future__ import annotations

import asyncio
import json
import random
import string
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from tickertape.api.tokenizer import TextTokenizer
from tickertape.core.errors import InvalidRequest, Overloaded
from tickertape.core.grammar import Constraint
from tickertape.core.request import Grammar
from tickertape.grammar.checker import CheckThreads, MatcherChecker
from tickertape.grammar.compiler import MatcherCompiler
from tickertape.grammar.schema import prepare_schema
from tickertape.grammar.vocabulary import model_vocabulary
from tickertape.testing.tokenizers import write_byte_level, write_sentencepiece

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


@pytest.fixture(params=["byte level", "sentencepiece"], scope="module")
def vocabulary(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[MatcherCompiler, TextTokenizer]:
    directory = tmp_path_factory.mktemp("model")
    (write_byte_level if request.param == "byte level" else write_sentencepiece)(directory)
    compiler = MatcherCompiler(VOCAB, lambda: model_vocabulary(directory, VOCAB, {}))
    assert compiler.ready() is None
    return compiler, TextTokenizer.from_directory(directory)


def allowed(constraint: Constraint) -> list[int]:
    line = np.full(VOCAB // 32, -1, dtype=np.int32)
    constraint.fill(line)
    return [int(token) for token in np.flatnonzero(np.unpackbits(line.view(np.uint8), bitorder="little"))]


def sample(constraint: Constraint, tokenizer: TextTokenizer, rng: random.Random, most: int = 300) -> tuple[str, bool]:
    """A text drawn at random, the ends of things more often than their middles; and whether it came to its end."""
    ends = tokenizer.eos_token_ids
    tokens: list[int] = []
    while len(tokens) < most and not constraint.is_done:
        choices = allowed(constraint)
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


@pytest.fixture(scope="module")
def refusal(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], InvalidRequest]:
    directory = tmp_path_factory.mktemp("model")
    write_byte_level(directory)
    compiler = MatcherCompiler(VOCAB, lambda: model_vocabulary(directory, VOCAB, {}))

    def refuse(kind: Any, source: str) -> InvalidRequest:
        started = time.monotonic()
        with pytest.raises(InvalidRequest) as caught:
            compiler.compile(Grammar(kind, source), ())
        assert time.monotonic() - started < 5
        message = caught.value.message
        assert "\n" not in message
        assert len(message) < 500
        return caught.value

    return refuse


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


def _nested(levels: int) -> str:
    return '{"items":' * levels + "{}" + "}" * levels


HOSTILE: dict[str, tuple[str, str]] = {
    "not JSON": ("json_schema", '{"type":'),
    "deep": ("json_schema", _nested(101)),
    "very deep": ("json_schema", _nested(20_000)),
    "deep arrays": ("json_schema", '{"enum":' + "[" * 20_000 + "]" * 20_000 + "}"),
    "long": ("json_schema", '"' + "a" * 300_000 + '"'),
    "product": ("json_schema", json.dumps({"allOf": [{"anyOf": [{"minLength": n}, {"maxLength": 99 + n}]}
                                                      for n in range(24)]})),
    "nested expression": ("regex", "(" * 20_000 + "a" + ")" * 20_000),
    "unclosed expression": ("regex", "("),
    "word boundary": ("regex", r"\bword"),
    "no rule": ("lark", 'stop: "a"'),
    "no base": ("lark", "start: a\na: a"),
    "unknown token": ("lark", "start: <|nope|>"),
    "nested rules": ("lark", "start: " + "(" * 20_000 + '"a"' + ")" * 20_000),
    "doubling terminals": ("lark", "start: A0\n" + "\n".join(f"A{n}: A{n + 1} A{n + 1}" for n in range(40))
                           + '\nA40: "x"'),
    "broken EBNF": ("lark", "root ::= ("),
    "nested EBNF": ("lark", "root ::= " + "(" * 5_000 + '"a"' + ")" * 5_000),
    "embedded": ("lark", 'start: %json {"type": "objekt"}'),
    "embedded divisor": ("lark", 'start: %json {"type": "integer", "multipleOf": 7000021}'),
    "no tags": ("structural_tag", "{}"),
    "tag without trigger": ("structural_tag", '{"triggers": ["<f"], "structures": '
                            '[{"begin": "<g>", "schema": {}, "end": ""}]}'),
    "tag with a wrong schema": ("structural_tag", '{"triggers": ["<f"], "structures": '
                                '[{"begin": "<f>", "schema": {"type": 5}, "end": ""}]}'),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_grammars_are_refused_quickly(refusal: Callable[[str, str], InvalidRequest], name: str) -> None:
    refusal(*HOSTILE[name])


LARGE: dict[str, tuple[str, str]] = {
    "enum": ("json_schema", json.dumps({"enum": [f"value{n}" for n in range(8000)]})),
    "optional": ("json_schema", json.dumps({"type": "object", "properties": {f"p{n}": {} for n in range(1000)}})),
    "repeats": ("json_schema", json.dumps({"type": "string", "minLength": 10**6, "maxLength": 10**9})),
    "items": ("json_schema", json.dumps({"type": "array", "minItems": 10**6, "items": {"type": "object"}})),
    "states": ("regex", "(a|b)*a(a|b){60}"),
    "powers": ("regex", "((a{1,1000}){1,1000}){1,1000}"),
    "divisor": ("json_schema", json.dumps({"type": "integer", "multipleOf": 19_997})),
    "left recursion": ("lark", 'start: start "a" | start start | "b"'),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_grammars_cost_a_bounded_time(vocabulary: tuple[MatcherCompiler, TextTokenizer], name: str) -> None:
    compiler, _ = vocabulary
    kind: Any = LARGE[name][0]
    started = time.monotonic()
    constraint = compiler.compile(Grammar(kind, LARGE[name][1]), ())
    assert time.monotonic() - started < 5
    rng = random.Random(0)
    for _ in range(20):
        if constraint.is_done:
            break
        started = time.monotonic()
        token = rng.choice(allowed(constraint))
        assert time.monotonic() - started < 1
        constraint.accept((token,))


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
            if token not in allowed(constraint):
                return True
            constraint.accept((token,))
        return not constraint.is_done and 500 not in allowed(constraint)

    return refuses


def test_white_space_comes_in_short_runs(vocabulary: tuple[MatcherCompiler, TextTokenizer]) -> None:
    compiler, tokenizer = vocabulary
    for seed in range(20):
        rng = random.Random(seed)
        constraint = compiler.compile(Grammar("json_schema", '{"type":"object"}'), ())
        text = b""
        for _ in range(64):
            blank = [token for token in allowed(constraint) if not tokenizer.token_bytes(token).strip()]
            token = rng.choice(blank or allowed(constraint))
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
        return {tokenizer.token_bytes(token) for token in allowed(constraint) if token not in stops}

    grammar = Grammar("regex", "ab?")
    constraint = compiler.compile(grammar, (500, comma))
    assert texts(constraint) == {b"a"}
    assert stops.isdisjoint(allowed(constraint))
    constraint.accept((a,))
    assert texts(constraint) == {b"b"}
    assert stops <= set(allowed(constraint))
    constraint.accept(tokenizer.encode("xb", add_special_tokens=False)[-1:])
    assert constraint.is_done
    bare = compiler.compile(grammar, ())
    bare.accept((a,))
    assert texts(bare) == {b"b"}
    assert len(allowed(bare)) == len([t for t in allowed(bare) if tokenizer.token_bytes(t) == b"b"]), "no end token"


def test_a_grammar_is_compiled_once(vocabulary: tuple[MatcherCompiler, TextTokenizer]) -> None:
    compiler, tokenizer = vocabulary
    source = json.dumps({"enum": ["".join(random.Random(n).choices(string.ascii_letters, k=9)) for n in range(6000)]})
    times = []
    for _ in range(3):
        started = time.perf_counter()
        constraint = compiler.compile(Grammar("json_schema", source), ())
        times.append(time.perf_counter() - started)
    assert max(times[1:]) < times[0] / 5
    quote = tokenizer.encode('x"', add_special_tokens=False)[-1]
    constraint.accept((quote,))
    other = compiler.compile(Grammar("json_schema", source), ())
    assert quote in allowed(other), "two requests share one state"


def test_a_model_without_a_tokenizer_refuses_grammars(tmp_path: Path) -> None:
    compiler = MatcherCompiler(VOCAB, lambda: model_vocabulary(tmp_path, VOCAB, {}))
    assert "tokenizer.json" in (compiler.ready() or "")
    with pytest.raises(InvalidRequest) as caught:
        compiler.compile(Grammar("regex", "a"), ())
    assert caught.value.code == "unsupported_value"


SLOW_TO_WALK: dict[str, Any] = {
    "chain": {"$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(5000)} | {"d5000": {}}},
    "long names": {"properties": {"n" * 60_000: {"properties": {f"p{n}": {"type": "null"} for n in range(1000)}}}},
    "pointers": {"$defs": {f"d{n}": {"$ref": "#" + "/a" * 40 + "/9" * 40} for n in range(1500)}, "a": {}},
    "digits": {"$ref": "#/anyOf/" + "9" * 5000, "anyOf": [{}]},
}


@pytest.mark.parametrize("name", SLOW_TO_WALK)
def test_looking_through_a_schema_takes_linear_time(name: str) -> None:
    source = json.dumps(SLOW_TO_WALK[name])
    started = time.monotonic()
    prepare_schema(source)
    assert time.monotonic() - started < 1


def test_those_who_use_a_grammar_do_not_use_it_up(
    vocabulary: tuple[MatcherCompiler, TextTokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tickertape.grammar.compiler._MAX_LEXER_STATES", 1500)
    compiler, tokenizer = vocabulary
    letters = string.ascii_lowercase[:8]
    grammar = Grammar(
        "json_schema",
        json.dumps({"anyOf": [{"type": "string", "pattern": f"^{letter}[{letter}]{{0,999}}$"} for letter in letters]}),
    )
    by_text = {tokenizer.token_bytes(token): token for token in range(VOCAB)}
    kept = compiler.compile(grammar, ())
    for letter in letters * 2:
        constraint = compiler.compile(grammar, ())
        for token in (by_text[b'"'], *[by_text[letter.encode()]] * 600):
            constraint.accept((token,))
            assert token == by_text[b'"'] or by_text[b'"'] in allowed(constraint)
    assert by_text[b'"'] in allowed(kept), "one that was begun earlier gave out"


def test_one_text_can_use_it_up(
    vocabulary: tuple[MatcherCompiler, TextTokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tickertape.grammar.compiler._MAX_LEXER_STATES", 1500)
    compiler, tokenizer = vocabulary
    grammar = Grammar("json_schema", json.dumps({"type": "string", "maxLength": 3999}))
    constraint = compiler.compile(grammar, ())
    quote, letter = (
        next(token for token in range(VOCAB) if tokenizer.token_bytes(token) == text) for text in (b'"', b"x")
    )

    def write() -> None:
        for token in (quote, *[letter] * 3000):
            constraint.accept((token,))
            allowed(constraint)

    with pytest.raises(InvalidRequest, match="cannot be followed further"):
        write()
    assert allowed(compiler.compile(grammar, ()))


async def test_the_front_gives_a_check_no_more_than_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_byte_level(tmp_path)
    let_go = threading.Event()
    compiled: list[str] = []

    def slow(_: Any, grammar: Grammar) -> None:
        compiled.append(grammar.source)
        if grammar.source == "slow":
            assert let_go.wait(10)

    monkeypatch.setattr("tickertape.grammar.checker._TIME_LIMIT_S", 0.1)
    monkeypatch.setattr("tickertape.grammar.checker._MAX_WAITING", 1)
    monkeypatch.setattr("tickertape.grammar.checker.compile_matcher", slow)
    threads = CheckThreads()
    checker = MatcherChecker(threads, TextTokenizer.from_directory(tmp_path), VOCAB)
    try:
        await checker.check(Grammar("regex", "quick"))
        await checker.check(Grammar("regex", "quick"))
        assert compiled == ["quick"], "what is known to be good was compiled again"
        checks = [checker.check(Grammar("regex", "slow")) for _ in range(4)]
        *late, refused = await asyncio.gather(*checks, return_exceptions=True)
        assert [str(error) for error in late] == ["it takes too long to compile"] * 3
        assert isinstance(refused, Overloaded)
        let_go.set()
        await asyncio.sleep(0.1)
        await checker.check(Grammar("regex", "another"))
    finally:
        let_go.set()
        threads.close()
