"""Topic d of the case list, the gRPC side: who is gone, late or slow costs nothing more."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo
from grpc_status import rpc_status

from tickertape.api.grpc.options import GrpcOptions
from tickertape.api.proto.tickertape.v1.generate_pb2 import GenerateRequest, Prompt
from tickertape.api.proto.tickertape.v1.sampling_pb2 import Sampling
from tickertape.api.proto.tickertape.v1.token_stream_pb2 import AbortRequest
from tickertape.api.proto.tickertape.v1.token_stream_pb2_grpc import TokenStreamStub
from tickertape.testing.front import PLAIN_TEXT, Front, spoken, until
from tickertape.testing.grpc_front import grpc_served

Make = Callable[..., Awaitable[Front]]

FOREVER = {"when": spoken("long"), "tokens": spoken("x"), "then": "repeat"}
BIG = 6 << 20


def asked(text: str = "long", max_tokens: int = 400, **more: Any) -> GenerateRequest:
    sampling = Sampling(max_tokens=max_tokens, **more)
    return GenerateRequest(model="scripted", prompts=[Prompt(text=text)], sampling=sampling)


async def drained(stream: Any) -> None:
    while await stream.read() is not grpc.aio.EOF:
        pass


def outcomes(front: Front) -> dict[str, float]:
    found: dict[str, float] = {}
    for family in front.metrics.registry.collect():
        for sample in family.samples:
            if sample.name == "tickertape_requests_total":
                found[sample.labels["outcome"]] = found.get(sample.labels["outcome"], 0) + sample.value
    return found


async def test_case_078_a_hundred_cancelled_streams_leave_room_for_one_more(make_front: Make) -> None:
    front = await make_front(FOREVER, max_num_seqs=10, token_s=0.002)
    async with grpc_served(front) as address, grpc.aio.insecure_channel(address) as channel:
        stub = TokenStreamStub(channel)
        pool = asyncio.Semaphore(10)

        async def come_and_go() -> None:
            async with pool:
                stream = stub.GenerateStream(asked())
                assert (await stream.read()).choices[0].text == "x"
                stream.cancel()

        await asyncio.gather(*(come_and_go() for _ in range(100)))
        answer = await stub.Generate(asked("plain", 40), timeout=10)
        assert answer.choices[0].text.strip() == PLAIN_TEXT
        await front.idle()
        assert outcomes(front)["cancelled"] == 100


async def test_a_cancel_ends_the_work_within_a_step_or_two(make_front: Make) -> None:
    front = await make_front(FOREVER, token_s=0.05)
    async with grpc_served(front) as address, grpc.aio.insecure_channel(address) as channel:
        stream = TokenStreamStub(channel).GenerateStream(asked())
        await stream.read()
        steps = front.engine.stats().num_steps
        stream.cancel()
        await front.idle()
        assert front.engine.stats().num_steps - steps <= 3


@pytest.mark.parametrize("stream", [True, False])
async def test_case_079_a_deadline_in_mid_stream(make_front: Make, stream: bool) -> None:
    front = await make_front(FOREVER, token_s=0.0125)
    async with grpc_served(front) as address, grpc.aio.insecure_channel(address) as channel:
        stub = TokenStreamStub(channel)
        begun = time.monotonic()
        late = drained(stub.GenerateStream(asked(), timeout=0.3)) if stream else stub.Generate(asked(), timeout=0.3)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await late
        assert raised.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert time.monotonic() - begun < 4  # of 5 s
        await front.idle()
        assert front.engine.stats().num_generated_tokens < 100


async def test_a_deadline_bounds_the_wait_in_the_queue(make_front: Make) -> None:
    front = await make_front(FOREVER, max_num_seqs=1, token_s=0.01)
    async with grpc_served(front) as address, grpc.aio.insecure_channel(address) as channel:
        stub = TokenStreamStub(channel)
        first = stub.GenerateStream(asked())
        await first.read()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.Generate(asked("plain"), timeout=0.2)
        assert raised.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: front.engine.stats().num_waiting == 0)
        assert front.engine.stats().num_running == 1
        first.cancel()


async def test_case_079_a_server_side_abort(make_front: Make) -> None:
    front = await make_front(FOREVER, token_s=0.01)
    async with grpc_served(front) as address, grpc.aio.insecure_channel(address) as channel:
        stub = TokenStreamStub(channel)
        stream = stub.GenerateStream(asked(), metadata=(("x-request-id", "mine"),))
        await stream.read()
        assert dict(await stream.initial_metadata())["x-request-id"] == "mine"
        assert not (await stub.Abort(AbortRequest(request_id="another"))).found
        assert (await stub.Abort(AbortRequest(request_id="mine"))).found
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await drained(stream)
        assert raised.value.code() == grpc.StatusCode.ABORTED
        await front.idle()
        assert not (await stub.Abort(AbortRequest(request_id="mine"))).found


async def test_the_request_of_another_key_cannot_be_aborted(make_front: Make) -> None:
    front = await make_front(FOREVER, token_s=0.01)
    async with grpc_served(front, api_keys=("a", "b")) as address, grpc.aio.insecure_channel(address) as channel:
        stub = TokenStreamStub(channel)
        stream = stub.GenerateStream(asked(), metadata=(("authorization", "Bearer a"), ("x-request-id", "mine")))
        await stream.read()
        for key, found in (("b", False), ("a", True)):
            metadata = (("authorization", f"Bearer {key}"),)
            assert (await stub.Abort(AbortRequest(request_id="mine"), metadata=metadata)).found is found


PING, GOAWAY, HEADERS, DATA, SETTINGS = 6, 7, 1, 0, 4


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Of HTTP/2."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def call_frames(request: GenerateRequest) -> bytes:
    """A call on stream 1: its headers, none of them compressed, and its one message."""
    headers = {
        ":method": "POST", ":scheme": "http", ":path": "/tickertape.v1.TokenStream/GenerateStream",
        ":authority": "localhost", "te": "trailers", "content-type": "application/grpc",
    }  # fmt: skip
    block = b"".join(
        bytes((0, len(name))) + name.encode() + bytes((len(value),)) + value.encode() for name, value in headers.items()
    )
    message = request.SerializeToString()
    return frame(HEADERS, 4, 1, block) + frame(DATA, 1, 1, struct.pack(">BI", 0, len(message)) + message)


@pytest.mark.parametrize("queued", [False, True])
async def test_pings_at_will_on_an_idle_and_on_a_queued_channel(make_front: Make, queued: bool) -> None:
    """Servers of default settings answer the third such ping with GOAWAY, too_many_pings. Spoken by hand, since client
    libraries hold such pings back."""
    front = await make_front(FOREVER, max_num_seqs=1, token_s=0.005)
    async with grpc_served(front) as address, grpc.aio.insecure_channel(address) as busy:
        first = TokenStreamStub(busy).GenerateStream(asked())
        await first.read()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, b""))
        if queued:
            writer.write(call_frames(asked("plain")))
            await until(lambda: front.engine.stats().num_waiting == 1)
        acknowledged = 0
        for _ in range(20):
            writer.write(frame(PING, 0, 0, b"12345678"))
            while True:
                head = await asyncio.wait_for(reader.readexactly(9), 5)
                await reader.readexactly(int.from_bytes(head[:3], "big"))
                assert head[3] != GOAWAY
                if head[3] == PING and head[4] == 1:
                    acknowledged += 1
                    break
            await asyncio.sleep(0.02)
        assert acknowledged == 20
        writer.close()
        first.cancel()


async def test_case_081_large_prompts(make_front: Make) -> None:
    front = await make_front()
    async with (
        grpc_served(front, options=GrpcOptions(max_message_bytes=7 << 20)) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        stub = TokenStreamStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.Generate(asked("y" * BIG))
        assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        info, violation = ErrorInfo(), BadRequest()
        status = rpc_status.from_call(raised.value)
        assert status is not None
        status.details[0].Unpack(info)
        status.details[1].Unpack(violation)
        assert info.reason == "context_length_exceeded"
        assert violation.field_violations[0].field == "prompts"
        answer = await stub.Generate(asked("y" * BIG, 40, truncate_prompt_tokens=5))
        assert answer.usage.prompt_tokens == 5
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.Generate(asked("y" * (8 << 20)))
        assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert str(7 << 20) in (raised.value.details() or "")


async def test_a_reader_that_stops_is_dropped_and_its_stream_with_it(make_front: Make) -> None:
    front = await make_front(FOREVER, max_model_len=40_000, num_blocks=2600)
    options = GrpcOptions(send_timeout_s=0.3)
    window = [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]
    async with grpc_served(front, options=options) as address, grpc.aio.insecure_channel(address, window) as channel:
        stream = TokenStreamStub(channel).GenerateStream(asked("long", 39_000, logprobs=5))
        await stream.read()
        await until(lambda: front.engine.stats().num_running == 0, 20)
        assert front.engine.stats().num_generated_tokens < 30_000
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await drained(stream)
        assert raised.value.code() == grpc.StatusCode.CANCELLED
