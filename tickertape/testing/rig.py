"""An engine under test, started on an event loop of its own, and what a test does with it."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from tickertape.plugins import Capabilities, Engine, EngineStats, Request, SamplingParams, TokenDelta, pack_tokens
from tickertape.testing.checks import check_idle

__all__ = ["EngineSubject", "Heard", "Rig", "open_rig"]

T = TypeVar("T")


@dataclass(frozen=True)
class EngineSubject:
    """An engine under test.

    `open` gives a started engine and stops it at the end; it is entered on the kit's own event loop, once for all rules
    that leave the engine alive and once for each that does not. `max_num_seqs` is how many sequences it computes at
    once (None: not known, so queueing is not tested), `long_prompt` a number of prompt tokens that takes it several
    steps, `long_output` one of output tokens that leaves time to cancel. `kill` ends what computes, as a crash would;
    None: how it dies is not tested.
    `exact`: greedy text does not depend on what else runs. `patience_s` bounds everything that must happen soon.
    """

    open: Callable[[], AbstractAsyncContextManager[Engine]]
    vocab_size: int
    max_model_len: int
    max_num_seqs: int | None = None
    long_prompt: int = 512
    long_output: int = 400
    capabilities: Capabilities = field(default_factory=Capabilities)
    kill: Callable[[Engine], Awaitable[None]] | None = None
    exact: bool = True
    patience_s: float = 20.0


@dataclass
class Heard:
    """What one stream gave, delta by delta. `add` checks what the port says of any delta."""

    request: Request
    deltas: list[TokenDelta] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return [token for delta in self.deltas for token in delta.tokens]

    @property
    def finished(self) -> bool:
        return bool(self.deltas) and self.deltas[-1].finish is not None

    def add(self, delta: TokenDelta) -> None:
        assert not self.finished, "a delta came after the one with the finish"
        self.deltas.append(delta)
        assert len(self.tokens) <= self.request.sampling.max_tokens, "more tokens came than max_tokens"


class Rig:
    """A started engine. `run` executes a coroutine of the test on the engine's loop."""

    def __init__(self, engine: Engine, subject: EngineSubject, runner: asyncio.Runner) -> None:
        self.engine = engine
        self.subject = subject
        self._runner = runner
        self._ids = itertools.count(1)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def request(
        self, num_prompt_tokens: int = 8, max_tokens: int = 16, *, variant: int = 0, **sampling: Any
    ) -> Request:
        """Greedy and without end tokens unless `sampling` says otherwise; another prompt for every `variant`."""
        fields = {"seed": 0, "temperature": 0.0, **sampling}
        rng = np.random.default_rng((num_prompt_tokens, variant))
        prompt: list[int] = rng.integers(2, self.subject.vocab_size, num_prompt_tokens).tolist()
        number = next(self._ids)
        return Request(
            id=number,
            prompt=pack_tokens(prompt),
            num_prompt_tokens=num_prompt_tokens,
            sampling=SamplingParams(max_tokens=max_tokens, **fields),
            arrival=float(number),
        )

    async def collect(self, request: Request) -> Heard:
        """The whole stream, within the subject's patience."""
        heard = Heard(request)
        async with asyncio.timeout(self.subject.patience_s):
            async for delta in self.engine.generate(request):
                heard.add(delta)
        assert heard.finished, "the stream ended without a finish"
        return heard

    async def collect_all(self, requests: Sequence[Request]) -> list[Heard]:
        return await asyncio.gather(*(self.collect(request) for request in requests))

    async def until(self, holds: Callable[[EngineStats], bool], what: str) -> None:
        """Waits for the engine's figures to come to something."""
        deadline = time.monotonic() + self.subject.patience_s
        while not holds(self.engine.stats()):
            assert time.monotonic() < deadline, f"{what}: not within {self.subject.patience_s} s"
            await asyncio.sleep(0.002)

    async def idle(self) -> None:
        """The end of every rule: nothing runs, waits or is held. Says what does if it goes on."""
        deadline = time.monotonic() + self.subject.patience_s
        while time.monotonic() < deadline:
            stats = self.engine.stats()
            if not (stats.num_running or stats.num_waiting or stats.num_used_blocks):
                break
            await asyncio.sleep(0.005)
        check_idle(self.engine.stats())


@contextmanager
def open_rig(subject: EngineSubject) -> Iterator[Rig]:
    """Starts an engine, and stops it at the end."""
    with asyncio.Runner() as runner:
        context = subject.open()
        engine = runner.run(context.__aenter__())
        try:
            yield Rig(engine, subject, runner)
        finally:
            runner.run(_exit(context))


async def _exit(context: AbstractAsyncContextManager[Engine]) -> None:
    await context.__aexit__(None, None, None)


def closing(stream: AsyncIterator[TokenDelta]) -> aclosing[Any]:
    """Closes a stream at the end of the block: the only cancel there is."""
    return aclosing(stream)
