"""Every declared field is honoured, refused by name, or documented to have no effect; there is no fourth kind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from tickertape.api.openai.refusals import CHAT_FIXED, COMPLETION_FIXED
from tickertape.api.openai.requests import ChatRequest, CompletionRequest
from tickertape.api.options import WireOptions
from tickertape.testing.front import Front, spoken
from tickertape.testing.openai_stream import told

Make = Callable[..., Awaitable[Front]]

NO_EFFECT: dict[str, Any] = {
    "user": "somebody",
    "metadata": {"a": "b"},
    "safety_identifier": "x",
    "prompt_cache_key": "x",
}
"""Accepted by name, documented in `requests.py`."""

REQUIRED = {"model", "messages", "prompt"}

# Field, its value, other fields needed, and what it changes in the answer to "go", which is "abcabcabc..." for ever.
LONG = {"max_tokens": 6}
TAG = {"triggers": ["a"], "structures": [{"begin": "ab", "schema": {"const": 1}, "end": "x"}]}
CHANGES: list[tuple[str, Any, dict[str, Any], str]] = [
    ("max_tokens", 4, {}, "abca"),
    ("stop", "ca", LONG, "ab"),
    ("stop", ["x", "bc"], LONG, "a"),
    ("include_stop_str_in_output", True, {**LONG, "stop": ["bc"]}, "abc"),
    ("stop_token_ids", [ord("c")], LONG, "ab"),
    ("min_tokens", 4, {**LONG, "stop": ["b"]}, "abca"),
    ("min_tokens", 4, {**LONG, "stop_token_ids": [ord("c")]}, "ab?"),
    ("logit_bias", {"122": 100}, LONG, "zzzzzz"),
    ("allowed_token_ids", [120], LONG, "xxxxxx"),
    ("bad_words", ["c"], LONG, "ab?"),
    ("guided_regex", "ab|x", LONG, "ab"),
    ("guided_choice", ["abca", "x"], LONG, "abca"),
    ("guided_grammar", 'start: "abc"', LONG, "abc"),
    ("guided_json", {"const": "ab"}, LONG, '"ab"'),
    ("structured_outputs", {"regex": "abc"}, LONG, "abc"),
    ("structured_outputs", {"json": '{"const": 12.5}'}, {"max_tokens": 4}, "12.5"),
    ("structured_outputs", {"choice": ["abcab"]}, LONG, "abcab"),
    ("structured_outputs", {"grammar": 'root ::= "abc" "a"?'}, LONG, "abca"),
    ("structured_outputs", {"structural_tag": TAG}, LONG, "ab1xbc"),
    ("structural_tag", TAG, LONG, "ab1xbc"),
    ("response_format", {"type": "structural_tag", **TAG}, LONG, "ab1xbc"),
    ("response_format", {"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": 1}}}, LONG, "1"),
]

# Fields that reach the sampler as they are; that it honours them is the sampler's own tests' to show.
PASSED = {
    "frequency_penalty": 0.5,
    "presence_penalty": 0.5,
    "repetition_penalty": 1.5,
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 5,
    "min_p": 0.1,
    "seed": 12345,
}

# Each has a test of its own, here or elsewhere.
ELSEWHERE = {
    "logits_processors",  # tests/plugins/test_hooks.py
    "n", "best_of", "stream", "stream_options", "logprobs", "top_logprobs", "prompt_logprobs", "return_token_ids",
    "return_tokens_as_token_ids",
    "echo", "max_completion_tokens", "ignore_eos", "skip_special_tokens", "truncate_prompt_tokens", "cache_salt",
    "tools", "tool_choice", "parallel_tool_calls",  # test_tools.py
    "reasoning_effort", "include_reasoning", "thinking_token_budget",  # test_reasoning.py
    "chat_template",  # test_isolated_renders.py
    "priority", "add_special_tokens", "add_generation_prompt", "continue_final_message", "chat_template_kwargs",
}  # fmt: skip


@pytest.fixture
async def go(make_front: Make) -> Front:
    return await make_front({"when": spoken("go"), "tokens": spoken("abc"), "then": "repeat"})


def test_every_field_is_of_one_kind() -> None:
    for model, fixed in ((ChatRequest, CHAT_FIXED), (CompletionRequest, COMPLETION_FIXED)):
        kinds = [REQUIRED, set(NO_EFFECT), set(fixed), set(PASSED), ELSEWHERE, {name for name, *_ in CHANGES}]
        for name in model.model_fields:
            assert sum(name in kind for kind in kinds) == 1, name
        assert set(fixed) <= set(model.model_fields)


def test_every_field_of_openai_is_declared() -> None:
    chat = set(chat_create_params.CompletionCreateParamsBase.__annotations__)
    assert chat <= set(ChatRequest.model_fields)
    assert set(completion_create_params.CompletionCreateParamsBase.__annotations__) <= set(
        CompletionRequest.model_fields
    )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("field", "value", "others", "text"), CHANGES)
async def test_fields_that_change_the_text(
    go: Front, field: str, value: Any, others: dict[str, Any], text: str, stream: bool
) -> None:
    for ask in (go.chat, go.complete):
        found = told(await ask("go", stream=stream, **others, **{field: value}))[0].text
        if text.endswith("?"):
            assert found.startswith(text[:-1])
            assert "c" not in found
            assert len(found) >= 4
        else:
            assert found == text
        assert told(await ask("go", **{"max_tokens": 6, **others}))[0].text != found


@pytest.mark.parametrize(("field", "value"), PASSED.items())
async def test_fields_that_the_sampler_honours(go: Front, field: str, value: Any) -> None:
    for ask in (go.chat, go.complete):
        go.batches.clear()
        assert (await ask("go", max_tokens=2, **{field: value})).status == 200
        [sampling] = [opened.sampling for batch in go.batches for opened in batch.opened]
        assert getattr(sampling, field) == value


@pytest.mark.parametrize(("field", "value"), NO_EFFECT.items())
async def test_fields_without_effect_are_accepted(go: Front, field: str, value: Any) -> None:
    assert (await go.chat("go", max_tokens=1, **{field: value})).status == 200
    if field in CompletionRequest.model_fields:
        assert (await go.complete("go", max_tokens=1, **{field: value})).status == 200
    wrong = await go.chat("go", **{field: 5})
    assert (wrong.status, wrong.json()["error"]["param"]) == (400, field)


UNHONOURED: dict[str, list[Any]] = {
    "service_tier": ["flex", "priority"],
    "store": [True],
    "functions": [[{"name": "f"}]],
    "function_call": ["auto"],
    "modalities": [["text", "audio"], ["audio"]],
    "verbosity": ["high"],
    "prompt_cache_retention": ["24h"],
    "documents": [[{"text": "a"}]],
}


async def test_fields_that_are_refused_by_name(go: Front) -> None:
    for ask, fixed in ((go.chat, CHAT_FIXED), (go.complete, COMPLETION_FIXED)):
        for field, taken in fixed.items():
            for value in [*UNHONOURED.get(field, []), {"some": "thing"}, "text", 0]:
                for stream in (False, True):
                    answer = await ask("go", stream=stream, **{field: value})
                    assert answer.status == 400, (field, value)
                    error = answer.json()["error"]
                    assert (error["param"], error["code"]) == (field, "unsupported_value")
            for value in (*taken, None):
                answer = await ask("go", max_tokens=4, **{field: value})
                assert told(answer)[0].text == "abca", (field, value)


async def test_lenient_serves_and_lists_what_it_ignored(make_front: Make) -> None:
    front = await make_front(options=WireOptions(lenient=True))
    answer = await front.chat(verbosity="high", nonsense=1, temperature=0, stream=True)
    assert told(answer)[0].text
    assert answer.headers["x-tickertape-ignored"] == "verbosity, nonsense"
    assert "x-tickertape-ignored" not in (await front.chat(temperature=0)).headers
    assert (await front.chat(temperature=-1)).status == 400
    hostile = await front.chat(**{"a\r\nset-cookie: x": 1, "é": 2})
    assert hostile.headers["x-tickertape-ignored"] == "?, ?"
    many = await front.chat(**{f"f{n}": n for n in range(100)})
    assert many.headers["x-tickertape-ignored"].endswith("f31, ...")


async def test_n_and_seed(make_front: Make) -> None:
    front = await make_front(
        {"when": spoken("go"), "alternatives": [spoken("a"), spoken("b"), spoken("c"), spoken("d")]}
    )
    texts = [choice.text for choice in told(await front.chat("go", n=4, seed=4)).values()]
    assert texts == ["a", "b", "c", "d"]
    again = [choice.text for choice in told(await front.chat("go", n=4, seed=4)).values()]
    assert again == texts
    assert told(await front.chat("go", seed=-1))[0].text == "d"  # modulo 2**64
    assert told(await front.chat("go", seed=0))[0].text == "a"
    front.batches.clear()
    await front.chat("go", n=4)
    await front.chat("go")
    seeds = [opened.sampling.seed for batch in front.batches for opened in batch.opened]
    assert len(set(seeds)) == 5


async def test_best_of_hands_out_the_likeliest(make_front: Make) -> None:
    # The scripted backend gives id 7919 * i mod 97 ... other values to what it does not play; a played id has 8.0.
    front = await make_front({"when": spoken("go"), "alternatives": [spoken("abcd"), spoken("ef")]})
    answer = await front.complete("go", best_of=6, n=2, seed=0, logprobs=0, max_tokens=4)
    whole = told(answer)
    assert sorted(whole) == [0, 1]
    assert answer.json()["usage"]["completion_tokens"] > 2 * 4  # all six were generated
    means = [
        sum(choice.logprobs[0]["token_logprobs"]) / len(choice.logprobs[0]["token_logprobs"])
        for choice in whole.values()
    ]
    assert means == sorted(means, reverse=True)
    all_of_them = told(await front.complete("go", n=6, seed=0, logprobs=0, max_tokens=4))
    best = max(
        sum(choice.logprobs[0]["token_logprobs"]) / len(choice.logprobs[0]["token_logprobs"])
        for choice in all_of_them.values()
    )
    assert means[0] == pytest.approx(best, abs=0.02)
    hidden = await front.complete("go", best_of=2, seed=0, max_tokens=4)
    assert hidden.json()["choices"][0]["logprobs"] is None


async def test_ignore_eos_and_skip_special_tokens(make_front: Make) -> None:
    front = await make_front({"when": spoken("go"), "tokens": spoken("ab")})
    plain = await front.chat("go", ignore_eos=True, max_tokens=4)
    assert told(plain)[0].text == "ab"  # the end token is special and not shown
    assert told(plain)[0].finish == "length"
    shown = await front.chat("go", ignore_eos=True, max_tokens=3, skip_special_tokens=False)
    assert told(shown)[0].text == "ab<|im_end|>"


async def test_truncate_prompt_tokens(make_front: Make) -> None:
    front = await make_front(max_model_len=64)
    cut = (await front.complete("x" * 100, truncate_prompt_tokens=10, return_token_ids=True)).json()
    assert cut["choices"][0]["prompt_token_ids"] == spoken("x" * 10)
    assert cut["usage"]["prompt_tokens"] == 10
    all_that_fits = (await front.complete("x" * 100, truncate_prompt_tokens=-1, max_tokens=14)).json()
    assert all_that_fits["usage"]["prompt_tokens"] == 50
    assert (await front.complete("abc", truncate_prompt_tokens=10)).json()["usage"]["prompt_tokens"] == 3


async def test_cache_salt_keeps_prompts_apart(make_front: Make) -> None:
    front = await make_front()
    prompt = "p" * 64

    async def cached(**fields: Any) -> int:
        usage = (await front.complete(prompt, max_tokens=1, **fields)).json()["usage"]
        found: int = usage["prompt_tokens_details"]["cached_tokens"]
        return found

    assert await cached() == 0
    assert await cached() == 48
    assert await cached(cache_salt="a") == 0
    assert await cached(cache_salt="a") == 48
    assert await cached(cache_salt="b") == 0


async def test_priority_needs_its_policy(make_front: Make) -> None:
    plain = await make_front()
    refused = await plain.chat(priority=3)
    assert (refused.status, refused.json()["error"]["param"]) == (400, "priority")
    assert (await plain.chat(priority=0)).status == 200
    front = await make_front(policy="priority")
    assert (await front.chat(priority=3)).status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_final_message_is_continued_and_echoed_once(make_front: Make, stream: bool) -> None:
    front = await make_front({"when": spoken("Paris is"), "tokens": spoken(" big")})
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "Paris is"}]
    fields = {"continue_final_message": True, "stream": stream, "return_token_ids": True}
    answer = await front.chat(messages, **fields)
    assert told(answer)[0].text == " big"
    assert told(await front.chat(messages, echo=True, **fields))[0].text == "Paris is big"
    whole = await front.chat(messages, continue_final_message=True, return_token_ids=True)
    prompt = front.tokenizer.decode(whole.json()["prompt_token_ids"], skip_special_tokens=False)
    assert prompt.endswith("Paris is")


async def test_template_variables_and_generation_prompt(make_front: Make) -> None:
    template = "{{ mood }}:{{ messages[0].content }}{% if add_generation_prompt %}>{% endif %}"
    front = await make_front(template=template)

    async def prompt(**fields: Any) -> str:
        answer = await front.chat("q", return_token_ids=True, **fields)
        return front.tokenizer.decode(answer.json()["prompt_token_ids"], skip_special_tokens=False)

    assert await prompt(chat_template_kwargs={"mood": "glad"}) == "glad:q>"
    assert await prompt(add_generation_prompt=False) == ":q"


async def test_add_special_tokens(make_front: Make) -> None:
    front = await make_front(sentencepiece=True)

    async def prompt(text: str, **fields: Any) -> list[int]:
        answer = await front.complete(text, return_token_ids=True, **fields)
        found: list[int] = answer.json()["choices"][0]["prompt_token_ids"]
        return found

    assert (await prompt("a"))[0] == 1
    assert (await prompt("<s>a")).count(1) == 1  # written out: not added again
    assert 1 not in await prompt("a", add_special_tokens=False)
    refused = await front.chat(add_special_tokens=True)
    assert (refused.status, refused.json()["error"]["param"]) == (400, "add_special_tokens")
