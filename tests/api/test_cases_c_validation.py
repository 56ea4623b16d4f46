"""Topic c of the case list: a bad request costs its sender a 400 that names the field, and nobody anything else."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from tickertape.testing import templates
from tickertape.testing.asgi import Answer
from tickertape.testing.front import PLAIN_TEXT, Front, spoken
from tickertape.testing.openai_stream import told

Make = Callable[..., Awaitable[Front]]


def refused(answer: Answer, param: str | None, code: str | None = None, status: int = 400) -> str:
    """The message of a refusal, which has the right shape and shows nothing of the server's inside."""
    assert answer.status == status, answer.body
    assert answer.headers["content-type"] == "application/json"
    [(key, error)] = answer.json().items()
    assert key == "error"
    assert list(error) == ["message", "type", "param", "code"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert isinstance(error["code"], str)
    assert code in (None, error["code"])
    message: str = error["message"]
    for leak in ("Traceback", "pydantic", "/work", ".py", "Iterator", "object at 0x", "\n"):
        assert leak not in message
    return message


@pytest.mark.parametrize("key", ["999999999", "-1", "abc", "1.5", "", "٣", "512", "1e3"])
async def test_case_043_logit_bias_ids(make_front: Make, key: str) -> None:
    front = await make_front()
    refused(await front.chat(logit_bias={key: 5}), "logit_bias", "invalid_value")
    refused(await front.complete(logit_bias={key: 5}), "logit_bias", "invalid_value")


async def test_case_043_a_good_logit_bias_acts(make_front: Make) -> None:
    front = await make_front({"when": spoken("go"), "tokens": spoken("abc")})
    answer = told(await front.chat("go", logit_bias={str(ord("Z")): 100}, max_tokens=3, temperature=0))
    assert answer[0].text == "ZZZ"


@pytest.mark.parametrize("top", [21, 1_000_000, -1])
async def test_case_046_top_logprobs(make_front: Make, top: int) -> None:
    front = await make_front()
    refused(await front.chat(logprobs=True, top_logprobs=top), "top_logprobs")
    refused(await front.complete(logprobs=top), "logprobs")


async def test_case_046_top_logprobs_need_logprobs(make_front: Make) -> None:
    front = await make_front()
    refused(await front.chat(top_logprobs=2), "top_logprobs")
    refused(await front.chat(top_logprobs=2, logprobs=False), "top_logprobs")
    refused(await front.complete(logprobs=True), "logprobs", "invalid_type")
    assert (await front.chat(logprobs=True, top_logprobs=20)).status == 200


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ([5279552648203111001], "prompt"),
        ([-1], "prompt"),
        ([512], "prompt"),
        ([[1, 2], [3, "x"]], "prompt[1][1]"),
        ([1.5], "prompt[0]"),
        ([[]], "prompt"),
        ([True], "prompt[0]"),
        (["a", [1]], "prompt[1]"),
        ({"a": 1}, "prompt"),
        (None, "prompt"),
        (7, "prompt"),
    ],
)
async def test_case_047_prompts_of_token_ids(make_front: Make, prompt: Any, param: str) -> None:
    front = await make_front()
    refused(await front.complete(prompt), param)


async def test_case_047_the_last_id_of_the_vocabulary(make_front: Make) -> None:
    front = await make_front()
    assert told(await front.complete([511]))[0].text == PLAIN_TEXT


@pytest.mark.parametrize("prompt", ["", [""], []])
async def test_case_048_empty_prompts(make_front: Make, prompt: Any) -> None:
    front = await make_front()
    refused(await front.complete(prompt), "prompt")
    refused(await front.complete(prompt, stream=True), "prompt")


async def test_case_048_an_empty_prompt_has_a_bos(make_front: Make) -> None:
    front = await make_front(sentencepiece=True)
    assert (await front.complete("", max_tokens=40)).status == 200


async def test_case_048_a_template_that_renders_nothing(make_front: Make) -> None:
    front = await make_front(template="{% if false %}{% endif %}")
    refused(await front.chat(""), "messages")
    refused(await front.chat([]), "messages")


