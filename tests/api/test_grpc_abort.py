"""`Abort` ends requests of either wire, wherever they are, and nobody else's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc.aio as triton
from google.rpc.error_details_pb2 import ErrorInfo
from grpc_status import rpc_status

from tickertape.api.options import WireOptions
from tickertape.api.proto.tickertape.v1.chat_pb2 import ChatMessage, ChatRequest
from tickertape.api.proto.tickertape.v1.generate_pb2 import GenerateRequest, Prompt
from tickertape.api.proto.tickertape.v1.token_stream_pb2 import AbortRequest
from tickertape.api.proto.tickertape.v1.token_stream_pb2_grpc import TokenStreamStub
from tickertape.testing.asgi import Connection
from tickertape.testing.front import Front, spoken, until
from tickertape.testing.grpc_front import grpc_served

Make = Callable[..., Awaitable[Front]]

FOREVER = {"when": spoken("long"), "tokens": spoken("x"), "then": "repeat"}
ABORTED = {
    "message": "The request was aborted", "type": "invalid_request_error", "param": None, "code": "aborted",
}  # fmt: skip
ID = {"content-type": "application/json", "x-request-id": "mine"}


def opened(front: Front, *, stream: bool, prompt: str = "long", key: str | None = None) -> Any:
    """A completion over HTTP, known as "mine"."""
    body = {"model": "scripted", "prompt": prompt, "max_tokens": 400, "stream": stream}
    headers = ID if key is None else {**ID, "authorization": f"Bearer {key}"}
    return front.client.open("POST", "/v1/completions", body, headers=headers)


async def abort(address: str, name: str, key: str | None = None) -> bool:
    async with grpc.aio.insecure_channel(address) as channel:
        metadata = () if key is None else (("authorization", f"Bearer {key}"),)
        found: bool = (await TokenStreamStub(channel).Abort(AbortRequest(request_id=name), metadata=metadata)).found
        return found


async def drained(stream: Any) -> None:
    while await stream.read() is not grpc.aio.EOF:
        pass


async def rest(connection: Connection) -> list[Any]:
    """The events that are still to come."""
    body = b""
    while (part := await connection.part()) is not None:
        body += part
    return [json.loads(event.removeprefix("data: ")) for event in body.decode().split("\n\n") if event]


@pytest.mark.parametrize("by", ["x-request-id", "id"])
async def test_an_http_stream_ends_with_an_error_event(make_front: Make, by: str) -> None:
    front = await make_front(FOREVER, token_s=0.005)
    async with grpc_served(front) as address, opened(front, stream=True) as connection:
        await connection.head()
        first = await connection.part()
        assert first is not None
        answer = json.loads(first.decode().removeprefix("data: ").strip())["id"]
        steps = front.engine.stats().num_steps
        assert await abort(address, {"x-request-id": "mine", "id": answer}[by])
        *chunks, last = await rest(connection)
        assert last == {"error": ABORTED}
        assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
        await front.idle()
        assert front.engine.stats().num_steps - steps <= 10
        assert not await abort(address, "mine")
        assert not await abort(address, answer)


@pytest.mark.parametrize("stream", [True, False])
async def test_what_is_queued_or_not_streamed_gets_a_status(make_front: Make, stream: bool) -> None:
    front = await make_front(FOREVER, max_num_seqs=1, token_s=0.01, options=WireOptions(head_delay_s=20))
    async with grpc_served(front) as address:
        other = {"content-type": "application/json", "x-request-id": "other"}
        body = {"model": "scripted", "prompt": "long", "max_tokens": 400}
        async with front.client.open("POST", "/v1/completions", body, headers=other) as running:
            await until(lambda: front.engine.stats().num_running == 1)
            async with opened(front, stream=stream, prompt="plain") as queued:
                await until(lambda: front.engine.stats().num_waiting == 1)
                assert await abort(address, "mine")
                answer = await queued.answer()
            assert (answer.status, answer.json()) == (409, {"error": ABORTED})
            assert answer.headers["x-should-retry"] == "false"
            await until(lambda: front.engine.stats().num_waiting == 0)
            assert front.engine.stats().num_running == 1
            assert await abort(address, "other")  # decoding, and not streamed
            assert (await running.answer()).status == 409


async def test_a_prefilling_request(make_front: Make) -> None:
    front = await make_front(FOREVER, chunk_s=0.02, max_batch_tokens=16, max_model_len=1024)
    async with grpc_served(front) as address, opened(front, stream=False, prompt="y" * 600) as connection:
        await until(lambda: len(front.batches) > 3)
        assert await abort(address, "mine")
        assert (await connection.answer()).status == 409
        begun = len(front.batches)
        await front.idle()
        assert len(front.batches) - begun < 5
        assert begun < 30  # of 40 chunks


async def test_a_request_whose_prompt_is_being_encoded(make_front: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    front = await make_front(FOREVER)
    complete, begun, encoded = front.service.complete, asyncio.Event(), asyncio.Event()

    async def slowly(call: Any) -> Any:
        begun.set()
        await encoded.wait()
        return await complete(call)

    monkeypatch.setattr(front.service, "complete", slowly)
    async with grpc_served(front) as address, opened(front, stream=True) as connection:
        await begun.wait()
        assert await abort(address, "mine")
        encoded.set()
        assert (await connection.answer()).status == 409
        assert front.engine.stats().num_steps == 0
    monkeypatch.undo()


async def test_a_reader_that_reads_nothing_holds_nothing(make_front: Make) -> None:
    front = await make_front(FOREVER, token_s=0.005)
    async with grpc_served(front) as address, opened(front, stream=True) as connection:
        await connection.head()
        await connection.part()
        connection.freeze()
        await until(lambda: front.engine.stats().num_generated_tokens > 5)
        assert await abort(address, "mine")
        await front.idle()  # before it is told


async def test_only_with_the_key_of_the_request(make_front: Make) -> None:
    front = await make_front(FOREVER, token_s=0.005, api_keys=("a", "b"))
    async with grpc_served(front, api_keys=("a", "b")) as address, opened(front, stream=True, key="a") as connection:
        await connection.head()
        assert not await abort(address, "mine", key="b")
        assert front.engine.stats().num_running == 1
        assert await abort(address, "mine", key="a")
        assert (await rest(connection))[-1] == {"error": ABORTED}


async def test_several_requests_of_one_id_end_together(make_front: Make) -> None:
    front = await make_front(FOREVER, token_s=0.005)
    async with (
        grpc_served(front) as address,
        opened(front, stream=True) as one,
        opened(front, stream=True) as other,
    ):
        for connection in (one, other):
            await connection.head()
        assert await abort(address, "mine")
        for connection in (one, other):
            assert (await rest(connection))[-1] == {"error": ABORTED}


async def test_over_grpc_the_status_has_the_same_code(make_front: Make) -> None:
    front = await make_front(FOREVER, token_s=0.005)
    body = json.dumps(front.chat_body("long"))
    requests = (
        ("GenerateStream", GenerateRequest(model="scripted", prompts=[Prompt(text="long")], sampling={"n": 3})),
        ("ChatStream", ChatRequest(model="scripted", messages=[ChatMessage(role="user", content="long")])),
        ("ChatStream", ChatRequest(openai_json=body)),
    )
    async with grpc_served(front) as address, grpc.aio.insecure_channel(address) as channel:
        for name, request in requests:
            stream = getattr(TokenStreamStub(channel), name)(request, metadata=(("x-request-id", "mine"),))
            first = await stream.read()
            by = json.loads(first.openai_json[0])["id"] if getattr(first, "openai_json", ()) else "mine"
            assert await abort(address, by)
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await drained(stream)
            assert raised.value.code() == grpc.StatusCode.ABORTED
            status, info = rpc_status.from_call(raised.value), ErrorInfo()
            assert status is not None
            assert status.details[0].Unpack(info)
            assert info.reason == "aborted"
            await front.idle()


async def test_each_request_of_an_interleaved_stream_is_told(make_front: Make) -> None:
    front = await make_front(FOREVER, token_s=0.005)

    async def requests() -> Any:
        for name in ("one", "two"):
            inputs = [
                triton.InferInput("text_input", [1], "BYTES").set_data_from_numpy(np.array([b"long"], object)),
                triton.InferInput("sampling_parameters", [1], "BYTES").set_data_from_numpy(
                    np.array([b'{"max_tokens": 400}'], object)
                ),
                triton.InferInput("stream", [1], "BOOL").set_data_from_numpy(np.array([True])),
            ]
            yield {"model_name": "scripted", "inputs": inputs, "request_id": name}

    async with grpc_served(front) as address, triton.InferenceServerClient(address) as client:
        failed: list[str] = []
        async for _, error in client.stream_infer(requests(), headers={"x-request-id": "mine"}):
            if error is not None:
                failed.append(error.message())
            elif front.engine.stats().num_running == 2:
                await abort(address, "mine")
        assert failed == [ABORTED["message"]] * 2
