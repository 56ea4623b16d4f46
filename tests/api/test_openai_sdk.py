"""The openai SDK, unchanged, against uvicorn on loopback."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionUserMessageParam

from tickertape.api.admission import AdmissionLimits
from tickertape.api.options import WireOptions
from tickertape.testing.front import Front, spoken, until
from tickertape.testing.loopback import served

Make = Callable[..., Awaitable[Front]]


def user(text: str) -> list[ChatCompletionMessageParam]:
    return [ChatCompletionUserMessageParam(role="user", content=text)]


HELLO = user("hello")
TEXT = "Hello, wörld 😀!"
FOREVER = {"when": spoken("long"), "tokens": spoken("x"), "then": "repeat"}


@pytest.fixture
async def made(make_front: Make) -> Front:
    return await make_front(
        {"when": spoken("hello"), "tokens": spoken(TEXT)},
        FOREVER,
        {"when": spoken("bad"), "tokens": spoken("abc"), "fail": {"at": 2}},
        api_keys=("sk-right",),
        admission=AdmissionLimits(retry_after_s=0.01),
        token_s=0.001,
    )


@pytest.fixture
async def base_url(made: Front) -> AsyncIterator[str]:
    async with served(made.app) as port:
        yield f"http://127.0.0.1:{port}/v1"


@pytest.fixture
async def client(base_url: str) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=base_url, api_key="sk-right", max_retries=0, timeout=10) as opened:
        yield opened


async def test_async_whole_and_streamed(client: AsyncOpenAI) -> None:
    chat = await client.chat.completions.create(model="scripted", messages=HELLO)
    assert chat.choices[0].message.content == TEXT
    assert chat.usage is not None
    assert chat.usage.prompt_tokens_details is not None
    assert chat._request_id is not None
    stream = await client.chat.completions.create(
        model="scripted",
        messages=HELLO,
        stream=True,
        stream_options={"include_usage": True},
        n=2,
    )
    texts = ["", ""]
    usages = []
    async for chunk in stream:
        usages.append(chunk.usage)
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [TEXT, TEXT]
    assert usages[-1] is not None
    assert usages[:-1] == [None] * (len(usages) - 1)


async def test_sync_whole_and_streamed(base_url: str) -> None:
    def work() -> None:
        with OpenAI(base_url=base_url, api_key="sk-right", max_retries=0, timeout=10) as client:
            chat = client.chat.completions.create(model="scripted", messages=HELLO)
            assert chat.choices[0].message.content == TEXT
            stream = client.chat.completions.create(model="scripted", messages=HELLO, stream=True)
            assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == TEXT
            completion = client.completions.create(model="scripted", prompt="hello", max_tokens=99, logprobs=1)
            assert completion.choices[0].text == TEXT
            chunks = client.completions.create(model="scripted", prompt="hello", max_tokens=99, stream=True)
            assert "".join(chunk.choices[0].text for chunk in chunks) == TEXT
            assert [model.id for model in client.models.list()] == ["scripted"]
            assert client.models.retrieve("scripted").owned_by == "tickertape"

    await asyncio.to_thread(work)


async def test_the_stream_helper_of_the_sdk(client: AsyncOpenAI) -> None:
    async with client.chat.completions.stream(model="scripted", messages=HELLO, logprobs=True) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == TEXT
    assert final.choices[0].finish_reason == "stop"
    assert final.choices[0].logprobs is not None
    assert final.choices[0].logprobs.content is not None
    shown = b"".join(bytes(entry.bytes or ()) for entry in final.choices[0].logprobs.content)
    assert shown.decode() == TEXT


async def test_a_message_of_the_sdk_can_be_sent_back(client: AsyncOpenAI) -> None:
    chat = await client.chat.completions.create(model="scripted", messages=HELLO)
    history: Any = [*HELLO, chat.choices[0].message, chat.choices[0].message.model_dump(), *HELLO]
    again = await client.chat.completions.create(model="scripted", messages=history)
    assert again.choices[0].message.content == TEXT


async def test_errors_are_the_sdks_own(client: AsyncOpenAI, base_url: str) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        await client.chat.completions.create(model="scripted", messages=HELLO, temperature=9)
    assert (bad.value.param, bad.value.code, bad.value.type) == (
        "temperature",
        "invalid_value",
        "invalid_request_error",
    )
    with pytest.raises(openai.NotFoundError):
        await client.chat.completions.create(model="other", messages=HELLO)
    async with AsyncOpenAI(base_url=base_url, api_key="sk-wrong", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError):
            await stranger.models.list()
    stream = await client.chat.completions.create(model="scripted", messages=user("bad"), stream=True)
    text = ""

    async def read() -> None:
        nonlocal text
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""

    with pytest.raises(openai.APIError) as cut:
        await read()
    assert text == "ab"
    assert cut.value.code == "row_error"


async def test_the_sdk_retries_what_it_is_told_to(made: Front, base_url: str) -> None:
    made.readiness.set_state("loading")
    async with AsyncOpenAI(base_url=base_url, api_key="sk-right", max_retries=2, timeout=10) as patient:
        asked = asyncio.ensure_future(patient.completions.create(model="scripted", prompt="hello"))
        await asyncio.sleep(0.2)
        made.readiness.set_state("ready")
        assert (await asked).choices[0].finish_reason == "length"


async def test_closing_a_stream_of_the_sdk_cancels_it(client: AsyncOpenAI, made: Front) -> None:
    messages = user("long")
    stream = await client.chat.completions.create(model="scripted", messages=messages, stream=True, max_tokens=400)
    async for _ in stream:
        break
    await stream.close()
    await made.idle()
    with pytest.raises(openai.APITimeoutError):
        await client.chat.completions.create(model="scripted", messages=messages, max_tokens=400, timeout=0.1)
    await made.idle()


async def test_a_reset_connection_cancels_its_request(made: Front, base_url: str) -> None:
    port = int(base_url.split(":")[2].partition("/")[0])
    body = b'{"model":"scripted","prompt":"long","max_tokens":400%b}'
    for stream in (b',"stream":true', b""):
        payload = body % stream
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer sk-right\r\n"
        head += b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(payload)
        writer.write(head + payload)
        if stream:
            await reader.readuntil(b"data: ")
        else:
            await until(lambda: made.engine.stats().num_running > 0)
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()
        await made.idle()
        assert made.engine.stats().num_steps < 600


async def test_case_073_a_frozen_client_on_a_real_socket(make_front: Make) -> None:
    options = WireOptions(send_timeout_s=0.4, keep_alive_s=0.1)
    front = await make_front(FOREVER, options=options, max_num_seqs=32, num_blocks=1100)
    async with served(front.app) as port:
        frozen = socket.socket()
        frozen.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        frozen.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(frozen, ("127.0.0.1", port))
        payload = b'{"model":"scripted","prompt":"long","stream":true,"max_tokens":500,"n":32,"logprobs":5}'
        head = (
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        )
        await loop.sock_sendall(frozen, head % len(payload) + payload)
        await until(lambda: front.service.admission.in_flight("scripted") == 32)
        await until(lambda: front.service.admission.in_flight("scripted") == 0, patience_s=30)
        counted = front.metrics.registry.get_sample_value(
            "tickertape_requests_total", {"model": "scripted", "outcome": "cancelled"}
        )
        assert counted == 1
        frozen.close()


async def test_half_a_body_is_no_error_of_ours(made: Front, base_url: str, caplog: pytest.LogCaptureFixture) -> None:
    port = int(base_url.split(":")[2].partition("/")[0])
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer sk-right\r\n"
    head += b'content-type: application/json\r\ncontent-length: 100\r\n\r\n{"model":'
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head)
    await writer.drain()
    await asyncio.sleep(0.05)
    writer.close()
    registry = made.metrics.registry
    labels = {"model": "", "outcome": "cancelled"}
    await until(lambda: registry.get_sample_value("tickertape_requests_total", labels) == 1)
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
