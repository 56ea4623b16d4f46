"""Topic b of the cases, structured output: schemas that are wrong, unsupported, recursive or hostile, and white space;
on the scripted backend, beside requests that must not notice."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Mapping
from typing import Any, Protocol

import pytest

from tickertape.plugins import Capabilities
from tickertape.testing.asgi import Answer
from tickertape.testing.front import Front, spoken
from tickertape.testing.openai_stream import told


class MakeFront(Protocol):
    async def __call__(self, *plays: Mapping[str, Any], **settings: Any) -> Front: ...


SCHEMA_PARAM = "response_format.json_schema.schema"
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def by_schema(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, **more}}


def refused(answer: Answer, param: str, *words: str) -> None:
    assert answer.status == 400, answer.body
    error = answer.json()["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert all(word in error["message"] for word in words), error["message"]


@pytest.fixture
async def going(make_front: MakeFront) -> Front:
    """Says JSON to "go", something else to "chatter"."""
    return await make_front(
        {"when": spoken("go"), "tokens": spoken('{"name": "Bob", "age": 31}')},
        {"when": spoken("chatter"), "tokens": spoken("I would rather talk about something else, if I may.")},
    )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("strict", [None, False, True])
async def test_an_answer_follows_its_schema(going: Front, stream: bool, strict: bool | None) -> None:
    format = by_schema(PERSON) if strict is None else by_schema(PERSON, strict=strict, description="a person")
    [choice] = told(await going.chat("go", response_format=format, stream=stream)).values()
    assert (choice.text, choice.finish, choice.stop_reason) == ('{"name": "Bob", "age": 31}', "stop", None)
    [choice] = told(await going.chat("chatter", response_format=format, stream=stream, max_tokens=40)).values()
    assert re.match(r'\{\s*"name"\s*:\s*"', choice.text)
    assert choice.finish == "length"


async def test_stream_and_whole_answer_agree_for_every_choice(going: Front) -> None:
    fields: dict[str, Any] = {"response_format": by_schema(PERSON), "max_tokens": 30, "n": 3, "seed": 7}
    whole = told(await going.chat("chatter", **fields))
    streamed = told(await going.chat("chatter", stream=True, **fields))
    assert {n: (choice.text, choice.finish) for n, choice in whole.items()} == {
        n: (choice.text, choice.finish) for n, choice in streamed.items()
    }
    assert len(whole) == 3


async def test_end_tokens_wait_until_it_is_complete(going: Front) -> None:
    # The script ends after 26 ids; this schema wants more.
    more = {**PERSON, "properties": {**PERSON["properties"], "z": {"const": 1}}, "required": ["name", "age", "z"]}  # type: ignore[dict-item]
    [choice] = told(await going.chat("go", response_format=by_schema(more), max_tokens=200)).values()
    if choice.finish == "stop":
        assert json.loads(choice.text)["z"] == 1
    assert choice.text.startswith('{"name": "Bob", "age": 31')
    assert len(choice.text) > 26
    [free] = told(await going.complete("go", guided_regex="[ab]+", ignore_eos=True, max_tokens=9)).values()
    assert (len(free.text), free.finish) == (9, "length")


async def test_repetitions_that_multiply_are_a_400_before_anything_is_computed(going: Front) -> None:
    power = "(a{1000}){1000}"
    refused(await going.complete("go", guided_regex=power), "guided_regex", "repetitions")
    schema = {"type": "object", "properties": {"x": {"type": "string", "pattern": f"^{power}$"}}}
    refused(await going.chat("go", response_format=by_schema(schema), stream=True), SCHEMA_PARAM, "repetitions")


async def test_a_grammar_that_gives_out_in_the_stream_is_its_requests_fault(
    make_front: MakeFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tickertape.grammar.compiler._MAX_LEXER_STATES", 60)
    front = await make_front({"when": spoken("go"), "tokens": spoken('"' + "a" * 300)}, token_s=0.002)
    schema = {"type": "string", "maxLength": 399}
    answer = await front.complete("go", stream=True, guided_json=schema, max_tokens=300)
    assert answer.status == 200
    assert len(answer.events) > 3
    error = json.loads(answer.events[-1])["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", "guided_json")
    refused(await front.complete("go", guided_json=schema, max_tokens=300), "guided_json", "cannot be followed further")


@pytest.mark.parametrize(
    "text",
    [
        '{"maximum": 1e999}',
        '{"minimum": -Infinity}',
        '{"const": NaN}',
        '{"enum": ["\\ud800"]}',
        '{"properties": {"\\udc00": {}}}',
        '{"maximum": 1%s}' % ("0" * 400),
        '{"enum": [-1%s]}' % ("0" * 400),
        '{"const": 1%s}' % ("0" * 5000),
        '{"multipleOf": 1%s}' % ("0" * 400),
    ],
)
async def test_numbers_and_characters_that_json_cannot_carry_on_are_a_400(going: Front, text: str) -> None:
    for stream in (False, True):
        answer = await going.complete("go", guided_json=text, stream=stream)
        refused(answer, "guided_json", "schema")
        assert "sys." not in answer.json()["error"]["message"]
        refused(await going.complete("go", guided_grammar=f"start: %json {text}", stream=stream), "guided_grammar")
    tag = f'{{"triggers": ["<"], "structures": [{{"begin": "<", "schema": {text}, "end": ">"}}]}}'
    refused(await going.complete("go", structural_tag=tag), "structural_tag")


async def test_huge_numbers_of_a_schema_that_is_sent_as_such_are_a_400(going: Front) -> None:
    huge = {"type": "integer", "maximum": 10**400}
    refused(await going.chat("go", response_format=by_schema(huge)), SCHEMA_PARAM, "range")


@pytest.mark.parametrize("stream", [False, True])
async def test_constraints_that_contradict_each_other_are_the_clients_fault(going: Front, stream: bool) -> None:
    json_mode = {"type": "json_object"}
    answer = await going.chat("go", response_format=json_mode, allowed_token_ids=[65], stream=stream)
    refused(answer, "response_format", "no token")
    answer = await going.complete("go", guided_regex="a", bad_words=["a"], stream=stream)
    refused(answer, "guided_regex", "no token")
    answer = await going.complete("go", allowed_token_ids=[65], bad_words=["A"], stream=stream)
    refused(answer, "allowed_token_ids", "no token")


async def test_a_contradiction_in_the_stream_is_told_there(make_front: MakeFront) -> None:
    front = await make_front({"when": spoken("go"), "tokens": spoken("a" * 20)}, token_s=0.002)
    answer = await front.complete("go", guided_regex="a{9}b", bad_words=["b"], stream=True)
    assert (answer.status, len(answer.events)) == (200, 10)
    error = json.loads(answer.events[-1])["error"]
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "invalid_value", "guided_regex")


async def test_026_an_invalid_schema_is_a_400_and_nothing_else_notices(make_front: MakeFront) -> None:
    front = await make_front({"when": spoken("long"), "tokens": spoken("x" * 200)}, token_s=0.002)
    async with front.streaming("long") as running:
        for schema, word in (
            ({"type": "objekt"}, "objekt"),
            ({"type": 5}, "type"),
            ([{"type": "string"}], "JSON schema"),
            ({"$ref": "#/$defs/nowhere"}, "/$defs/nowhere"),
            ({"$ref": "https://localhost/x.json"}, "https://localhost/x.json"),
            ("objekt", "object"),
            (5, "object"),
        ):
            for stream in (False, True):
                answer = await front.chat("go", response_format=by_schema(schema), stream=stream)
                refused(answer, SCHEMA_PARAM, word)
            if not isinstance(schema, int):
                refused(await front.complete("go", guided_json=schema), "guided_json")
        assert (await front.complete(max_tokens=40)).json()["choices"][0]["text"].lstrip() == "A known text."
        answer = await running.answer()
    assert told(answer)[0].text == "x" * 200


@pytest.mark.parametrize(
    ("keyword", "schema"),
    [
        ("not", {"properties": {"a": {"not": {"type": "string"}}}}),
        ("not", {"not": {}}),
        ("if", {"if": {"type": "string"}, "then": {"minLength": 3}}),
        ("uniqueItems", {"type": "array", "uniqueItems": True}),
        ("contains", {"type": "array", "contains": {}}),
    ],
)
async def test_028_030_what_cannot_be_enforced_is_refused_by_name(going: Front, keyword: str, schema: Any) -> None:
    for strict in (None, False, True):
        more = {} if strict is None else {"strict": strict}
        answer = await going.chat("go", response_format=by_schema(schema, **more))
        refused(answer, SCHEMA_PARAM, f"unsupported keyword {keyword!r}")


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "array", "items": [{"type": "integer"}, {"const": "x"}], "minItems": 2, "additionalItems": False},
         '[7,"x"]'),
        ({"patternProperties": {"^k": {"type": "integer"}}, "additionalProperties": False, "type": "object"},
         '{"k1":5}'),
        ({"type": "array", "uniqueItems": False}, "[1,1]"),
        ({}, '{"anything": [1]}'),
        ({"type": "object"}, "{}"),
        ({"type": "object", "properties": {}}, "{}"),
        ({"type": "object", "properties": {"a": {}}}, '{"a":null}'),
        ({"$defs": {"n": {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}},
                          "additionalProperties": False}},
          "$ref": "#/$defs/n"}, '{"next":{"next":{}}}'),
        ({"type": "object", "properties": {"x": {"anyOf": [{"type": "integer"}]},
                                           "y": {"$ref": "#/properties/x/anyOf/0"}},
          "required": ["x", "y"]}, '{"x":1,"y":2}'),
    ],
)  # fmt: skip
async def test_028_030_031_what_can_be_enforced_is_served(make_front: MakeFront, schema: Any, text: str) -> None:
    front = await make_front({"when": spoken("go"), "tokens": spoken(text)})
    [choice] = told(await front.chat("go", response_format=by_schema(schema), max_tokens=60)).values()
    assert (choice.text, choice.finish) == (text, "stop")


async def test_030_missing_schemas(going: Front) -> None:
    refused(await going.chat("go", response_format={"type": "json_schema"}), "response_format.json_schema")
    named = {"type": "json_schema", "json_schema": {"name": "n"}}
    refused(await going.chat("go", response_format=named), SCHEMA_PARAM)
    refused(await going.chat("go", response_format={"type": "json_schema", "json_schema": {"schema": {}}}),
            "response_format.json_schema.name")  # fmt: skip
    refused(await going.chat("go", response_format={}), "response_format.type")
    refused(await going.chat("go", response_format={"type": "xml"}), "response_format.type", "json_object")
    refused(await going.chat("go", response_format={"type": "text", "json_schema": {"name": "n", "schema": {}}}),
            "response_format.json_schema")  # fmt: skip
    refused(await going.chat("go", structured_outputs={}), "structured_outputs")
    refused(await going.chat("go", structured_outputs={"xml": 1}), "structured_outputs.xml")
    refused(await going.chat("go", guided_choice=[]), "guided_choice")
    refused(await going.chat("go", guided_choice=[1]), "guided_choice[0]")
    refused(await going.chat("go", guided_regex="("), "guided_regex", "unclosed")
    refused(await going.chat("go", guided_grammar="start: nothing"), "guided_grammar", "nothing")
    refused(await going.chat("go", structural_tag={"triggers": []}), "structural_tag")


async def test_031_references_that_lead_nowhere(going: Front) -> None:
    loop = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    refused(await going.chat("go", response_format=by_schema(loop)), SCHEMA_PARAM, "#/$defs/")
    refused(await going.chat("go", response_format=by_schema({"$ref": "#/anyOf/7"})), SCHEMA_PARAM, "/anyOf/7")


async def test_041_json_mode_keeps_white_space_short(make_front: MakeFront) -> None:
    front = await make_front({"when": spoken("blank"), "tokens": spoken("{" + " \n" * 100)})
    [choice] = told(await front.chat("blank", response_format={"type": "json_object"}, max_tokens=64)).values()
    assert choice.finish == "length"
    assert re.match(r"\{[ \n]{40}[^\s]", choice.text)


async def test_fields_that_exclude_each_other(going: Front) -> None:
    refused(await going.chat("go", guided_json=PERSON, guided_regex="a"), "guided_regex", "'guided_json'")
    refused(
        await going.chat("go", response_format={"type": "json_object"}, structured_outputs={"regex": "a"}),
        "structured_outputs.regex",
        "'response_format'",
    )
    refused(
        await going.chat("go", structured_outputs={"regex": "a", "choice": ["b"]}),
        "structured_outputs.choice",
        "'structured_outputs.regex'",
    )
    both = await going.chat("go", response_format={"type": "text"}, structured_outputs={"choice": ["yes"]})
    assert told(both)[0].text == "yes"


async def test_a_backend_without_masks_refuses_by_the_fields_name(make_front: MakeFront) -> None:
    front = await make_front(capabilities=Capabilities(masks=False))
    refused(await front.chat(response_format=by_schema(PERSON)), SCHEMA_PARAM, "backend")
    refused(await front.chat(guided_choice=["a"]), "guided_choice", "backend")
    assert (await front.chat(response_format={"type": "text"}, max_tokens=3)).status == 200


async def test_bans_that_leave_nothing_fail_that_request_alone(going: Front) -> None:
    answer, other = await asyncio.gather(
        going.chat("go", guided_choice=["yes"], allowed_token_ids=[ord("n")]), going.chat("go", max_tokens=60)
    )
    refused(answer, "guided_choice", "no token")
    assert told(other)[0].text == '{"name": "Bob", "age": 31}'


async def test_the_end_comes_before_min_tokens(going: Front) -> None:
    answer = await going.chat("go", guided_choice=["yes"], min_tokens=10, max_tokens=20)
    assert (told(answer)[0].text, told(answer)[0].finish) == ("yes", "stop")


async def test_stop_strings_and_ids_cut_as_ever(going: Front) -> None:
    cut = told(await going.chat("go", response_format=by_schema(PERSON), stop=["Bob"]))[0]
    assert (cut.text, cut.finish, cut.stop_reason) == ('{"name": "', "stop", "Bob")
    cut = told(await going.chat("go", response_format=by_schema(PERSON), stop_token_ids=[ord("b")]))[0]
    assert (cut.text, cut.stop_reason) == ('{"name": "Bo', ord("b"))


async def test_a_grammar_that_gives_out_midway_is_the_requests_own_fault(going: Front) -> None:
    # Each repetition doubles what the expression may be; that shows only as the text grows.
    costly = {"type": "string", "pattern": "^(([a-z]{1,40}){1,40}){1,40}$"}
    answer, other = await asyncio.gather(
        going.chat("go", guided_json=costly, max_tokens=300), going.chat("chatter", max_tokens=60)
    )
    if answer.status != 200:
        refused(answer, "guided_json", "grammar")
    assert told(other)[0].text.startswith("I would rather")


async def test_hostile_grammars_do_not_hold_up_the_loop(going: Front) -> None:
    hostile: list[dict[str, Any]] = [
        {"guided_json": {"enum": [f"value {n}" for n in range(9000)]}},
        {"guided_json": {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(1400)}}},
        {"guided_json": {"type": "integer", "multipleOf": 10007}},
        {"guided_json": {"allOf": [{"anyOf": [{"minLength": n}, {"maxLength": 99 + n}]} for n in range(24)]}},
        {"guided_regex": "((a{1,1000}){1,1000}){1,1000}"},
        {"guided_regex": "(" * 5000},
        {"guided_grammar": "start: " + "(" * 5000},
        {"guided_grammar": "root ::= " + "(" * 5000},
    ]
    longest = 0.0

    async def beat() -> None:
        nonlocal longest
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0.002)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now

    beating = asyncio.create_task(beat())
    answers = await asyncio.gather(*[going.chat("go", max_tokens=3, **fields) for fields in hostile])
    beating.cancel()
    assert {answer.status for answer in answers} <= {200, 400}
    assert longest < 0.5


async def test_32_schemas_at_once_and_a_plain_request_between(make_front: MakeFront) -> None:
    front = await make_front(
        {"when": spoken("bystander"), "tokens": spoken("Nothing of this concerns me.")},
        {"when": spoken("go"), "tokens": spoken("x")},
        max_num_seqs=40,
        num_blocks=600,
    )

    def schema(n: int) -> dict[str, Any]:
        return {"type": "object", "properties": {f"key{n}": {"const": n}}, "required": [f"key{n}"],
                "additionalProperties": False}  # fmt: skip

    asked = [front.chat("go", response_format=by_schema(schema(n)), max_tokens=300) for n in range(32)]
    *answers, plain = await asyncio.gather(*asked, front.chat("bystander", max_tokens=60))
    for n, answer in enumerate(answers):
        choice = told(answer)[0]
        if choice.finish == "stop":
            assert json.loads(choice.text) == {f"key{n}": n}
    assert any(told(answer)[0].finish == "stop" for answer in answers)
    assert told(plain)[0].text == "Nothing of this concerns me."
