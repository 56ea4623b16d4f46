"""The front's side of an engine that lives in a worker. The link is real; the worker's end is played by the test."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from tickertape.core.errors import EngineDead, RowError, TickertapeError, Unavailable
from tickertape.core.memory import MemoryPlan
from tickertape.core.messages import Abort, Emit, Failure, FromWorker, Ready, Submit, ToWorker
from tickertape.core.ports import Engine, EngineStats
from tickertape.core.request import Finish, Request, SamplingParams, TokenDelta, TokenLogprobs, pack_tokens
from tickertape.journal import merge
from tickertape.link import AsyncLink
from tickertape.remote_engine import RemoteEngine

PLAN = MemoryPlan(1, 2, 3, ())
RESTARTING = Unavailable("The engine is being restarted", code="restarting")


def request(number: int, *, arrival: float = 0.0) -> Request:
    return Request(
        id=number,
        prompt=pack_tokens([1, 2]),
        num_prompt_tokens=2,
        sampling=SamplingParams(max_tokens=9, seed=0),
        arrival=arrival,
    )


class FakeWorker:
    """The worker's end: what it heard, and a voice."""

    def __init__(self, engine: RemoteEngine, epoch: int) -> None:
        ours, theirs = socket.socketpair()
        self.epoch = epoch
        self.heard: asyncio.Queue[ToWorker] = asyncio.Queue()
        self._engine = engine
        self.front: AsyncLink[FromWorker] = AsyncLink(ours, FromWorker, on_messages=self._to_engine, on_close=ignore)
        self.link: AsyncLink[ToWorker] = AsyncLink(theirs, ToWorker, on_messages=self._hear, on_close=ignore)

    def become_ready(self) -> None:
        self._engine.attach(self.front, Ready(self.epoch, PLAN, (), EngineStats()))

    def emit(self, *deltas: tuple[int, TokenDelta], failures: list[tuple[int, Failure]] | None = None) -> None:
        self.link.send(Emit(self.epoch, list(deltas), failures or [], EngineStats(num_steps=7)))

    async def hear(self) -> ToWorker:
        return await asyncio.wait_for(self.heard.get(), 5)

    def close(self) -> None:
        self.front.close()
        self.link.close()

    def _hear(self, messages: list[ToWorker]) -> None:
        for message in messages:
            self.heard.put_nowait(message)

    def _to_engine(self, messages: list[FromWorker]) -> None:
        for message in messages:
            assert isinstance(message, Emit)
            self._engine.receive(message)


def ignore(_: Exception | None) -> None:
    pass


@pytest.fixture
async def engine() -> RemoteEngine:
    return RemoteEngine()


@pytest.fixture
async def worker(engine: RemoteEngine) -> AsyncIterator[FakeWorker]:
    fake = FakeWorker(engine, epoch=4)
    fake.become_ready()
    yield fake
    fake.close()


async def collect(engine: RemoteEngine, number: int, *, arrival: float = 0.0) -> list[TokenDelta]:
    return [delta async for delta in engine.generate(request(number, arrival=arrival))]


async def soon() -> None:
    await asyncio.sleep(0.02)


async def test_it_is_an_engine(engine: RemoteEngine) -> None:
    assert isinstance(engine, Engine)


async def test_deltas_reach_their_own_stream_until_the_finish(engine: RemoteEngine, worker: FakeWorker) -> None:
    first = asyncio.create_task(collect(engine, 1))
    second = asyncio.create_task(collect(engine, 2))
    assert {
        message.request.id for message in [await worker.hear(), await worker.hear()] if isinstance(message, Submit)
    } == {1, 2}
    worker.emit((1, TokenDelta((5,))), (2, TokenDelta((6,))))
    await soon()
    worker.emit((1, TokenDelta((7,), finish=Finish("stop", 7))), (2, TokenDelta((8,), finish=Finish("length"))))
    assert [d.tokens for d in await first] == [(5,), (7,)]
    assert [d.tokens for d in await second] == [(6,), (8,)]
    assert engine.stats().num_steps == 7
    assert engine.plan() == PLAN
    await soon()
    assert worker.heard.empty()  # a finished stream is not aborted


async def test_closing_a_stream_aborts_it(engine: RemoteEngine, worker: FakeWorker) -> None:
    async with aclosing(engine.generate(request(1))) as stream:  # type: ignore[type-var]
        pending = asyncio.ensure_future(anext(stream))
        await worker.hear()
        worker.emit((1, TokenDelta((5,))))
        await pending
    assert await worker.hear() == Abort((1,))
    worker.emit((1, TokenDelta((6,))))  # too late: for nobody
    await soon()


async def test_a_cancelled_reader_aborts_a_queued_request(engine: RemoteEngine, worker: FakeWorker) -> None:
    task = asyncio.create_task(collect(engine, 1))
    await worker.hear()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await worker.hear() == Abort((1,))


async def test_a_failure_comes_after_what_was_produced(engine: RemoteEngine, worker: FakeWorker) -> None:
    stream = engine.generate(request(1))
    pending = asyncio.ensure_future(anext(stream))
    await worker.hear()
    worker.emit((1, TokenDelta((5,))), failures=[(1, Failure("RowError", "NaN", "row_error"))])
    assert (await pending).tokens == (5,)
    with pytest.raises(RowError, match="NaN"):
        await anext(stream)


