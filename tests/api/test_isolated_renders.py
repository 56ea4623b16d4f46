"""Chat templates that come with a request: refused by default, else rendered where they can do no harm."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tickertape.api.isolated_renders import IsolatedRenders
from tickertape.api.options import WireOptions
from tickertape.testing import templates
from tickertape.testing.front import Front, until
from tickertape.testing.openai_stream import told

Make = Callable[..., Awaitable[Front]]

TRUSTED = WireOptions(trust_chat_templates=True)


async def trusting(make_front: Make, **limits: Any) -> Front:
    return await make_front(options=TRUSTED, isolated=IsolatedRenders(**limits))


async def prompt(front: Front, template: str, **fields: Any) -> str:
    answer = await front.chat("q", chat_template=template, return_token_ids=True, **fields)
    assert answer.status == 200, answer.body
    return front.tokenizer.decode(answer.json()["prompt_token_ids"], skip_special_tokens=False)


async def fault(front: Front, template: str, **fields: Any) -> tuple[str, str]:
    answer = await front.chat("q", chat_template=template, **fields)
    error = answer.json()["error"]
    assert answer.status == 400, error
    assert "\n" not in error["message"]
    return error["param"], error["message"]


def children() -> list[str]:
    """The ids of our children that render, dead ones that nobody waited for too."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = (directory / "stat").read_text().rpartition(")")[2].split()[1]
            if parent == str(os.getpid()) and b"isolated_render" in (directory / "cmdline").read_bytes():
                found.append(directory.name)
    return found


async def test_case_124_refused_by_default(make_front: Make) -> None:
    front = await make_front()
    for stream in (False, True):
        answer = await front.chat("q", chat_template="{{ messages }}", stream=stream)
        error = answer.json()["error"]
        assert (answer.status, error["param"], error["code"]) == (400, "chat_template", "unsupported_value")
    lenient = await make_front(options=WireOptions(lenient=True))
    answer = await lenient.chat("q", chat_template="{{ messages }}")
    assert answer.headers["x-tickertape-ignored"] == "chat_template"


async def test_a_template_that_is_trusted(make_front: Make) -> None:
    front = await trusting(make_front)
    template = "{{ mood }}:{{ messages[0].content }}{{ eos_token }}{% if add_generation_prompt %}>{% endif %}"
    fields = {"chat_template_kwargs": {"mood": "glad"}}
    assert await prompt(front, template, **fields) == "glad:q<|im_end|>>"
    assert await prompt(front, template, add_generation_prompt=False, **fields) == "glad:q<|im_end|>"
    assert await prompt(front, "{{ reasoning_effort }}", reasoning_effort="high") == "high"
    tool = {"type": "function", "function": {"name": "f"}}
    assert await prompt(front, "{{ tools[0].function.name }}", tools=[tool]) == "f"
    assert told(await front.chat("q", chat_template="x", stream=True))[0].text
    assert children() == []


async def test_the_faults_of_a_template_are_told_as_its_own(make_front: Make) -> None:
    front = await trusting(make_front)
    assert await fault(front, "{{ raise_exception('no systems') }}") == ("messages", "no systems")
    param, message = await fault(front, "{% for %}")
    assert param == "chat_template"
    assert "line 1" in message
    assert (await fault(front, templates.HOSTILE_ATTRIBUTES))[0] == "messages"
    assert (await fault(front, "x", chat_template_kwargs={"mood": 1}))[0] == "chat_template_kwargs.mood"
    assert (await fault(front, "x", reasoning_effort="low"))[0] == "reasoning_effort"


@pytest.mark.parametrize("template", [templates.HOSTILE_LOOPS, templates.HOSTILE_POWERS])
async def test_case_124_a_template_that_runs_for_ever(make_front: Make, template: str) -> None:
    front = await trusting(make_front, time_limit_s=1.0)
    asking = asyncio.create_task(fault(front, template))
    num_answered = 0
    while not asking.done():
        assert (await front.client.get("/health")).status == 200
        num_answered += 1
        await asyncio.sleep(0.02)
    message = (await asking)[1]
    # Numbers without end run into the bound of memory or of time, whichever this machine comes to first.
    assert "too long" in message or (template == templates.HOSTILE_POWERS and "memory" in message)
    assert num_answered >= 5, "the loop stood still while the template ran"
    assert children() == []


@pytest.mark.parametrize("template", [templates.HOSTILE_MEMORY, "{{ 'x' * 2000000000 }}"])
async def test_case_124_a_template_that_wants_all_memory(make_front: Make, template: str) -> None:
    front = await trusting(make_front)
    param, _ = await fault(front, template)
    assert param in ("chat_template", "messages")
    assert children() == []
    assert await prompt(front, "still here") == "still here"


async def test_a_template_that_writes_too_much(make_front: Make) -> None:
    front = await trusting(make_front, max_text_bytes=1000)
    assert "too much" in (await fault(front, "{{ 'x' * 100000 }}"))[1]


async def test_a_client_that_goes_away_takes_its_child_along(make_front: Make) -> None:
    front = await trusting(make_front, time_limit_s=30.0)
    asking = asyncio.create_task(front.chat("q", chat_template=templates.HOSTILE_POWERS))
    await until(lambda: bool(children()))
    asking.cancel()
    await asyncio.wait({asking})
    await until(lambda: not children())


async def test_too_many_at_once_are_refused(make_front: Make) -> None:
    front = await trusting(make_front, time_limit_s=1.5, max_running=1, max_waiting=1)
    asking = [asyncio.create_task(front.chat("q", chat_template=templates.HOSTILE_POWERS)) for _ in range(4)]
    statuses = sorted([(await each).status for each in asking])
    assert statuses == [400, 400, 429, 429]
