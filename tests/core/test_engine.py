"""PagedEngine: streams on one asyncio loop, the engine's loop on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator

import pytest

from tickertape.core.backend import Capabilities
from tickertape.core.batch import Masks, StepOutput
from tickertape.core.engine import PagedEngine, paged_loop
from tickertape.core.errors import ContextLengthExceeded, EngineDead, RunnerError, StartupError, Unavailable
from tickertape.core.memory import Limits
from tickertape.core.ports import Engine
from tickertape.core.request import Request, SamplingParams, TokenDelta, pack_tokens
from tickertape.testing.oracle import OracleRunner

LIMITS = Limits(max_model_len=4000, max_num_seqs=8, max_batch_tokens=64, block_tokens=4)


def request(number: int, prompt: list[int], max_tokens: int) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, seed=0)
    return Request(id=number, prompt=pack_tokens(prompt), num_prompt_tokens=len(prompt), sampling=sampling)


async def text(stream: AsyncIterator[TokenDelta]) -> list[int]:
    return [token async for delta in stream for token in delta.tokens]


class SlowOracle(OracleRunner):
    """5 ms a step, so that a long request is certainly still running when the test says so."""

    def sample(self, masks: Masks | None) -> StepOutput:
        time.sleep(0.005)
        return super().sample(masks)


class Rig:
    """A started engine over an oracle."""

    def __init__(self, runner: OracleRunner | None = None) -> None:
        self.runner = runner or OracleRunner()
        loop, plan, _ = paged_loop(self.runner, LIMITS, Capabilities(), num_blocks=3000)
        self.engine = PagedEngine(loop, plan)

    async def __aenter__(self) -> Rig:
        await self.engine.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.engine.stop(0)
        assert "engine" not in [thread.name for thread in threading.enumerate()]

    async def settled(self) -> None:
        """The common end check, once the abort of the last stream has gone through."""
        for _ in range(200):
            stats = self.engine.stats()
            if not stats.num_running and not stats.num_waiting and not stats.num_used_blocks:
                break
            await asyncio.sleep(0.01)
        assert (stats.num_running, stats.num_waiting, stats.num_used_blocks) == (0, 0, 0)
        assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_blocks


async def test_sixty_four_streams_get_their_own_text() -> None:
    async with Rig() as rig:
        assert isinstance(rig.engine, Engine)
        prompts = [[i, i + 1, 5] for i in range(64)]
        texts = await asyncio.gather(
            *(text(rig.engine.generate(request(i, prompt, 20))) for i, prompt in enumerate(prompts))
        )
        assert texts == [rig.runner.expected(prompt, 20) for prompt in prompts]
        await rig.settled()


async def test_exactly_one_last_delta_has_finish() -> None:
    async with Rig() as rig:
        deltas = [delta async for delta in rig.engine.generate(request(1, [1, 2], 5))]
        assert [delta.finish is not None for delta in deltas] == [False] * 4 + [True]
        assert deltas[0].num_cached_tokens == 0
        assert all(delta.num_cached_tokens is None for delta in deltas[1:])


async def test_closing_the_stream_cancels_wherever_it_stands() -> None:
    async with Rig(SlowOracle()) as rig:
        streams = [rig.engine.generate(request(i, [i, 3], 3000)) for i in range(12)]
        first = [asyncio.ensure_future(anext(stream)) for stream in streams]
        await asyncio.wait(first[:8])
        for task in first[8:]:  # queued behind eight running ones: nothing came yet
            assert not task.done()
            task.cancel()
        await asyncio.gather(*first[8:], return_exceptions=True)
        for stream in streams[:8]:
            await stream.aclose()  # type: ignore[attr-defined]
        await rig.settled()
        assert rig.engine.stats().num_generated_tokens < 12 * 3000


async def test_a_refused_request_raises_and_others_go_on() -> None:
    async with Rig() as rig:
        other = asyncio.ensure_future(text(rig.engine.generate(request(1, [4], 50))))
        with pytest.raises(ContextLengthExceeded):
            await text(rig.engine.generate(request(2, [1] * 5000, 1)))
        assert await other == rig.runner.expected([4], 50)
        await rig.settled()


async def test_a_failed_step_is_a_runner_error_and_the_engine_lives() -> None:
    async with Rig() as rig:
        rig.runner.fail_steps = {3}
        with pytest.raises(RunnerError):
            await text(rig.engine.generate(request(1, [4], 50)))
        assert await text(rig.engine.generate(request(2, [4], 5))) == rig.runner.expected([4], 5)
        await rig.settled()


async def test_a_dead_engine_says_so_to_everyone() -> None:
    class Mortal(OracleRunner):
        def sample(self, masks: Masks | None) -> StepOutput:
            raise MemoryError("gone")

    loop, plan, _ = paged_loop(Mortal(), LIMITS, Capabilities(), num_blocks=100)
    engine = PagedEngine(loop, plan)
    with pytest.raises(Unavailable):
        await engine.health()
    await engine.start()
    await engine.health()
    with pytest.raises(EngineDead, match="MemoryError: gone"):
        await text(engine.generate(request(1, [4], 50)))
    with pytest.raises(EngineDead):
        await engine.health()
    with pytest.raises(EngineDead):
        await text(engine.generate(request(2, [4], 50)))
    await engine.stop(0)


async def test_stop_lets_running_streams_finish_within_the_grace() -> None:
    async with Rig() as rig:
        stream = rig.engine.generate(request(1, [4], 60))
        head = await anext(stream)
        rest = asyncio.ensure_future(text(stream))
        await rig.engine.stop(10)
        assert [*head.tokens, *await rest] == rig.runner.expected([4], 60)
        with pytest.raises(Unavailable):
            await text(rig.engine.generate(request(2, [4], 5)))


async def test_stop_ends_what_outlives_the_grace_with_a_reason() -> None:
    async with Rig(SlowOracle()) as rig:
        stream = rig.engine.generate(request(1, [4], 3900))
        await anext(stream)
        rest = asyncio.ensure_future(text(stream))
        await rig.engine.stop(0.01)
        with pytest.raises(Unavailable, match="shutting down"):
            await rest


async def test_a_stop_that_waits_may_be_overtaken_by_one_that_does_not() -> None:
    async with Rig(SlowOracle()) as rig:
        stream = rig.engine.generate(request(1, [2], 3000))
        await anext(stream)
        patient = asyncio.create_task(rig.engine.stop(60.0))
        await asyncio.sleep(0)
        await rig.engine.stop(0.0)
        assert not patient.done()  # the stream is still open: nobody has read its end
        with pytest.raises(Unavailable):
            await text(stream)
        await patient


def test_memory_must_be_named_and_must_suffice() -> None:
    with pytest.raises(ValueError, match="num_blocks or kv_cache_bytes"):
        paged_loop(OracleRunner(), LIMITS, Capabilities())
    with pytest.raises(StartupError, match="at least"):
        paged_loop(OracleRunner(), LIMITS, Capabilities(), kv_cache_bytes=10)
    _, plan, blocks = paged_loop(OracleRunner(), LIMITS, Capabilities(), kv_cache_bytes=100_000)
    assert blocks[0] * plan.groups[0].block_bytes <= 100_000
