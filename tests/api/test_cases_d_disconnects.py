"""Topic d of the case list, the HTTP side: a client that is gone costs nothing more, wherever its request is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tickertape.api.options import WireOptions
from tickertape.testing.asgi import Answer
from tickertape.testing.front import Front, spoken, until
from tickertape.testing.openai_stream import told

Make = Callable[..., Awaitable[Front]]

FOREVER = {"when": spoken("long"), "tokens": spoken("x"), "then": "repeat"}


async def outcomes(front: Front) -> dict[str, float]:
    """Requests counted so far, by outcome."""
    found: dict[str, float] = {}
    for family in front.metrics.registry.collect():
        for sample in family.samples:
            if sample.name == "tickertape_requests_total":
                found[sample.labels["outcome"]] = found.get(sample.labels["outcome"], 0) + sample.value
    return found


async def test_case_066_a_closed_stream_is_decoded_no_further(make_front: Make) -> None:
    front = await make_front(FOREVER, token_s=0.005)
    async with front.streaming("long", max_tokens=400) as connection:
        assert (await connection.head())[0] == 200
        await connection.part()
        started = front.engine.stats().num_steps
        await connection.disconnect()
    await front.idle()
    assert front.engine.stats().num_steps - started < 50
    assert (await outcomes(front))["cancelled"] == 1
    begun = time.monotonic()
    await front.complete(max_tokens=1)
    assert time.monotonic() - begun < 1  # the rest of the stream would take two


@pytest.mark.parametrize("stream", [False, True])
async def test_case_070_queued_requests_leave_the_queue(make_front: Make, stream: bool) -> None:
    front = await make_front(FOREVER, max_num_seqs=1, token_s=0.005)
    async with front.streaming("long", max_tokens=60) as first:
        await first.head()
        body = front.chat_body("plain", stream=stream)
        queued = [front.client.open("POST", "/v1/chat/completions", body) for _ in range(3)]
        connections = [await each.__aenter__() for each in queued]
        await until(lambda: front.service.admission.num_waiting_requests == 3)
        await until(lambda: front.engine.stats().num_waiting == 3)
        for connection in connections:
            await connection.disconnect()
        await until(lambda: front.engine.stats().num_waiting == 0)
        assert front.service.admission.num_waiting_requests == 0
        for each in queued:
            await each.__aexit__(None, None, None)
        text = b""
        while (part := await first.part()) is not None:
            text += part
    assert text.endswith(b"data: [DONE]\n\n")
    assert text.count(b'"content":"x"') >= 59


async def test_a_whole_answer_is_cancelled_too(make_front: Make) -> None:
    front = await make_front(FOREVER, token_s=0.005)
    async with front.client.open("POST", "/v1/chat/completions", front.chat_body("long", n=3)) as connection:
        await until(lambda: front.engine.stats().num_running == 3)
        await connection.disconnect()
        assert connection.sends == []
    await front.idle()
    assert (await outcomes(front))["cancelled"] == 1


async def test_a_prefilling_request_is_cancelled(make_front: Make) -> None:
    front = await make_front(FOREVER, chunk_s=0.02, max_batch_tokens=16, max_model_len=1024)
    async with front.streaming("y" * 600) as connection:
        await until(lambda: len(front.batches) > 3)
        await connection.disconnect()
    begun = len(front.batches)
    await front.idle()
    assert len(front.batches) - begun < 5
    assert begun < 30  # of 40 chunks


@pytest.mark.parametrize("waits", [False, True])
async def test_case_073_a_frozen_client_is_dropped(make_front: Make, waits: bool) -> None:
    options = WireOptions(keep_alive_s=0.1, send_timeout_s=0.3, head_delay_s=0.02)
    front = await make_front(FOREVER, max_num_seqs=1, token_s=0.02, options=options)
    async with front.streaming("long", max_tokens=400) as first:
        await first.head()
        if not waits:
            first.freeze()
            await asyncio.wait({first.task}, timeout=5)
            assert first.task.done()
            await until(lambda: front.engine.stats().num_running == 0)
            return
        async with front.streaming("plain") as queued:
            await queued.head()
            queued.freeze()
            begun = time.monotonic()
            await asyncio.wait({queued.task}, timeout=5)
            assert queued.task.done()
            assert 0.25 < time.monotonic() - begun < 3
            await until(lambda: front.engine.stats().num_waiting == 0)
            assert front.engine.stats().num_running == 1


async def test_case_076_nothing_is_compressed_or_held_back(make_front: Make) -> None:
    front = await make_front({"when": spoken("go"), "tokens": spoken("abc")}, token_s=0.1)
    body = front.chat_body("go", stream=True)
    headers = {**front.headers, "accept-encoding": "gzip"}
    async with front.client.open("POST", "/v1/chat/completions", body, headers=headers) as connection:
        _, head = await connection.head()
        assert "content-encoding" not in head
        assert head["cache-control"] == "no-cache"
        assert head["x-accel-buffering"] == "no"
        arrived: dict[str, float] = {}
        while (part := await connection.part()) is not None:
            for letter in "abc":
                if f'"content":"{letter}"'.encode() in part:
                    arrived[letter] = time.monotonic()
    assert arrived["b"] - arrived["a"] > 0.05
    assert arrived["c"] - arrived["b"] > 0.05


async def test_case_077_headers_do_not_wait_for_the_queue(make_front: Make) -> None:
    front = await make_front(FOREVER, max_num_seqs=1, token_s=0.01)
    async with front.streaming("long", max_tokens=400) as first:
        await first.head()
        begun = time.monotonic()
        async with front.streaming("plain") as queued:
            status, _ = await queued.head()
            assert status == 200
            assert 0.4 < time.monotonic() - begun < 2
            part = await queued.part()
            assert part is not None
            assert b'"role":"assistant"' in part
            assert part.count(b"data:") == 1


async def test_the_keep_alive_comes_from_acceptance_on_and_only_in_silence(make_front: Make) -> None:
    options = WireOptions(keep_alive_s=0.4, head_delay_s=0.05)
    front = await make_front(
        FOREVER, {"when": spoken("go"), "tokens": spoken("abcdef")}, max_num_seqs=1, token_s=0.05, options=options
    )
    async with front.streaming("long", max_tokens=30) as first:
        await first.head()
        async with front.streaming("go") as queued:
            await queued.head()
            waiting, told_text = b"", b""
            while b'"content":"a"' not in waiting:
                waiting += await queued.part() or b""
            begun = time.monotonic()
            while (part := await queued.part()) is not None:
                told_text += part
            told_s = time.monotonic() - begun
    assert waiting.count(b": keep-alive\n\n") >= 2
    assert told_text.count(b"keep-alive") <= told_s / 0.4  # on a busy machine a token may take that long
    assert [letter for letter in "bcdef" if f'"content":"{letter}"'.encode() in told_text] == list("bcdef")


@pytest.mark.parametrize("n", [1, 3])
async def test_case_082_a_fault_in_mid_stream_is_told_in_band(make_front: Make, n: int) -> None:
    fail = {"when": spoken("bad"), "tokens": spoken("abcdef"), "fail": {"at": 3, "message": "row 3 is broken"}}
    front = await make_front(fail)
    answer = await front.chat("bad", stream=True, n=n)
    assert answer.status == 200
    *others, last = answer.events
    assert "[DONE]" not in answer.events
    assert last.startswith('{"error":{"message":')
    assert '"code":"row_error"' in last
    assert '"type":"server_error"' in last
    assert not any('"finish_reason":"' in event for event in others)
    await front.idle()  # the other choices were cancelled
    assert (await outcomes(front))["failed"] == 1


async def test_a_fault_before_the_first_token_is_a_status(make_front: Make) -> None:
    front = await make_front({"when": spoken("bad"), "tokens": spoken("a"), "fail": {"at": 0}})
    for stream in (False, True):
        answer = await front.chat("bad", stream=stream)
        assert answer.status == 500
        assert answer.json()["error"]["code"] == "row_error"
    late = await make_front(
        {"when": spoken("bad"), "tokens": spoken("a"), "fail": {"at": 0}},
        token_s=0.2,
        options=WireOptions(head_delay_s=0.05),
    )
    answer = await late.chat("bad", stream=True)
    assert answer.status == 200
    assert '"code":"row_error"' in answer.events[-1]


async def test_case_082_a_fault_of_our_own_shows_nothing_of_itself(
    make_front: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from tickertape.api.text_stream import TextStream

    pushes = 0
    push = TextStream.push

    def fail_late(self: TextStream, delta: Any) -> Any:
        nonlocal pushes
        pushes += 1
        if pushes == 4:
            raise ValueError("secret of /etc/passwd")
        return push(self, delta)

    front = await make_front()
    monkeypatch.setattr(TextStream, "push", fail_late)
    answer = await front.chat(stream=True)
    assert answer.status == 200
    assert '"code":"internal_error"' in answer.events[-1]
    assert "secret" not in answer.body.decode()
    traces = [record for record in caplog.records if record.exc_info]
    assert len(traces) == 1
    assert traces[0].fields["request_id"] == answer.headers["x-request-id"]  # type: ignore[attr-defined]
    pushes = 3
    whole = await front.chat()
    assert (whole.status, whole.json()["error"]["code"]) == (500, "internal_error")
    assert "secret" not in whole.body.decode()


async def test_case_084_a_queued_request_whose_client_left_is_never_computed(make_front: Make) -> None:
    front = await make_front(FOREVER, max_num_seqs=1, token_s=0.005)
    async with front.streaming("long", max_tokens=50) as first:
        await first.head()
        async with front.streaming("b" * 40) as second:
            await until(lambda: front.engine.stats().num_waiting == 1)
            await second.disconnect()
        third = asyncio.ensure_future(front.chat("c" * 40))
        while await first.part() is not None:
            pass
        assert told(await third)[0].finish == "stop"
    prompts = [len(opened.history) // 4 for batch in front.batches for opened in batch.opened]
    assert len(prompts) == 2
    opened = [bytes(opened.history) for batch in front.batches for opened in batch.opened]
    assert not any(b"b\0\0\0b\0\0\0b" in history for history in opened)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_waits_too_long_is_answered_in_time(make_front: Make, stream: bool) -> None:
    options = WireOptions(request_timeout_s=0.4)
    front = await make_front(FOREVER, max_num_seqs=1, token_s=0.05, options=options)
    async with front.streaming("long", max_tokens=200) as first:
        await first.head()
        begun = time.monotonic()
        answer = await front.chat(stream=stream)
        waited_s = time.monotonic() - begun
        assert answer.status == 408
        assert 0.39 <= waited_s < 4  # a busy machine's; the benchmark measures how exact it is
        assert answer.json()["error"] | {"message": ""} == {
            "message": "",
            "type": "timeout",
            "param": None,
            "code": "timeout",
        }
        assert answer.headers["x-should-retry"] == "false"
        shorter = {**front.headers, "x-request-timeout-ms": "50"}
        answer = await front.client.post("/v1/chat/completions", front.chat_body(), headers=shorter)
        assert answer.status == 408
        assert "0.05 s" in answer.json()["error"]["message"]
        wrong = {**front.headers, "x-request-timeout-ms": "soon"}
        assert (await front.client.post("/v1/chat/completions", front.chat_body(), headers=wrong)).status == 400
        await until(lambda: front.engine.stats().num_waiting == 0)
        assert front.engine.stats().num_running == 1  # the one that has its tokens runs on, past the timeout


async def test_storms_of_disconnects_leave_nothing_behind(make_front: Make) -> None:
    front = await make_front(FOREVER, max_num_seqs=4, token_s=0.001, num_blocks=40)

    async def come_and_go(n: int) -> None:
        async with front.streaming("long" * (1 + n % 5), max_tokens=200, n=1 + n % 3) as connection:
            await asyncio.sleep(0.002 * (n % 17))
            await connection.disconnect()

    for _ in range(3):
        await asyncio.gather(*(come_and_go(n) for n in range(60)))
    answer: Answer = await front.chat()
    assert told(answer)[0].finish == "stop"
