"""Topic a of the case list: the text of a stream is right, whole, and the same as without streaming."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tickertape.testing.front import Front, spoken
from tickertape.testing.openai_stream import told

Make = Callable[..., Awaitable[Front]]


async def both(front: Front, content: str, **fields: Any) -> str:
    """The text of a chat, streamed and not: they must be the same."""
    streamed = told(await front.chat(content, stream=True, **fields))[0]
    whole = told(await front.chat(content, **fields))[0]
    assert (streamed.text, streamed.finish, streamed.stop_reason) == (whole.text, whole.finish, whole.stop_reason)
    assert all("�" not in piece for piece in streamed.pieces)
    return streamed.text


async def test_case_001_characters_split_over_tokens_come_whole(make_front: Make) -> None:
    cjk = "你".encode()
    emoji = "😀".encode()
    front = await make_front()
    encode = front.tokenizer.encode
    two_bytes_of_cjk = encode("你", add_special_tokens=False)  # a merged token of two bytes, then the last byte
    halves_of_emoji = encode("😀", add_special_tokens=False)
    assert (len(two_bytes_of_cjk), len(halves_of_emoji)) == (2, 2)
    script = [*spoken("a"), *two_bytes_of_cjk, *halves_of_emoji, *cjk, *emoji, *spoken("z")]
    front = await make_front({"when": spoken("cjk"), "tokens": script})
    assert await both(front, "cjk") == "a你😀你😀z"


async def test_case_002_an_emoji_of_three_tokens(make_front: Make) -> None:
    front = await make_front()
    first, *rest = "😀".encode()
    tokens = [first, *front.tokenizer.encode("😀", add_special_tokens=False)[1:]]
    play = {"when": spoken("em"), "tokens": [first, rest[0], *tokens[1:]]}
    front = await make_front(play)
    assert await both(front, "em") == "😀"


async def test_case_004_a_stop_string_over_several_tokens_is_never_shown(make_front: Make) -> None:
    front = await make_front({"when": spoken("go"), "tokens": spoken("answer<|im_end|>more")})
    streamed = told(await front.chat("go", stream=True, stop=["<|im_end|>"]))[0]
    assert streamed.text == "answer"
    assert (streamed.finish, streamed.stop_reason) == ("stop", "<|im_end|>")
    assert not any("<" in piece for piece in streamed.pieces)


async def test_case_005_a_stop_and_its_near_miss(make_front: Make) -> None:
    front = await make_front(
        {"when": spoken("hit"), "tokens": spoken("ABC DEFGHIJ KLM")},
        {"when": spoken("near"), "tokens": spoken("ABC DEFGHIX KLM")},
    )
    assert await both(front, "hit", stop=["DEFGHIJ"]) == "ABC "
    assert await both(front, "near", stop=["DEFGHIJ"]) == "ABC DEFGHIX KLM"


@pytest.mark.parametrize(("include", "text"), [(False, "foo"), (True, "foo.")])
async def test_case_007_a_stop_inside_a_token(make_front: Make, include: bool, text: str) -> None:
    front = await make_front()
    token = front.tokenizer.encode("foo.bar", add_special_tokens=False)
    assert len(token) == 1
    front = await make_front({"when": spoken("go"), "tokens": [*token, *spoken(" rest")]})
    assert await both(front, "go", stop=["."], include_stop_str_in_output=include) == text


@pytest.mark.parametrize("include", [False, True])
async def test_case_007_a_special_stop_token_is_not_shown(make_front: Make, include: bool) -> None:
    front = await make_front()
    [special] = front.tokenizer.encode("<|im_start|>", add_special_tokens=False)
    front = await make_front({"when": spoken("go"), "tokens": [*spoken("ab"), special, *spoken("cd")]})
    fields = {"stop_token_ids": [special], "include_stop_str_in_output": include}
    assert await both(front, "go", **fields) == "ab"
    answer = told(await front.chat("go", return_token_ids=True, **fields))[0]
    assert (answer.finish, answer.stop_reason) == ("stop", special)
    assert answer.tokens == [*spoken("ab"), special]
    shown = await both(front, "go", skip_special_tokens=False, **fields)
    assert shown == ("ab<|im_start|>" if include else "ab")


async def test_case_008_a_stop_that_never_comes_delays_nothing(make_front: Make) -> None:
    text = "one two three ZZZ four"
    front = await make_front({"when": spoken("go"), "tokens": spoken(text)})
    pieces = told(await front.chat("go", stream=True, stop=["ZZZZZZZZ"]))[0].pieces
    assert "".join(pieces) == text
    assert pieces[0] == "o"  # nothing of it may begin the stop string, so it is not held
    assert "" not in pieces


async def test_case_009_text_and_finish_come_in_separate_chunks(make_front: Make) -> None:
    front = await make_front({"when": spoken("go"), "tokens": spoken("abcdefgh")})
    answer = await front.chat("go", stream=True, max_tokens=5)
    assert told(answer)[0].text == "abcde"  # told() asserts the order
    assert answer.chunks[-1]["choices"][0] == {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": "length",
        "stop_reason": None,
    }


async def test_case_010_finish_reason_is_null_until_the_last(make_front: Make) -> None:
    front = await make_front()
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in (await front.chat(stream=True)).chunks]
    assert set(reasons[:-1]) == {None}
    assert reasons[-1] == "stop"


async def test_case_012_usage_comes_last_with_no_choices(make_front: Make) -> None:
    front = await make_front()
    answer = await front.chat(stream=True, stream_options={"include_usage": True})
    *others, last = answer.chunks
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + last["usage"]["completion_tokens"]
    assert all(chunk["usage"] is None for chunk in others)
    without = await front.chat(stream=True)
    assert all("usage" not in chunk and chunk["choices"] for chunk in without.chunks)


async def test_case_014_a_hundred_streams_all_end(make_front: Make) -> None:
    front = await make_front(
        {"when": spoken("long"), "tokens": spoken("x"), "then": "repeat"}, num_blocks=400, max_num_seqs=32
    )

    async def one(n: int) -> None:
        fields: dict[str, Any] = {"max_tokens": 1 + 3 * n} if n % 3 else {}
        if n % 2:
            fields["stream_options"] = {"include_usage": True}
        answer = await front.chat("plain" if n % 3 == 0 else "long", stream=True, **fields)
        end = told(answer)[0]
        assert end.finish == ("stop" if n % 3 == 0 else "length")
        assert n % 3 == 0 or len(end.text) == 1 + 3 * n

    await asyncio.wait_for(asyncio.gather(*(one(n) for n in range(100))), 60)


async def test_case_016_text_offsets_in_an_echoed_stream(make_front: Make) -> None:
    front = await make_front({"when": spoken("go"), "tokens": spoken("new text")})
    prompt = "say go: é😀"
    streamed = told(await front.complete(prompt, echo=True, logprobs=1, stream=True, max_tokens=5))[0]
    whole = told(await front.complete(prompt, echo=True, logprobs=1, max_tokens=5))[0]
    assert streamed.text == whole.text == prompt + "new t"
    joined: dict[str, list[Any]] = {key: [] for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}
    for part in streamed.logprobs:
        for key, values in part.items():
            joined[key] += values
    assert joined == whole.logprobs[0]
    assert joined["token_logprobs"][0] is None
    assert None not in joined["token_logprobs"][1:]
    for token, start in zip(joined["tokens"], joined["text_offset"], strict=True):
        assert token.startswith("bytes:") or streamed.text[start:].startswith(token)


@pytest.mark.parametrize(
    "text", ["the cat sat on the mat", "two  spaces", " a leading space", "line\n  indented", "é好 the 😀"]
)
async def test_case_018_spaces_of_sentencepiece_tokens(make_front: Make, text: str) -> None:
    plain = await make_front(sentencepiece=True)
    tokens = plain.tokenizer.encode(text, add_special_tokens=False)
    when = plain.tokenizer.encode("go", add_special_tokens=False)[1:]
    front = await make_front({"when": when, "tokens": tokens}, sentencepiece=True)
    assert await both(front, "go") == plain.tokenizer.decode(tokens, skip_special_tokens=True) == text
    # A completion follows its prompt, so its first word keeps the space that decode takes from the start of a text.
    streamed = told(await front.complete("go", stream=True, max_tokens=100, echo=True))[0]
    prompt = front.tokenizer.encode("go", add_special_tokens=True)
    assert streamed.text == front.tokenizer.decode([*prompt, *tokens], skip_special_tokens=True) == "go " + text


async def test_case_019_the_first_character_is_not_cut(make_front: Make) -> None:
    front = await make_front(sentencepiece=True)
    [quote] = [n for n in range(front.tokenizer.vocab_size) if front.tokenizer.token_bytes(n) == b'{"']
    play = {"when": front.tokenizer.encode("go", add_special_tokens=False)[1:], "tokens": [quote]}
    front = await make_front(play, sentencepiece=True)
    assert await both(front, "go") == '{"'


async def test_case_020_choices_do_not_mix(make_front: Make) -> None:
    alternatives = [spoken("first STOP no"), spoken("second longer STOP no"), spoken("3rd STOP no")]
    front = await make_front({"when": spoken("go"), "alternatives": alternatives})
    fields = {"n": 3, "temperature": 1, "seed": 7, "stop": ["STOP"]}
    answer = await front.chat("go", stream=True, stream_options={"include_usage": True}, **fields)
    streamed = told(answer)
    whole = told(await front.chat("go", **fields))
    assert sorted(streamed) == [0, 1, 2]
    assert {n: choice.text for n, choice in streamed.items()} == {n: choice.text for n, choice in whole.items()}
    assert len({choice.text for choice in streamed.values()}) == 3
    assert {choice.finish for choice in streamed.values()} == {"stop"}
    assert len([chunk for chunk in answer.chunks if not chunk["choices"]]) == 1


async def test_case_021_every_chunk_has_the_same_keys(make_front: Make) -> None:
    front = await make_front()
    answer = await front.chat(stream=True)
    told(answer)  # role once, ids equal, [DONE] last
    keys = ["id", "object", "created", "model", "system_fingerprint", "choices"]
    assert all(list(chunk) == keys for chunk in answer.chunks)
    assert "event:" not in answer.body.decode()
    assert "id:" not in answer.body.decode().replace('"id":', "")


@pytest.mark.parametrize("stream", [False, True])
async def test_case_024_stop_strings_act_where_token_ids_are_returned(make_front: Make, stream: bool) -> None:
    front = await make_front({"when": spoken("go"), "tokens": spoken("ab x cd")})
    choice = told(await front.complete("go", stop=["x"], return_token_ids=True, stream=stream, max_tokens=20))[0]
    assert choice.text == "ab "
    assert choice.tokens == spoken("ab x")  # up to the one that completed the stop string, and none after
    usage = (await front.complete("go", stop=["x"], max_tokens=20)).json()["usage"]
    assert usage["completion_tokens"] == len(spoken("ab x"))


async def test_case_025_content_types(make_front: Make) -> None:
    front = await make_front()
    stream = await front.chat(stream=True)
    assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
    plain = [
        await front.chat(),
        await front.complete(),
        await front.chat(temperature=9),
        await front.client.get("/v1/models"),
        await front.client.get("/nowhere"),
        *[await front.client.get(path) for path in ("/livez", "/readyz", "/startupz", "/health")],
    ]
    assert {answer.headers["content-type"] for answer in plain} == {"application/json"}
    ignored = {**front.headers, "accept": "application/x-ndjson"}
    answer = await front.client.post("/v1/chat/completions", front.chat_body(stream=True), headers=ignored)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
