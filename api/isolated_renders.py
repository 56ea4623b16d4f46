"""Chat templates that come with a request: strangers' programs, each rendered in a process of its own that is bounded
in memory and time, and killed when it goes past either."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
from msgspec import Struct

from tickertape.api.calls import ChatCall
from tickertape.core.errors import InvalidRequest, Overloaded

__all__ = ["IsolatedRenders", "RenderJob", "RenderResult"]

_CHILD: Final = "tickertape.api.isolated_render"
_ENCODER: Final = msgspec.json.Encoder()


class RenderJob(Struct, frozen=True):
    """What the child is told. Limits in bytes and seconds."""

    source: str
    special_tokens: dict[str, str]
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    kwargs: dict[str, Any]
    effort: str | None
    add_generation_prompt: bool
    continue_final_message: bool
    memory_bytes: int
    time_s: float


class RenderResult(Struct, frozen=True):
    """What the child says: the prompt, or what is wrong, with the field that it is wrong with."""

    text: str | None = None
    fault: str | None = None
    code: str = "invalid_value"
    param: str | None = None


class IsolatedRenders:
    """Starts a Python for each template: 0.2 s or so, which is the price of running a stranger's program. Used on one
    asyncio loop."""

    def __init__(
        self,
        *,
        time_limit_s: float = 5.0,
        memory_bytes: int = 512 << 20,
        max_text_bytes: int = 8 << 20,
        max_running: int = 2,
        max_waiting: int = 32,
    ) -> None:
        self._time_limit_s = time_limit_s
        self._memory_bytes = memory_bytes
        self._max_text_bytes = max_text_bytes
        self._running = asyncio.Semaphore(max_running)
        self._max_jobs = max_running + max_waiting
        self._num_jobs = 0

    async def render(
        self, source: str, special_tokens: Mapping[str, str], call: ChatCall, tools: Sequence[Mapping[str, Any]]
    ) -> str:
        """The prompt. Cancelling kills the child. Raises InvalidRequest for a template that does not compile, refuses
        the messages, or goes past a limit; Overloaded when too many wait."""
        if self._num_jobs >= self._max_jobs:
            raise Overloaded("too many templates are waiting to be rendered", retry_after_s=1.0)
        job = RenderJob(
            source,
            dict(special_tokens),
            [dict(message) for message in call.messages],
            [dict(tool) for tool in tools],
            dict(call.template_kwargs),
            call.reasoning.effort,
            call.add_generation_prompt,
            call.continue_final_message,
            self._memory_bytes,
            self._time_limit_s,
        )
        self._num_jobs += 1
        try:
            async with self._running:
                said = await self._ask(_ENCODER.encode(job))
        finally:
            self._num_jobs -= 1
        try:
            result = msgspec.json.decode(said, type=RenderResult)
        except msgspec.DecodeError:  # it died: of memory, or of the operator's own limits
            raise _refused("the chat template failed, or took more memory than it may") from None
        if result.text is None:
            raise InvalidRequest(result.fault or "the chat template failed", code=result.code, param=result.param)
        return result.text

    async def _ask(self, job: bytes) -> bytes:
        """What a child wrote before it ended."""
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-m", _CHILD,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, env={},
        )  # fmt: skip
        try:
            async with asyncio.timeout(self._time_limit_s):
                said = await self._converse(child, job)
                if await child.wait() == -signal.SIGXCPU:
                    raise TimeoutError
                return said
        except TimeoutError:
            raise _refused("the chat template took too long over these messages") from None
        finally:
            if child.returncode is None:
                with suppress(ProcessLookupError):
                    child.kill()
                await child.wait()

    async def _converse(self, child: asyncio.subprocess.Process, job: bytes) -> bytes:
        assert child.stdin is not None
        assert child.stdout is not None
        with suppress(BrokenPipeError, ConnectionResetError):
            child.stdin.write(job)
            await child.stdin.drain()
        child.stdin.close()
        said = b""
        while chunk := await child.stdout.read(1 << 16):
            said += chunk
            if len(said) > self._max_text_bytes:
                raise _refused("the chat template wrote too much")
        return said


def _refused(message: str) -> InvalidRequest:
    return InvalidRequest(message, param="chat_template")