async def test_a_slow_reader_gets_what_it_missed_as_one_delta(engine: RemoteEngine, worker: FakeWorker) -> None:
    stream = engine.generate(request(1))
    pending = asyncio.ensure_future(anext(stream))
    await worker.hear()
    worker.emit((1, TokenDelta((0,), num_cached_tokens=1)))
    assert (await pending).num_cached_tokens == 1
    for token in range(1, 9):
        worker.emit((1, TokenDelta((token,), finish=Finish("length") if token == 8 else None)))
        await asyncio.sleep(0)
    await soon()
    assert await anext(stream) == TokenDelta(tuple(range(1, 9)), finish=Finish("length"))
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_an_emit_of_another_epoch_is_dropped(engine: RemoteEngine, worker: FakeWorker) -> None:
    stream = engine.generate(request(1))
    pending = asyncio.ensure_future(anext(stream))
    await worker.hear()
    worker.epoch = 3
    worker.emit((1, TokenDelta((9,))))
    await soon()
    assert not pending.done()
    worker.epoch = 4
    worker.emit((1, TokenDelta((5,))))
    assert (await pending).tokens == (5,)
    await stream.aclose()  # type: ignore[attr-defined]


async def test_a_death_fails_what_had_begun_and_keeps_the_rest_for_the_next_worker(
    engine: RemoteEngine, worker: FakeWorker
) -> None:
    begun = asyncio.create_task(collect(engine, 1))
    late = asyncio.create_task(collect(engine, 2, arrival=5.0))
    early = asyncio.create_task(collect(engine, 3, arrival=4.0))
    gone = asyncio.create_task(collect(engine, 4))
    for _ in range(4):
        await worker.hear()
    worker.emit((1, TokenDelta((5,))))
    await soon()
    engine.detach(RESTARTING)
    with pytest.raises(EngineDead):
        await begun
    with pytest.raises(Unavailable) as refused:
        await collect(engine, 5)
    assert refused.value.code == "restarting"
    with pytest.raises(Unavailable):
        await engine.health()
    gone.cancel()
    await soon()

    second = FakeWorker(engine, epoch=5)
    second.become_ready()
    await engine.health()
    assert [await second.hear(), await second.hear()] == [
        Submit(request(3, arrival=4.0)),
        Submit(request(2, arrival=5.0)),
    ]
    second.emit((2, TokenDelta((1,), finish=Finish("stop"))), (3, TokenDelta((2,), finish=Finish("stop"))))
    assert [d.tokens for d in await late] == [(1,)]
    assert [d.tokens for d in await early] == [(2,)]
    await soon()
    assert second.heard.empty()
    second.close()


async def test_a_request_that_may_be_killing_the_workers_is_given_up(engine: RemoteEngine, worker: FakeWorker) -> None:
    suspect = asyncio.create_task(collect(engine, 1))
    await worker.hear()
    engine.detach(RESTARTING)
    second = FakeWorker(engine, epoch=5)
    second.become_ready()
    await second.hear()
    late = asyncio.create_task(collect(engine, 2))
    await second.hear()
    engine.detach(RESTARTING)
    with pytest.raises(EngineDead):
        await suspect
    third = FakeWorker(engine, epoch=6)
    third.become_ready()
    assert await third.hear() == Submit(request(2))
    third.emit((2, TokenDelta((1,), finish=Finish("stop"))))
    assert [d.tokens for d in await late] == [(1,)]
    await soon()
    assert third.heard.empty()
    second.close()
    third.close()


async def test_giving_up_fails_everything(engine: RemoteEngine, worker: FakeWorker) -> None:
    waiting = asyncio.create_task(collect(engine, 1))
    await worker.hear()
    engine.detach(RESTARTING)
    engine.give_up(EngineDead("again and again"))
    with pytest.raises(EngineDead, match="again"):
        await waiting
    with pytest.raises(EngineDead, match="again"):
        await collect(engine, 2)


async def test_stopping_waits_for_open_streams_and_refuses_new_ones(engine: RemoteEngine, worker: FakeWorker) -> None:
    running = asyncio.create_task(collect(engine, 1))
    await worker.hear()
    stopping = asyncio.create_task(engine.stop(5.0))
    await soon()
    with pytest.raises(Unavailable) as refused:
        await collect(engine, 2)
    assert refused.value.code == "draining"
    assert not stopping.done()
    worker.emit((1, TokenDelta((5,), finish=Finish("stop"))))
    assert [d.tokens for d in await running] == [(5,)]
    await asyncio.wait_for(stopping, 1)


async def test_stopping_fails_what_outlasts_the_grace(engine: RemoteEngine, worker: FakeWorker) -> None:
    running = asyncio.create_task(collect(engine, 1))
    await worker.hear()
    await engine.stop(0.05)
    with pytest.raises(TickertapeError) as ended:
        await running
    assert ended.value.code == "draining"


def test_merging_keeps_every_part() -> None:
    def logprobs(token: int) -> tuple[TokenLogprobs, ...]:
        return (TokenLogprobs((token,), (-0.5,), 1),)

    merged = merge(
        [
            TokenDelta((), prompt_logprobs=logprobs(1)),
            TokenDelta((5,), logprobs=logprobs(5), prompt_logprobs=logprobs(2), num_cached_tokens=0),
            TokenDelta((6,), logprobs=logprobs(6), finish=Finish("length")),
        ]
    )
    assert merged == TokenDelta(
        (5, 6),
        logprobs=logprobs(5) + logprobs(6),
        prompt_logprobs=logprobs(1) + logprobs(2),
        num_cached_tokens=0,
        finish=Finish("length"),
    )