async def test_case_049_scoring_a_prompt(make_front: Make) -> None:
    front = await make_front()
    answer = await front.complete("score me", echo=True, max_tokens=0, logprobs=1)
    choice = told(answer)[0]
    assert (choice.text, choice.finish) == ("score me", "length")
    assert answer.json()["usage"]["completion_tokens"] == 0
    [logprobs] = choice.logprobs
    assert logprobs["token_logprobs"][0] is None
    assert all(isinstance(value, float) for value in logprobs["token_logprobs"][1:])
    streamed = told(await front.complete("score me", echo=True, max_tokens=0, logprobs=1, stream=True))[0]
    assert (streamed.text, streamed.finish, streamed.logprobs) == ("score me", "length", [logprobs])
    refused(await front.complete(max_tokens=0, logprobs=1), "max_tokens")
    refused(await front.chat(max_tokens=0), "max_tokens")
    refused(await front.chat(max_completion_tokens=0), "max_completion_tokens")
    for wrong in (-1, 10**12, 1.5, "5", True):
        refused(await front.complete(echo=True, max_tokens=wrong), "max_tokens")


@pytest.mark.parametrize(
    ("stop", "param"),
    [
        ([""], "stop"),
        ("", "stop"),
        (["", "x"], "stop"),
        ([None], "stop[0]"),
        ([f"s{n}" for n in range(1000)], "stop"),
        ("x" * 1_000_000, "stop"),
        (5, "stop"),
    ],
)
async def test_case_050_stop(make_front: Make, stop: Any, param: str) -> None:
    front = await make_front()
    refused(await front.chat(stop=stop), param)
    refused(await front.complete(stop=stop), param)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1),
        ("temperature", "hot"),
        ("temperature", 2.1),
        ("top_p", 0),
        ("top_p", 1.5),
        ("n", 0),
        ("n", -1),
        ("n", 10**6),
        ("n", 1.5),
        ("frequency_penalty", 99),
        ("presence_penalty", -2.5),
        ("min_p", 2),
        ("top_k", -2),
        ("seed", 2**64),
        ("seed", -(2**63) - 1),
        ("seed", 1.5),
        ("min_tokens", -1),
        ("max_tokens", -5),
        ("stream_options", {"include_usage": True}),
        ("stream", "yes"),
        ("user", 5),
        ("truncate_prompt_tokens", 0),
        ("truncate_prompt_tokens", -2),
        ("cache_salt", ""),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [512]),
        ("stop_token_ids", [-1]),
        ("bad_words", [""]),
        ("priority", 1),
        ("prompt_logprobs", -1),
        ("nonsense", 1),
        ("top_K", 1),
    ],
)
async def test_case_052_faults_name_their_field(make_front: Make, field: str, value: Any) -> None:
    front = await make_front()
    refused(await front.chat(**{field: value}), field)
    refused(await front.complete(**{field: value}), field)


async def test_case_052_nan_and_infinity(make_front: Make) -> None:
    front = await make_front()
    for number in ("NaN", "Infinity", "-Infinity", "1e999"):
        body = b'{"model":"scripted","prompt":"a","temperature":%b}' % number.encode()
        refused(await front.client.post("/v1/completions", body=body), None, "invalid_json")


async def test_case_052_fields_that_contradict_each_other(make_front: Make) -> None:
    front = await make_front()
    refused(await front.complete(n=3, best_of=2), "best_of")
    refused(await front.complete(best_of=2, stream=True), "best_of")
    refused(await front.chat(max_tokens=5, max_completion_tokens=6), "max_tokens")
    refused(await front.chat(max_tokens=5, min_tokens=6), "min_tokens")
    refused(await front.chat(stream=True, stream_options={"include": True}), "stream_options.include")
    refused(await front.chat(continue_final_message=True, add_generation_prompt=True), "add_generation_prompt")
    refused(await front.chat(echo=True), "echo")


@pytest.mark.parametrize("stream", [False, True])
async def test_cases_053_054_prompts_beyond_the_context(make_front: Make, stream: bool) -> None:
    front = await make_front(max_model_len=128)
    for length in (138, 128):
        message = refused(await front.complete([65] * length, stream=stream), "prompt", "context_length_exceeded")
        assert "128" in message
        assert str(length) in message
    fitting = told(await front.complete([65] * 127, stream=stream, max_tokens=1))[0]
    assert (fitting.finish, len(fitting.text)) == ("length", 1)
    answer = await front.chat("x" * 200, stream=stream)
    assert "128" in refused(answer, "messages", "context_length_exceeded")


