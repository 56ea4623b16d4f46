"""The bytes of streams and answers, key by key and in order."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tickertape.testing import templates
from tickertape.testing.asgi import Answer
from tickertape.testing.front import Front, spoken
from tickertape.testing.openai_stream import told

Make = Callable[..., Awaitable[Front]]


def normal(answer: Answer) -> str:
    """The body with its id and its time, which must be the same throughout, as ID and 0."""
    assert answer.status == 200, answer.body
    text = answer.body.decode()
    ids = set(re.findall(r'"id":"((?:chatcmpl|cmpl)-[0-9a-f]{32})"', text))
    times = set(re.findall(r'"created":(\d{10})', text))
    assert len(ids) == len(times) == 1
    return text.replace(ids.pop(), "ID").replace(times.pop(), "0")


CHAT = '{"id":"ID","object":"chat.completion.chunk","created":0,"model":"scripted","system_fingerprint":"fp_scripted",'
TEXT = '{"id":"ID","object":"text_completion","created":0,"model":"scripted","system_fingerprint":"fp_scripted",'
ROLE = (
    '"choices":[{"index":%d,"delta":{"role":"assistant","content":"","refusal":null},'
    '"logprobs":null,"finish_reason":null}]'
)
PIECE = '"choices":[{"index":%d,"delta":{"content":%s},"logprobs":null,"finish_reason":null}]'
FINISH = '"choices":[{"index":%d,"delta":{},"logprobs":null,"finish_reason":"%s","stop_reason":%s}]'


def usage(prompt: int, completion: int, cached: int = 0) -> str:
    return (
        f'"usage":{{"prompt_tokens":{prompt},"completion_tokens":{completion},"total_tokens":{prompt + completion},'
        f'"prompt_tokens_details":{{"cached_tokens":{cached}}},'
        '"completion_tokens_details":{"reasoning_tokens":0}}'
    )


def stream(head: str, *rest: str) -> str:
    return "".join(f"data: {head}{each}}}\n\n" for each in rest) + "data: [DONE]\n\n"


@pytest.fixture
async def hi(make_front: Make) -> Front:
    return await make_front({"when": spoken("hi"), "tokens": spoken('h"\né')})


async def test_a_chat_stream(hi: Front) -> None:
    expected = stream(
        CHAT, ROLE % 0, PIECE % (0, '"h"'), PIECE % (0, '"\\""'), PIECE % (0, '"\\n"'), PIECE % (0, '"é"'),
        FINISH % (0, "stop", "null"),
    )  # fmt: skip
    assert normal(await hi.chat("hi", stream=True)) == expected


async def test_a_chat_stream_with_usage(hi: Front) -> None:
    null = ',"usage":null'
    expected = stream(
        CHAT, ROLE % 0 + null, PIECE % (0, '"h"') + null, FINISH % (0, "length", "null") + null,
        '"choices":[],' + usage(21, 1),
    )  # fmt: skip
    options = {"include_usage": True}
    assert normal(await hi.chat("hi", stream=True, max_tokens=1, stream_options=options)) == expected


async def test_a_chat_stream_with_the_usage_so_far(hi: Front) -> None:
    expected = stream(
        CHAT, f"{ROLE % 0},{usage(21, 0)}", f"{PIECE % (0, chr(34) + 'h' + chr(34))},{usage(21, 1)}",
        f"{FINISH % (0, 'length', 'null')},{usage(21, 1)}",
    )  # fmt: skip
    options = {"continuous_usage_stats": True}
    assert normal(await hi.chat("hi", stream=True, max_tokens=1, stream_options=options)) == expected


async def test_a_chat_stream_with_a_stop_string(hi: Front) -> None:
    expected = stream(CHAT, ROLE % 0, PIECE % (0, '"h"'), FINISH % (0, "stop", '"\\"\\n"'))
    assert normal(await hi.chat("hi", stream=True, stop='"\n')) == expected


async def test_obfuscation_hides_the_length_of_the_text(hi: Front) -> None:
    answer = await hi.chat("hi", stream=True, stream_options={"include_obfuscation": True, "include_usage": True})
    chunks = answer.chunks
    assert list(chunks[1])[-2:] == ["usage", "obfuscation"]
    sizes = [
        len(json.dumps(chunk["choices"][0]["delta"]["content"], ensure_ascii=False).encode())
        + len(chunk["obfuscation"])
        for chunk in chunks[1:-2]
    ]
    assert set(sizes) == {32}
    assert "obfuscation" not in (await hi.chat("hi", stream=True)).body.decode()


async def test_one_role_chunk_per_choice(hi: Front) -> None:
    text = normal(await hi.chat("hi", stream=True, n=2, max_tokens=1))
    events = [event.removeprefix("data: ") for event in text.split("\n\n")]
    assert events[0] == CHAT + ROLE % 0 + "}"
    assert events[1] == CHAT + ROLE % 1 + "}"
    assert len(events) == 2 + 2 + 2 + 1 + 1


async def test_logprobs_of_a_chat_stream(hi: Front) -> None:
    answer = await hi.chat("hi", stream=True, logprobs=True, top_logprobs=1, max_tokens=1)
    [choice] = answer.chunks[1]["choices"]
    [entry] = choice["logprobs"]["content"]
    assert list(choice["logprobs"]) == ["content", "refusal"]
    assert list(entry) == ["token", "logprob", "bytes", "top_logprobs"]
    assert (entry["token"], entry["bytes"]) == ("h", [104])
    assert entry["top_logprobs"] == [{key: entry[key] for key in ("token", "logprob", "bytes")}]


async def test_a_whole_chat(hi: Front) -> None:
    assert normal(await hi.chat("hi")) == (
        '{"id":"ID","object":"chat.completion","created":0,"model":"scripted","choices":[{"index":0,"message":'
        '{"role":"assistant","content":"h\\"\\né","refusal":null},"logprobs":null,"finish_reason":"stop",'
        '"stop_reason":null}],' + usage(21, 6) + ',"system_fingerprint":"fp_scripted"}'
    )


async def test_a_completion_stream(hi: Front) -> None:
    piece = '"choices":[{"text":%s,"index":0,"logprobs":null,"finish_reason":null}]'
    finish = '"choices":[{"text":"","index":0,"logprobs":null,"finish_reason":"length","stop_reason":null}]'
    expected = stream(TEXT, piece % '"h"', piece % '"\\""', finish)
    assert normal(await hi.complete("hi", stream=True, max_tokens=2)) == expected


async def test_a_whole_completion(hi: Front) -> None:
    assert normal(await hi.complete("hi", max_tokens=2)) == (
        '{"id":"ID","object":"text_completion","created":0,"model":"scripted","choices":[{"text":"h\\"","index":0,'
        '"logprobs":null,"finish_reason":"length","stop_reason":null}],'
        + usage(2, 2) + ',"system_fingerprint":"fp_scripted"}'
    )  # fmt: skip


async def test_legacy_logprobs(hi: Front) -> None:
    [choice] = (await hi.complete("hi", max_tokens=2, logprobs=2)).json()["choices"]
    logprobs = choice["logprobs"]
    assert list(logprobs) == ["tokens", "token_logprobs", "top_logprobs", "text_offset"]
    assert logprobs["tokens"] == ["h", '"']
    assert logprobs["text_offset"] == [0, 1]
    assert [len(top) for top in logprobs["top_logprobs"]] == [2, 2]
    for token, value, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        assert top[token] == value == max(top.values())


async def test_token_ids_and_prompt_logprobs(hi: Front) -> None:
    fields = {"return_token_ids": True, "prompt_logprobs": 1, "max_tokens": 2}
    body = (await hi.complete("hi", **fields)).json()["choices"][0]
    assert body["token_ids"] == [104, 34]
    assert body["prompt_token_ids"] == [104, 105]
    first, second = body["prompt_logprobs"]
    assert first is None
    assert second["105"]["decoded_token"] == "i"
    assert list(second["105"]) == ["logprob", "rank", "decoded_token"]
    chunks = (await hi.complete("hi", stream=True, **fields)).chunks
    carried = [chunk["choices"][0] for chunk in chunks]
    assert [choice.get("prompt_logprobs") for choice in carried] == [[first, second], None, None]
    assert [choice.get("prompt_token_ids") for choice in carried] == [[104, 105], None, None]
    assert [choice["token_ids"] for choice in carried] == [[104], [34], []]
    chat = (await hi.chat("hi", **fields)).json()
    assert chat["choices"][0]["token_ids"] == [104, 34]
    assert len(chat["prompt_logprobs"]) == len(chat["prompt_token_ids"]) == 21
    chat_chunks = (await hi.chat("hi", stream=True, **fields)).chunks
    assert chat_chunks[0]["prompt_token_ids"] == chat["prompt_token_ids"]
    assert chat_chunks[1]["prompt_logprobs"] == chat["prompt_logprobs"]


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities_by_token_id(hi: Front, stream: bool) -> None:
    fields = {"return_tokens_as_token_ids": True, "max_tokens": 2, "stream": stream}
    answer = await hi.complete("hi", logprobs=1, **fields)
    legacy = answer.chunks[0]["choices"][0] if stream else answer.json()["choices"][0]
    assert legacy["logprobs"]["tokens"][0] == "token_id:104"
    assert "token_id:104" in legacy["logprobs"]["top_logprobs"][0]
    answer = await hi.chat("hi", logprobs=True, top_logprobs=1, **fields)
    chat = answer.chunks[1]["choices"][0] if stream else answer.json()["choices"][0]
    first = chat["logprobs"]["content"][0]
    assert first["token"] == first["top_logprobs"][0]["token"] == "token_id:104"
    assert first["bytes"] == [104]


async def test_each_use_of_the_prompts_scores_gets_as_many_as_it_asked_for(hi: Front) -> None:
    [choice] = (await hi.complete("hi", echo=True, logprobs=1, prompt_logprobs=3, max_tokens=1)).json()["choices"]
    assert [top and len(top) for top in choice["logprobs"]["top_logprobs"]] == [None, 2, 1]
    assert [entries and len(entries) for entries in choice["prompt_logprobs"]] == [None, 4]


async def test_prompt_lists_number_their_choices_by_prompt(make_front: Make) -> None:
    front = await make_front(
        {"when": spoken("one"), "tokens": spoken("1")},
        {"when": spoken("two"), "tokens": spoken("2")},
    )
    whole = (await front.complete(["one", "two"], n=2)).json()
    assert [(choice["index"], choice["text"]) for choice in whole["choices"]] == [
        (0, "1"),
        (1, "1"),
        (2, "2"),
        (3, "2"),
    ]
    assert whole["usage"]["prompt_tokens"] == 6
    assert whole["usage"]["completion_tokens"] == 8
    ids = (await front.complete([spoken("one"), spoken("two")], echo=True)).json()
    assert [choice["text"] for choice in ids["choices"]] == ["one1", "two2"]


async def test_the_model_list(hi: Front) -> None:
    one = '{"id":"scripted","object":"model","created":1700000000,"owned_by":"tickertape","max_model_len":512}'
    assert (await hi.client.get("/v1/models")).body.decode() == '{"object":"list","data":[' + one + "]}"
    assert (await hi.client.get("/v1/models/scripted")).body.decode() == one


async def test_headers_of_a_stream(hi: Front) -> None:
    headers = (await hi.chat("hi", stream=True)).headers
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    assert "content-length" not in headers
    assert "content-encoding" not in headers
    assert "connection" not in headers


async def test_no_text_can_end_a_line_of_the_stream(make_front: Make) -> None:
    text = "a\r\nb\u2028c\u2029d\x85e\x0bf\x1cg\0h"
    front = await make_front({"when": spoken("go"), "tokens": spoken(text)})
    for answer in (await front.chat("go", stream=True), await front.complete("go", stream=True, max_tokens=40)):
        lines = answer.body.decode().splitlines()
        assert all(not line or line.startswith("data: ") for line in lines)
        assert told(answer)[0].text == text


REQUESTS: list[dict[str, Any]] = [
    {},
    {"max_tokens": 3},
    {"stop": ["cd"]},
    {"stop": ["é"], "include_stop_str_in_output": True},
    {"n": 3, "seed": 5, "temperature": 1},
    {"return_token_ids": True, "stop": ["cd"]},
    {"return_token_ids": True, "max_tokens": 9, "ignore_eos": True},
    {"prompt_logprobs": 2},
    {"min_tokens": 12, "max_tokens": 14},
]
CHAT_ONLY: list[dict[str, Any]] = [{"logprobs": True, "top_logprobs": 2}, {"logprobs": True, "n": 2, "stop": ["d"]}]
COMPLETION_ONLY: list[dict[str, Any]] = [
    {"logprobs": 2},
    {"logprobs": 0, "echo": True},
    {"echo": True, "n": 2, "logprobs": 1, "stop": ["cd"], "return_token_ids": True},
    {"prompt": ["go", "plain"], "n": 2, "echo": True},
]


@pytest.mark.parametrize("kind", ["chat", "completion"])
async def test_a_whole_answer_is_its_stream_folded(make_front: Make, kind: str) -> None:
    front = await make_front(
        {"when": spoken("go"), "alternatives": [spoken("ab你cd é!"), spoken("xcdy"), spoken("")]},
    )
    ask = front.chat if kind == "chat" else front.complete
    for fields in [*REQUESTS, *(CHAT_ONLY if kind == "chat" else COMPLETION_ONLY)]:
        asked = {"max_tokens": 20, "seed": 3, "cache_salt": "x", **fields}
        given = {} if "prompt" in fields or "content" in fields else {"content" if kind == "chat" else "prompt": "go"}
        streamed = await ask(**given, **asked, stream=True, stream_options={"include_usage": True})
        whole = await ask(**given, **asked)
        left, right = told(streamed), told(whole)
        assert sorted(left) == sorted(right)
        for index, choice in right.items():
            found = left[index]
            assert (found.text, found.finish, found.stop_reason) == (choice.text, choice.finish, choice.stop_reason)
            assert found.tokens == choice.tokens
            assert joined(found.logprobs) == joined(choice.logprobs)
        ends = (streamed.chunks[-1]["usage"], whole.json()["usage"])
        assert [end["completion_tokens"] for end in ends] == [ends[0]["completion_tokens"]] * 2
        assert ends[0]["prompt_tokens"] == ends[1]["prompt_tokens"]


def joined(parts: list[dict[str, Any]]) -> dict[str, list[Any]]:
    whole: dict[str, list[Any]] = {}
    for part in parts:
        for key, values in part.items():
            whole.setdefault(key, []).extend(values or [])
    return {key: values for key, values in whole.items() if values}


async def test_usage_and_padding_of_a_completion_stream(hi: Front) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True, "include_obfuscation": True}
    chunks = (await hi.complete("hi", stream=True, max_tokens=2, stream_options=options)).chunks
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 2, 2]
    assert [len(chunk["choices"]) for chunk in chunks] == [1, 1, 1, 0]
    assert all(len(chunk["obfuscation"]) in range(32) for chunk in chunks[:-1])
    assert "obfuscation" not in chunks[-1]


THINKS = '<think>\nh\n</think>\n\ni<tool_call>\n{"name": "f", "arguments": {"a":1}}\n</tool_call>'
LOOK = {"type": "function", "function": {"name": "f"}}
DELTA = '"choices":[{"index":0,"delta":%s,"logprobs":null,"finish_reason":null}]'


@pytest.fixture
async def thinks(make_front: Make) -> Front:
    play = {"when": spoken("hi"), "tokens": spoken(THINKS)}
    return await make_front(play, template=templates.THINKS_AND_CALLS)


def with_ids(answer: Answer) -> str:
    """As `normal`, and the ids of calls as CALL."""
    return re.sub(r"call_[0-9a-f]{24}", "CALL", normal(answer))


async def test_a_chat_stream_with_reasoning_and_a_call(thinks: Front) -> None:
    arguments = [DELTA % f'{{"tool_calls":[{{"index":0,"function":{{"arguments":{json.dumps(part)}}}}}]}}'
                 for part in ("{", '"', "a", '"', ":", "1", "}")]  # fmt: skip
    expected = stream(
        CHAT, ROLE % 0,
        DELTA % '{"reasoning":"h","reasoning_content":"h"}',
        DELTA % '{"content":"i"}',
        DELTA % '{"tool_calls":[{"index":0,"id":"CALL","type":"function","function":{"name":"f","arguments":""}}]}',
        *arguments,
        FINISH % (0, "tool_calls", "null"),
    )  # fmt: skip
    assert with_ids(await thinks.chat("hi", stream=True, tools=[LOOK])) == expected


async def test_a_whole_chat_with_reasoning_and_a_call(thinks: Front) -> None:
    answer = await thinks.chat("hi", tools=[LOOK])
    used = answer.json()["usage"]
    assert with_ids(answer) == (
        '{"id":"ID","object":"chat.completion","created":0,"model":"scripted","choices":[{"index":0,"message":'
        '{"role":"assistant","content":"i","refusal":null,"reasoning":"h","reasoning_content":"h","tool_calls":'
        '[{"id":"CALL","type":"function","function":{"name":"f","arguments":"{\\"a\\":1}"}}]},'
        '"logprobs":null,"finish_reason":"tool_calls","stop_reason":null}],'
        + usage(used["prompt_tokens"], len(THINKS) + 1).replace('"reasoning_tokens":0', '"reasoning_tokens":9')
        + ',"system_fingerprint":"fp_scripted"}'
    )


async def test_usage_and_padding_on_every_kind_of_chunk(thinks: Front) -> None:
    options = {"continuous_usage_stats": True, "include_obfuscation": True}
    chunks = (await thinks.chat("hi", stream=True, tools=[LOOK], stream_options=options)).chunks
    assert all(list(chunk)[-2:] == ["usage", "obfuscation"] for chunk in chunks)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert chunks[-1]["usage"]["completion_tokens_details"] == {"reasoning_tokens": 9}
