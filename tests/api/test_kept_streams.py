"""Which messages of a kept stream can be read again, without a wire: the test says when there is one more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

import pytest

from tickertape.api.calls import CompletionCall, Decoding
from tickertape.api.kept_stream import KeptStream
from tickertape.api.kept_streams import KeptStreams, ResumeLimits
from tickertape.api.running import Running
from tickertape.core.errors import InvalidRequest, StreamNotFound
from tickertape.testing.front import Front, until

Make = Callable[..., Awaitable[Front]]


class Source:
    """Gives messages of 10 bytes, the numbers from 1 on, up to the one it may go to."""

    def __init__(self) -> None:
        self.num_given = 0
        self._may_go_to = 0
        self._more = asyncio.Event()

    def go_to(self, number: int) -> None:
        self._may_go_to = number
        self._more.set()

    async def messages(self) -> AsyncGenerator[bytes, None]:
        while True:
            while self.num_given == self._may_go_to:
                self._more.clear()
                await self._more.wait()
            self.num_given += 1
            yield b"%10d" % self.num_given


@asynccontextmanager
async def kept(front: Front, source: Source) -> AsyncIterator[KeptStream]:
    """A stream of which 100 bytes are kept."""
    streams = KeptStreams(Running(), ResumeLimits(max_bytes=100))
    call = CompletionCall(model="scripted", prompts=("go",), decoding=Decoding())
    generation = await front.service.complete(call)
    try:
        yield streams.open(
            generation, lambda _: source.messages(), tenant="", kind="Stream", request_id="r", deadline_s=None
        )
    finally:
        await streams.close()


async def read(stream: KeptStream, num_received: int, num: int) -> list[int]:
    """So many messages behind those received."""
    found: list[int] = []
    async with aclosing(stream.read(num_received)) as messages:
        while len(found) < num:
            found.append(int(await anext(messages)))
    return found


async def test_what_was_handed_out_stays_however_much_piles_up_behind_it(make_front: Make) -> None:
    source = Source()
    async with kept(await make_front(), source) as stream:
        source.go_to(1000)
        assert await read(stream, 0, 5) == [1, 2, 3, 4, 5]
        await until(lambda: source.num_given == 16)  # ten that nobody took, and one that has no room
        assert await read(stream, 1, 15) == list(range(2, 17))


async def test_without_a_reader_it_stops_and_goes_on_with_one(make_front: Make) -> None:
    source = Source()
    async with kept(await make_front(), source) as stream:
        source.go_to(1000)
        await until(lambda: source.num_given == 11)
        await asyncio.sleep(0.05)
        assert source.num_given == 11
        assert await read(stream, 0, 3) == [1, 2, 3]
        await until(lambda: source.num_given == 14)


async def test_who_reads_again_while_it_goes_on_misses_none(make_front: Make) -> None:
    source = Source()
    async with kept(await make_front(), source) as stream:
        source.go_to(9)
        assert await read(stream, 0, 9) == list(range(1, 10))
        async with aclosing(stream.read(1)) as messages:
            found = [int(await anext(messages))]
            source.go_to(1000)
            await until(lambda: source.num_given == 20)
            found += [int(await anext(messages)) for _ in range(50)]
    assert found == list(range(2, 53))


async def test_the_oldest_that_were_handed_out_are_dropped_beyond_the_bound(make_front: Make) -> None:
    source = Source()
    async with kept(await make_front(), source) as stream:
        source.go_to(25)
        assert await read(stream, 0, 25) == list(range(1, 26))
        with pytest.raises(StreamNotFound, match="not kept"):
            await read(stream, 14, 1)
        assert await read(stream, 15, 10) == list(range(16, 26))
        with pytest.raises(InvalidRequest, match="received"):
            await read(stream, 26, 1)