async def test_case_053_a_text_far_beyond_the_context_is_not_tokenized(make_front: Make) -> None:
    front = await make_front(max_model_len=128)
    message = refused(await front.complete("word " * 200_000), "prompt", "context_length_exceeded")
    assert "more than" in message


async def test_case_055_prompt_and_max_tokens_over_the_context(make_front: Make) -> None:
    front = await make_front({"when": [65] * 5, "tokens": [66], "then": "repeat"}, max_model_len=128)
    message = refused(await front.complete([65] * 100, max_tokens=29), "prompt", "context_length_exceeded")
    assert all(number in message for number in ("128", "129", "100", "29"))
    assert told(await front.complete([65] * 100, max_tokens=28))[0].finish == "length"
    chat = await front.chat("A" * 50)  # max_tokens absent: what the context leaves
    usage = chat.json()["usage"]
    assert told(chat)[0].finish == "length"
    assert usage["total_tokens"] == 128


async def test_case_055_more_kv_blocks_than_the_pool_has(make_front: Make) -> None:
    front = await make_front(num_blocks=9, max_model_len=512)  # 8 blocks of 16 and the null block
    refused(await front.complete([65] * 200, max_tokens=1), "prompt", "context_length_exceeded")
    message = refused(await front.complete([65] * 100, max_tokens=100), "prompt", "context_length_exceeded")
    assert "128" in message


CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}


@pytest.mark.parametrize("content", [{"content": None}, {}, {"content": ""}])
@pytest.mark.parametrize("template", [templates.ITERATES_ARGUMENTS, templates.CONCATENATES_ARGUMENTS])
async def test_case_056_tool_calls_without_content(make_front: Make, content: dict[str, Any], template: str) -> None:
    front = await make_front(template=template)
    history = [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", **content, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]
    answer = await front.chat(history, return_token_ids=True)
    assert answer.status == 200, answer.body
    prompt = front.tokenizer.decode(answer.json()["prompt_token_ids"], skip_special_tokens=False)
    assert "<call weather>" in prompt
    assert "Oslo" in prompt
    assert prompt.index("Oslo") < prompt.index("rain")


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool", "developer"])
async def test_case_057_parts_are_joined_on_every_role(make_front: Make, role: str) -> None:
    front = await make_front()
    extra = {"tool_call_id": "call_1"} if role == "tool" else {}
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": role, "content": parts, **extra}, {"role": "user", "content": "now"}]
    answer = await front.chat(messages, return_token_ids=True)
    shown = front.tokenizer.decode(answer.json()["prompt_token_ids"], skip_special_tokens=False)
    assert f"<|im_start|>{'system' if role == 'developer' else role}\nab<|im_end|>" in shown


async def test_case_057_parts_that_are_no_text(make_front: Make) -> None:
    front = await make_front()
    empty = [{"role": "user", "content": "x"}, {"role": "assistant", "content": [], "tool_calls": [CALL]}]
    assert (await front.chat(empty)).status == 200
    image = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/x.png"}}
    text = {"type": "text", "text": "a"}
    for part in (image, {"type": "input_audio", "input_audio": {}}, {"type": "novel"}, {"text": "a"}):
        message = refused(
            await front.chat([{"role": "user", "content": [text, part]}]),
            "messages[0].content[1]",
            "unsupported_value",
        )
        assert str(part.get("type", "without a type")) in message
    refused(await front.chat([{"role": "user", "content": [text, "b"]}]), "messages[0].content[1]", "invalid_type")
    wrong = {"type": "text", "text": 5}
    refused(await front.chat([{"role": "user", "content": [wrong]}]), "messages[0].content[0].text", "invalid_type")


@pytest.mark.parametrize(
    ("message", "param", "code"),
    [
        ({"content": "a"}, "messages[0].role", "missing_required_parameter"),
        ({"role": "wizard", "content": "a"}, "messages[0].role", "unsupported_value"),
        ({"role": "user"}, "messages[0].content", "missing_required_parameter"),
        ({"role": "user", "content": 5}, "messages[0].content", "invalid_type"),
        ({"role": "user", "content": None}, "messages[0].content", "invalid_type"),
        ({"role": "user", "content": "a", "colour": 1}, "messages[0].colour", "unknown_parameter"),
        ({"role": "tool", "content": "a"}, "messages[0].tool_call_id", "missing_required_parameter"),
        ({"role": "user", "content": "a", "tool_calls": []}, "messages[0].tool_calls", "unknown_parameter"),
        ("hello", "messages[0].role", None),
    ],
)
async def test_case_057_messages_are_closed(make_front: Make, message: Any, param: str, code: str | None) -> None:
    front = await make_front()
    answer = await front.chat([message])
    if message == "hello":
        param = "messages[0]"
    refused(answer, param, code)


async def test_case_059_max_tokens_left_out(make_front: Make) -> None:
    front = await make_front({"when": [65] * 5, "tokens": [66], "then": "repeat"}, max_model_len=128)
    for fields in ({}, {"max_tokens": None}):
        assert len(told(await front.complete([65] * 5, **fields))[0].text) == 16
        assert (await front.chat("A" * 20, **fields)).json()["usage"]["total_tokens"] == 128
    assert (await front.chat("A" * 20, max_completion_tokens=7)).json()["usage"]["completion_tokens"] == 7
    last = await front.complete([65] * 127)
    assert told(last)[0].finish == "length"
    assert last.json()["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        (None, 415),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("application/vnd.api+json", 415),
        ("application/json; charset=latin1", 200),
        ("application/json;charset=utf-8", 200),
        ("Application/JSON", 200),
    ],
)
async def test_case_061_content_types(make_front: Make, content_type: str | None, status: int) -> None:
    front = await make_front()
    headers = {} if content_type is None else {"content-type": content_type}
    answer = await front.client.post("/v1/chat/completions", front.chat_body(), headers=headers)
    if status == 200:
        assert answer.status == 200
    else:
        refused(answer, None, "unsupported_media_type", status)


