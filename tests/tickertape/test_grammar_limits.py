"""Grammars that are hostile, large, or used by many: what one costs is bounded, and only its own request pays."""

from __future__ import annotations

import asyncio
import json
import random
import string
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tickertape.api.tokenizer import TextTokenizer
from tickertape.core.errors import InvalidRequest, Overloaded, RowError
from tickertape.core.request import Grammar
from tickertape.grammar.checker import CheckThreads, MatcherChecker
from tickertape.grammar.compiler import MatcherCompiler
from tickertape.grammar.expressions import check_expression, check_terminals
from tickertape.grammar.schema import prepare_schema
from tickertape.grammar.vocabulary import model_vocabulary
from tickertape.testing.constraints import allowed_tokens
from tickertape.testing.tokenizers import write_byte_level

VOCAB = 512


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
    "powers": ("regex", "((a{1,1000}){1,1000}){1,1000}"),
    "power of a sum": ("regex", r"(?:a{400}|[\]{2}]\({400}\p{L}){200}"),
    "power in a schema": ("json_schema", '{"$defs": {"x": {"pattern": "^(a{1000}){1000}$"}}, "$ref": "#/$defs/x"}'),
    "power in a name": ("json_schema", '{"patternProperties": {"^(a{1000}){1000}$": {}}}'),
    "power in a terminal": ("lark", 'start: "/" /(a{1000}){1000}/'),
    "power in an embedded schema": ("lark", 'start: %json {"pattern": "^(a{1000}){1000}$"}'),
    "endless power": ("regex", "a{" + "9" * 5000 + "}"),
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
    "divisor": ("json_schema", json.dumps({"type": "integer", "multipleOf": 19_997})),
    "left recursion": ("lark", 'start: start "a" | start start | "b"'),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_grammars_cost_a_bounded_time(vocabulary: tuple[MatcherCompiler, TextTokenizer], name: str) -> None:
    compiler, _ = vocabulary
    kind: Any = LARGE[name][0]
    started = time.thread_time()
    constraint = compiler.compile(Grammar(kind, LARGE[name][1]), ())
    assert time.thread_time() - started < 5
    rng = random.Random(0)
    for _ in range(20):
        if constraint.is_done:
            break
        started = time.thread_time()
        token = rng.choice(allowed_tokens(constraint, VOCAB))
        assert time.thread_time() - started < 1
        constraint.accept((token,))


def test_a_grammar_is_compiled_once(vocabulary: tuple[MatcherCompiler, TextTokenizer]) -> None:
    compiler, tokenizer = vocabulary
    source = json.dumps({"enum": ["".join(random.Random(n).choices(string.ascii_letters, k=9)) for n in range(6000)]})
    times = []
    for _ in range(3):
        started = time.thread_time()
        constraint = compiler.compile(Grammar("json_schema", source), ())
        times.append(time.thread_time() - started)
    assert max(times[1:]) < times[0] / 5
    quote = tokenizer.encode('x"', add_special_tokens=False)[-1]
    constraint.accept((quote,))
    other = compiler.compile(Grammar("json_schema", source), ())
    assert quote in allowed_tokens(other, VOCAB), "two requests share one state"


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


@pytest.mark.parametrize("source", ["[" * 200_000, r"\p{" * 60_000, "(?<a" * 60_000, "{9" * 100_000, "(a{9}" * 40_000,
                                    "a" + "{1}" * 60_000, "(" * 200_000 + ")" * 200_000])  # fmt: skip
def test_looking_through_an_expression_takes_linear_time(source: str) -> None:
    started = time.thread_time()
    check_expression(source)
    check_terminals('"' + r"\"" * 60_000 + source)
    check_terminals("/" + r"\/" * 60_000 + source)
    assert time.thread_time() - started < 1


@pytest.mark.parametrize("name", SLOW_TO_WALK)
def test_looking_through_a_schema_takes_linear_time(name: str) -> None:
    source = json.dumps(SLOW_TO_WALK[name])
    started = time.thread_time()
    prepare_schema(source)
    assert time.thread_time() - started < 1


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
            assert token == by_text[b'"'] or by_text[b'"'] in allowed_tokens(constraint, VOCAB)
    assert by_text[b'"'] in allowed_tokens(kept, VOCAB), "one that was begun earlier gave out"


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
            allowed_tokens(constraint, VOCAB)

    with pytest.raises(InvalidRequest, match="cannot be followed further"):
        write()
    assert allowed_tokens(compiler.compile(grammar, ()), VOCAB)


def test_a_text_that_costs_too_much_to_go_on_with_is_the_grammars_fault(
    vocabulary: tuple[MatcherCompiler, TextTokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tickertape.grammar.expressions._MAX_SIZE", 10**9)
    compiler, tokenizer = vocabulary
    by_text = {tokenizer.token_bytes(token): token for token in range(VOCAB)}
    schema = json.dumps({"type": "string", "pattern": "^(a{1000}){1000}$"})
    constraint = compiler.compile(Grammar("json_schema", schema), ())
    with pytest.raises(InvalidRequest, match="cannot be followed further") as caught:
        constraint.accept((by_text[b'"'], *[by_text[b"a"]] * 50))
    assert caught.value.param == "grammar"
    with pytest.raises(RowError):
        compiler.compile(Grammar("regex", "ab"), ()).accept((by_text[b"b"],))


def test_what_is_slow_to_compile_is_not_compiled_again_within_a_step(
    vocabulary: tuple[MatcherCompiler, TextTokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tickertape.grammar.compiler._MAX_RENEWAL_S", 0.0)
    monkeypatch.setattr("tickertape.grammar.compiler._MAX_LEXER_STATES", 300)
    compiler, _ = vocabulary
    constraint = compiler.compile(Grammar("json_schema", '{"type":"string","minLength":2000}'), ())
    monkeypatch.setattr("tickertape.grammar.compiler.compile_matcher", None)

    def write() -> None:
        for _ in range(1000):
            constraint.accept((allowed_tokens(constraint, VOCAB)[0],))

    with pytest.raises(InvalidRequest, match="cannot be followed further"):
        write()


@pytest.mark.parametrize("source", ["(a{1000}){100}", "a{100000}"])
def test_a_step_of_the_largest_expressions_is_bounded(
    vocabulary: tuple[MatcherCompiler, TextTokenizer], source: str
) -> None:
    compiler, _ = vocabulary
    constraint = compiler.compile(Grammar("regex", source), ())
    steps_s = []
    with suppress(InvalidRequest):  # it may give out
        for _ in range(50):
            started = time.thread_time()
            try:
                constraint.accept((allowed_tokens(constraint, VOCAB)[0],))
            finally:
                steps_s.append(time.thread_time() - started)
    assert max(steps_s) < 0.3


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
