"""The transport between the front and its children."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tickertape.core.messages import Abort, Emit, Failure, FromWorker, Stop, Submit, ToWorker
from tickertape.core.ports import EngineStats
from tickertape.core.request import Finish, Request, SamplingParams, TokenDelta
from tickertape.frames import FrameReader, encode_frames
from tickertape.link import AsyncLink, Link, LinkError


def submit(number: int, prompt: bytes) -> Submit:
    return Submit(
        Request(
            id=number,
            prompt=prompt,
            num_prompt_tokens=len(prompt) // 4,
            sampling=SamplingParams(max_tokens=1, seed=number),
        )
    )


def open_descriptors() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


# Below, at and over the sizes at which a prompt leaves its message and becomes a memfd.
prompts = st.sampled_from([0, 4, 4092, 4096, 65536, 262140, 262144, 400_000]).map(
    lambda size: os.urandom(4) * (size // 4)
)
to_worker = st.one_of(
    st.builds(submit, st.integers(0, 2**62), prompts),
    st.builds(Abort, st.lists(st.integers(0, 2**62), max_size=5).map(tuple)),
    st.just(Stop()),
)


@given(messages=st.lists(to_worker, min_size=1, max_size=12), step=st.integers(1, 100_000))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_frames_round_trip_however_the_stream_is_cut(messages: list[ToWorker], step: int) -> None:
    before = open_descriptors()
    reader: FrameReader[ToWorker] = FrameReader(ToWorker)
    received: list[ToWorker] = []
    for frame in encode_frames(messages):
        descriptors = frame.descriptors
        for start in range(0, len(frame.data), step):
            received += reader.feed(frame.data[start : start + step], descriptors)
            descriptors = ()
    assert received == messages
    assert reader.between_frames
    reader.close()
    assert open_descriptors() == before


def test_more_memfds_than_a_frame_may_carry_take_several_frames() -> None:
    messages = [submit(number, bytes(300_000)) for number in range(150)]
    frames = encode_frames(messages)
    assert [len(frame.descriptors) for frame in frames] == [64, 64, 22]
    reader: FrameReader[ToWorker] = FrameReader(ToWorker)
    received = [message for frame in frames for message in reader.feed(frame.data, frame.descriptors)]
    assert received == messages


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


def test_blocking_ends_exchange_large_and_small_messages() -> None:
    before = open_descriptors()
    ours, theirs = pair()
    front: Link[FromWorker] = Link(ours, FromWorker)
    worker: Link[ToWorker] = Link(theirs, ToWorker)
    sent = [submit(1, bytes(3_000_000)), submit(2, b"abcd"), submit(3, bytes(100_000)), Stop()]
    thread = threading.Thread(target=front.send, args=sent)
    thread.start()
    received: list[ToWorker] = []
    while len(received) < len(sent):
        received += worker.receive()
    thread.join()
    front.close()
    assert worker.receive() == []
    worker.close()
    assert received == sent
    assert open_descriptors() == before


def test_a_clean_end_is_an_empty_list_and_a_cut_frame_an_error() -> None:
    ours, theirs = pair()
    link: Link[ToWorker] = Link(theirs, ToWorker)
    ours.sendall(encode_frames([Stop()])[0].data)
    ours.close()
    assert link.receive() == [Stop()]
    assert link.receive() == []
    link.close()

    ours, theirs = pair()
    link = Link(theirs, ToWorker)
    ours.sendall(encode_frames([Stop()])[0].data[:-1])
    ours.close()
    with pytest.raises(LinkError, match="middle of a frame"):
        link.receive()
    link.close()


def frame(header: bytes, tail: bytes = b"") -> bytes:
    return struct.pack("<I", len(header)) + header + tail


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (struct.pack("<I", 1 << 31), "claims a header"),
        (frame(b"\xc1"), "malformed"),
        (frame(msgspec.msgpack.encode([[{"type": "launch"}], []])), "malformed"),
        (frame(msgspec.msgpack.encode([[{"type": "submit"}], []])), "malformed"),
        (frame(msgspec.msgpack.encode([[{"type": "stop"}], [[1, 4, False]]])), "impossible buffer"),
        (frame(msgspec.msgpack.encode([[{"type": "stop"}], [[0, 1 << 40, False]]])), "impossible buffer"),
        (frame(msgspec.msgpack.encode([[{"type": "stop"}], [[0, 4, False]]]), b"abcd"), "takes none"),
        (frame(msgspec.msgpack.encode([[{"type": "stop"}], [[0, 4, True]]])), "did not come"),
        (b"\x80\x04\x95" + b"cos\nsystem\n(S'true'\ntR.", "claims a header|malformed"),  # a pickle does nothing
    ],
)
def test_malformed_frames_raise(data: bytes, message: str) -> None:
    reader: FrameReader[ToWorker] = FrameReader(ToWorker)
    with pytest.raises(LinkError, match=message):
        reader.feed(data)


def test_a_short_memfd_raises_and_is_closed() -> None:
    before = open_descriptors()
    frame_ = encode_frames([submit(1, bytes(300_000))])[0]
    os.truncate(frame_.descriptors[0], 100)
    reader: FrameReader[ToWorker] = FrameReader(ToWorker)
    with pytest.raises(LinkError, match="holds 100 of 300000"):
        reader.feed(frame_.data, frame_.descriptors)
    reader.close()
    assert open_descriptors() == before


class Heard:
    """What an AsyncLink told its owner."""

    def __init__(self) -> None:
        self.batches: list[list[ToWorker]] = []
        self.closed: list[Exception | None] = []
        self.news = asyncio.Event()

    def messages(self, messages: list[ToWorker]) -> None:
        self.batches.append(messages)
        self.news.set()

    def close(self, error: Exception | None) -> None:
        self.closed.append(error)
        self.news.set()

    async def until_closed(self) -> None:
        while not self.closed:
            self.news.clear()
            await asyncio.wait_for(self.news.wait(), 5)


async def test_async_ends_batch_what_is_said_in_one_tick() -> None:
    ours, theirs = pair()
    heard, back = Heard(), Heard()
    worker: AsyncLink[ToWorker] = AsyncLink(theirs, ToWorker, on_messages=heard.messages, on_close=heard.close)
    front: AsyncLink[ToWorker] = AsyncLink(ours, ToWorker, on_messages=back.messages, on_close=back.close)
    sent = [submit(number, b"abcd") for number in range(5)]
    for message in sent:
        front.send(message)
    await asyncio.wait_for(heard.news.wait(), 5)
    assert heard.batches == [sent]
    front.close()
    front.send(Stop())  # after the end: dropped
    await heard.until_closed()
    assert heard.closed == [None]
    assert worker.closed


async def test_async_writes_wait_for_a_slow_reader_without_losing_or_leaking() -> None:
    before = open_descriptors()
    ours, theirs = pair()
    back = Heard()
    front: AsyncLink[ToWorker] = AsyncLink(ours, ToWorker, on_messages=back.messages, on_close=back.close)
    worker: Link[ToWorker] = Link(theirs, ToWorker)
    sent: list[ToWorker] = [submit(number, bytes(200_000 if number % 2 else 300_000)) for number in range(40)]
    front.send(*sent)
    await asyncio.sleep(0)  # encodes and fills the socket
    await asyncio.sleep(0)
    drained = asyncio.ensure_future(front.drain())
    await asyncio.sleep(0.02)
    assert not drained.done()

    received: list[ToWorker] = []

    def read_all() -> None:
        while len(received) < len(sent):
            received.extend(worker.receive())

    await asyncio.to_thread(read_all)
    await asyncio.wait_for(drained, 5)
    assert received == sent
    front.send(*sent)  # and what is never read is given up with the link
    await asyncio.sleep(0.01)
    front.close()
    worker.close()
    assert {name for name in open_descriptors() - before if "socket" in os.readlink(f"/proc/self/fd/{name}")} == set()
    assert not [name for name in open_descriptors() - before if "memfd" in os.readlink(f"/proc/self/fd/{name}")]


async def test_the_async_end_reports_garbage_once() -> None:
    ours, theirs = pair()
    heard = Heard()
    AsyncLink(theirs, ToWorker, on_messages=heard.messages, on_close=heard.close)
    ours.sendall(frame(b"\xc1") * 2)
    await heard.until_closed()
    assert len(heard.closed) == 1
    assert isinstance(heard.closed[0], LinkError)
    ours.close()


async def test_the_async_end_delivers_what_came_before_the_end() -> None:
    ours, theirs = pair()
    heard = Heard()
    ours.sendall(encode_frames([Stop(), Abort((1,))])[0].data)
    ours.close()
    AsyncLink(theirs, ToWorker, on_messages=heard.messages, on_close=heard.close)
    await heard.until_closed()
    assert heard.batches == [[Stop(), Abort((1,))]]
    assert heard.closed == [None]


def test_an_emit_survives_the_crossing_whole() -> None:
    emit = Emit(
        epoch=3,
        deltas=[
            (1, TokenDelta(tokens=(5, 6), num_cached_tokens=2)),
            (2, TokenDelta(tokens=(7,), finish=Finish("stop", 7))),
        ],
        failures=[(4, Failure("RowError", "NaN", "row_error"))],
        stats=EngineStats(num_running=2, step_p99_s=0.25),
    )
    reader: FrameReader[FromWorker] = FrameReader(FromWorker)
    assert reader.feed(encode_frames([emit])[0].data) == [emit]