@pytest.mark.parametrize(
    "body",
    [b"", b"not json", b"[]", b"5", b"null", b'"text"', b"{", b"\xff\xfe", b'{"a": "\\ud800"}', b"[" * 100_000],
)
async def test_case_061_bodies_that_are_no_object(make_front: Make, body: bytes) -> None:
    front = await make_front()
    refused(await front.client.post("/v1/chat/completions", body=body), None, "invalid_json")


async def test_case_061_compressed_and_deep_and_large_bodies(make_front: Make) -> None:
    from tickertape.api.options import WireOptions

    front = await make_front(options=WireOptions(max_body_bytes=10_000))
    packed = {"content-type": "application/json", "content-encoding": "gzip"}
    answer = await front.client.post("/v1/completions", body=b"\x1f\x8b", headers=packed)
    refused(answer, None, "unsupported_media_type", 415)
    deep = {"model": "scripted", "prompt": "a", "metadata": {}}
    for _ in range(100):
        deep = {"metadata": deep}
    refused(await front.client.post("/v1/completions", deep), None, "invalid_json")
    refused(await front.complete("a" * 10_000), None, "request_too_large", 413)


async def test_case_064_whole_answers_have_every_key(make_front: Make) -> None:
    from openai.types import Completion
    from openai.types.chat import ChatCompletion

    front = await make_front()
    chat, completion = (await front.chat(logprobs=True)).json(), (await front.complete(logprobs=1)).json()
    ChatCompletion.model_validate(chat, strict=True)
    Completion.model_validate(completion, strict=True)
    for answer in (chat, completion):
        usage = answer["usage"]
        assert usage["prompt_tokens"] + usage["completion_tokens"] == usage["total_tokens"]
        assert usage["completion_tokens"] > 0
        assert answer["choices"][0]["index"] == 0
        assert answer["choices"][0]["finish_reason"] == "stop"


