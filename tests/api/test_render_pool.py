"""Rendering off the event loop: nothing a template does may hold the loop up, and the line before it is bounded."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from tickertape.api.render_pool import RenderPool
from tickertape.api.templates import ChatTemplate
from tickertape.core.errors import InvalidRequest, Overloaded
from tickertape.testing import templates

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def pool() -> Iterator[RenderPool]:
    pool = RenderPool(num_threads=1, max_waiting=2)
    yield pool
    pool.close()


async def test_a_render_comes_back(pool: RenderPool) -> None:
    template = ChatTemplate({"default": ("test", "{{ messages[0].content }}{{ x }}")}, special_tokens={})
    assert await pool.render(template, MESSAGES, kwargs={"x": 1}) == "Hi1"


async def test_a_refusal_comes_back(pool: RenderPool) -> None:
    template = ChatTemplate({"default": ("test", templates.SYSTEM_REFUSED)}, special_tokens={})
    with pytest.raises(InvalidRequest, match="System role not supported"):
        await pool.render(template, [{"role": "system", "content": ""}])


async def test_a_hostile_loop_does_not_hold_the_event_loop(pool: RenderPool) -> None:
    template = ChatTemplate({"default": ("test", templates.HOSTILE_LOOPS)}, special_tokens={}, time_limit_s=0.5)
    render = asyncio.create_task(pool.render(template, MESSAGES))
    longest_s, num_ticks = 0.0, 0
    while not render.done():
        began = time.perf_counter()
        await asyncio.sleep(0.001)
        longest_s, num_ticks = max(longest_s, time.perf_counter() - began), num_ticks + 1
    assert num_ticks > 10
    assert longest_s < 0.25
    with pytest.raises(InvalidRequest, match="took too long"):
        await render


async def test_the_line_is_bounded_and_moves_on(pool: RenderPool) -> None:
    gate = threading.Event()
    jobs = [asyncio.create_task(pool.run(gate.wait)) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded) as caught:
        await pool.run(gate.wait)
    assert caught.value.code == "queue_full"
    assert caught.value.retry_after_s
    gate.set()
    assert await asyncio.gather(*jobs) == [True] * 3
    assert await pool.run(lambda: 5) == 5


async def test_a_cancelled_job_leaves_the_line(pool: RenderPool) -> None:
    gate, ran = threading.Event(), []
    running = asyncio.create_task(pool.run(gate.wait))
    waiting = [asyncio.create_task(pool.run(lambda: ran.append(1))) for _ in range(2)]
    await asyncio.sleep(0.01)
    for job in waiting:
        job.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    again = [asyncio.create_task(pool.run(lambda: 7)) for _ in range(2)]
    await asyncio.sleep(0.01)
    gate.set()
    assert await asyncio.gather(running, *again) == [True, 7, 7]
    assert not ran


async def test_a_cancelled_running_job_keeps_its_place_until_it_ends(pool: RenderPool) -> None:
    gate = threading.Event()
    running = asyncio.create_task(pool.run(gate.wait))
    await asyncio.sleep(0.01)
    running.cancel()
    waiting = [asyncio.create_task(pool.run(lambda: 7)) for _ in range(2)]
    await asyncio.sleep(0.01)
    with pytest.raises(Overloaded):
        await pool.run(lambda: 7)
    gate.set()
    assert await asyncio.gather(*waiting) == [7, 7]