async def test_an_unknown_model(make_front: Make) -> None:
    front = await make_front()
    for stream in (False, True):
        refused(await front.chat(model="other", stream=stream), "model", "model_not_found", 404)
    refused(await front.client.get("/v1/models/other"), "model", "model_not_found", 404)
    missing = {"messages": [{"role": "user", "content": "a"}]}
    refused(await front.client.post("/v1/chat/completions", missing), "model", "missing_required_parameter")


async def test_routes_and_methods(make_front: Make) -> None:
    front = await make_front()
    refused(await front.client.get("/v1/nothing"), None, "not_found", 404)
    refused(await front.client.get("/v1/chat/completions"), None, "method_not_allowed", 405)
    assert (await front.client.get("/v1/chat/completions")).headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("body", "param", "code", "status"),
    [
        ({"prompt": [1] * 200_000}, "prompt", "context_length_exceeded", 400),
        ({"prompt": ["a"] * 200_000}, "prompt", "invalid_value", 400),
        ({"allowed_token_ids": [1] * 1_100_000}, "allowed_token_ids", "invalid_value", 400),
        ({"allowed_token_ids": ["a"] * 100_000}, "allowed_token_ids[0]", "invalid_type", 400),
        ({"stop": [1] * 200_000}, "stop[0]", "invalid_type", 400),
        ({f"x{n}": 1 for n in range(50_000)}, "x0", "unknown_parameter", 400),
        ({"logit_bias": {str(n): 1 for n in range(500_000)}}, "logit_bias", "invalid_value", 400),
        ({"prompt": [[]] * 100_000}, "prompt", "invalid_value", 400),
        ({"prompt": ["a"] * 300_000}, "prompt", "invalid_value", 400),
    ],
    ids=["ids", "texts", "allowed", "allowed texts", "stops", "unknown", "bias", "arrays", "strings"],
)
async def test_a_body_of_many_parts_is_refused_before_these_are_looked_at(
    make_front: Make, body: dict[str, Any], param: str | None, code: str, status: int
) -> None:
    front = await make_front()
    encoded = msgspec.json.encode({"model": "scripted", "prompt": "go", **body})
    started = time.thread_time()
    answer = await front.client.post("/v1/completions", body=encoded, headers={"content-type": "application/json"})
    spent_s = time.thread_time() - started
    refused(answer, param, code, status)
    assert spent_s < 0.5  # far more without the checks: 4 s for the texts among ids


async def test_punctuation_in_a_text_is_no_part_of_the_body(make_front: Make) -> None:
    front = await make_front()
    text = '"\\:[{' * 300_000
    answer = await front.client.post("/v1/completions", {"model": "scripted", "prompt": text})
    refused(answer, "prompt", "context_length_exceeded")


@pytest.mark.parametrize("value", [-1, 2**31, 10**400])
async def test_the_field_that_was_sent_is_named(make_front: Make, value: int) -> None:
    front = await make_front()
    for field in ("max_tokens", "max_completion_tokens"):
        assert len(refused(await front.chat(**{field: value}), field, "invalid_value")) < 200
    assert len(refused(await front.complete(n=value, best_of=value), "n", "invalid_value")) < 200
    assert len(refused(await front.complete(prompt=[value]), "prompt")) < 200


@pytest.mark.parametrize(
    ("prompt", "param"),
    [(["a", 1], "prompt[1]"), ([1, "a"], "prompt[1]"), ([[1], "a"], "prompt[1]"), ([[1], [2, "a"]], "prompt[1][1]")],
)
async def test_the_item_that_is_wrong_is_named(make_front: Make, prompt: list[Any], param: str) -> None:
    front = await make_front()
    assert param in refused(await front.complete(prompt=prompt), param, "invalid_type")


@pytest.mark.parametrize("text", [rb"\ud800", rb"a\uDFFFb", rb"\ud83dx"])
async def test_half_a_surrogate_pair_is_called_so(make_front: Make, text: bytes) -> None:
    front = await make_front()
    body = b'{"model": "scripted", "prompt": "' + text + b'"}'
    assert "half of a surrogate pair" in refused(
        await front.client.post("/v1/completions", body=body, headers={"content-type": "application/json"}),
        None,
        "invalid_json",
    )
