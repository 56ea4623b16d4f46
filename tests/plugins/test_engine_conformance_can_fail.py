"""Every rule of the engine's kit can fail: for each, an engine that breaks it alone is caught by that rule."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as changed

from tests.plugins.test_engine_conformance import LIMITS, kill, scripted_model
from tickertape.plugins import (
    Engine,
    EngineStats,
    Finish,
    MemoryPlan,
    Request,
    RowError,
    TickertapeError,
    TokenDelta,
    TokenLogprobs,
)
from tickertape.plugins.manager import Plugins
from tickertape.testing.engine import EngineConformance
from tickertape.testing.engines import paged_engine
from tickertape.testing.rig import EngineSubject, open_rig


class Twin:
    """A good engine with one fault: subclasses spoil one of its methods."""

    def __init__(self, good: Engine) -> None:
        self.good = good

    def plan(self) -> MemoryPlan:
        return self.good.plan()

    async def start(self) -> None:
        await self.good.start()

    async def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        async for delta in self.good.generate(request):
            yield delta

    def stats(self) -> EngineStats:
        return self.good.stats()

    async def health(self) -> None:
        await self.good.health()

    async def stop(self, grace_s: float) -> None:
        await self.good.stop(grace_s)


class FinishesTwice(Twin):
    async def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        async for delta in self.good.generate(request):
            yield delta
        yield TokenDelta((), finish=Finish("length"))


class NeverSaysWhy(Twin):
    async def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        async for delta in self.good.generate(request):
            yield changed(delta, finish=None)


class GivesOneMore(Twin):
    async def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        async for delta in self.good.generate(request):
            yield delta if delta.finish is None else changed(delta, tokens=(*delta.tokens, 5))


class IgnoresStopTokens(Twin):
    def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        return self.good.generate(changed(request, sampling=changed(request.sampling, stop_tokens=())))


class SwallowsTheStopToken(Twin):
    async def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        async for delta in self.good.generate(request):
            ended = delta.finish is not None and delta.finish.reason == "stop"
            yield changed(delta, tokens=delta.tokens[:-1]) if ended else delta


class DrawsAnew(Twin):
    """A seed means nothing to it: what comes depends on how much it has said before."""

    num_said = 0

    async def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        async for delta in self.good.generate(request):
            self.num_said += 1
            yield changed(delta, tokens=tuple((token + self.num_said) % 512 for token in delta.tokens))


class LeavesLogprobsOut(Twin):
    async def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        async for delta in self.good.generate(request):
            yield changed(delta, logprobs=None)


class GivesLogprobsOfAnother(Twin):
    async def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        async for delta in self.good.generate(request):
            wrong = [TokenLogprobs((1, 2, 3), (-1.0, -2.0, -3.0), 1) for _ in delta.tokens]
            yield changed(delta, logprobs=tuple(wrong))


class CutsLongPrompts(Twin):
    """Serves what it should refuse."""

    def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        fits = request.prompt[: 4 * (LIMITS.max_model_len - 2)]
        return self.good.generate(changed(request, prompt=fits, num_prompt_tokens=min(request.num_prompt_tokens, 1022)))


class TakesOthersAlong(Twin):
    """One bad request fails all."""

    broken = False

    async def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        try:
            async for delta in self.good.generate(request):
                await asyncio.sleep(0)
                if self.broken:
                    raise RowError("somebody asked for too much")
                yield delta
        except TickertapeError:
            self.broken = True
            raise


class MixesStreams(Twin):
    """With company, a stream gets what another one says."""

    running = 0

    async def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        self.running += 1
        try:
            async for delta in self.good.generate(request):
                crowd = self.running > 1
                yield changed(delta, tokens=tuple(token ^ 1 for token in delta.tokens)) if crowd else delta
        finally:
            self.running -= 1


class ServesOneAtATime(Twin):
    """A slow reader keeps everybody waiting."""

    def __init__(self, good: Engine) -> None:
        super().__init__(good)
        self._turn = asyncio.Lock()

    async def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        async with self._turn:
            async for delta in self.good.generate(request):
                yield delta


class DropsWhatIsNotRead(Twin):
    """Keeps the newest delta only."""

    async def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        newest: asyncio.Queue[TokenDelta] = asyncio.Queue(1)

        async def read() -> None:
            async for delta in self.good.generate(request):
                if newest.full():
                    newest.get_nowait()
                newest.put_nowait(delta)

        reading = asyncio.ensure_future(read())
        try:
            while True:
                delta = await newest.get()
                yield delta
                if delta.finish is not None:
                    return
        finally:
            reading.cancel()
            await asyncio.wait({reading})


class CountsNothing(Twin):
    def stats(self) -> EngineStats:
        return EngineStats()


class GoesOnBehindYourBack(Twin):
    """Closing a stream hides it, and computes it to its end."""

    def __init__(self, good: Engine) -> None:
        super().__init__(good)
        self._reading: set[asyncio.Task[None]] = set()

    async def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        inbox: asyncio.Queue[TokenDelta | TickertapeError] = asyncio.Queue()

        async def read() -> None:
            try:
                async for delta in self.good.generate(request):
                    inbox.put_nowait(delta)
            except TickertapeError as error:
                inbox.put_nowait(error)

        reading = asyncio.ensure_future(read())
        self._reading.add(reading)
        reading.add_done_callback(self._reading.discard)
        while True:
            item = await inbox.get()
            if isinstance(item, TickertapeError):
                raise item
            yield item
            if item.finish is not None:
                return


class StartsBeforeItIsRead(Twin):
    """Computes from the moment `generate` is called, and knows of no close before the first read."""

    def __init__(self, good: Engine) -> None:
        super().__init__(good)
        self._started: list[AsyncIterator[TokenDelta]] = []

    def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        stream = self.good.generate(request)
        self._started.append(stream)
        first = asyncio.ensure_future(anext(stream))

        async def read() -> AsyncIterator[TokenDelta]:
            yield await first
            async for delta in stream:
                yield delta

        return read()


class StopsAtOnce(Twin):
    async def stop(self, grace_s: float) -> None:
        await self.good.stop(0.0)


class IsHealthyAfterTheEnd(Twin):
    async def health(self) -> None:
        return


class StopsInSilence(Twin):
    """Ends open streams as if they were complete."""

    async def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        with suppress(TickertapeError):
            async for delta in self.good.generate(request):
                yield delta


class DiesInSilence(Twin):
    """Whoever waits for a dead engine waits for ever."""

    async def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        try:
            async for delta in self.good.generate(request):
                yield delta
        except TickertapeError:
            await asyncio.Event().wait()


Rule = Callable[..., None]
BROKEN: list[tuple[type[Twin], Rule, tuple[Any, ...]]] = [
    (FinishesTwice, EngineConformance.test_one_last_delta_has_the_finish, (2,)),
    (NeverSaysWhy, EngineConformance.test_one_last_delta_has_the_finish, (2,)),
    (GivesOneMore, EngineConformance.test_one_last_delta_has_the_finish, (17,)),
    (IgnoresStopTokens, EngineConformance.test_a_stop_token_ends_the_answer_and_is_its_last, ()),
    (SwallowsTheStopToken, EngineConformance.test_a_stop_token_ends_the_answer_and_is_its_last, ()),
    (DrawsAnew, EngineConformance.test_a_seed_gives_the_same_text_again, ()),
    (LeavesLogprobsOut, EngineConformance.test_log_probabilities_come_with_their_tokens, ()),
    (GivesLogprobsOfAnother, EngineConformance.test_log_probabilities_come_with_their_tokens, ()),
    (CutsLongPrompts, EngineConformance.test_a_request_that_cannot_be_served_fails_alone, ()),
    (TakesOthersAlong, EngineConformance.test_a_request_that_cannot_be_served_fails_alone, ()),
    (MixesStreams, EngineConformance.test_many_streams_at_once_get_their_own_tokens, ()),
    (ServesOneAtATime, EngineConformance.test_a_slow_reader_holds_up_nobody_and_loses_nothing, ()),
    (DropsWhatIsNotRead, EngineConformance.test_a_slow_reader_holds_up_nobody_and_loses_nothing, ()),
    (CountsNothing, EngineConformance.test_the_figures_tell_what_runs_and_go_back_to_zero, ()),
    (GoesOnBehindYourBack, EngineConformance.test_closing_a_queued_stream_takes_it_out, ()),
    (GoesOnBehindYourBack, EngineConformance.test_closing_a_stream_in_its_prompt_ends_it, ()),
    (GoesOnBehindYourBack, EngineConformance.test_closing_a_stream_in_its_answer_ends_it, ()),
    (StartsBeforeItIsRead, EngineConformance.test_a_stream_that_nobody_reads_costs_nothing, ()),
    (StopsAtOnce, EngineConformance.test_stopping_lets_running_streams_finish, ()),
    (IsHealthyAfterTheEnd, EngineConformance.test_stopping_lets_running_streams_finish, ()),
    (StopsInSilence, EngineConformance.test_stopping_at_once_ends_streams_and_says_why, ()),
    (DiesInSilence, EngineConformance.test_a_dead_engine_is_seen, ()),
    (IsHealthyAfterTheEnd, EngineConformance.test_a_dead_engine_is_seen, ()),
]


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> EngineSubject:
    return spoiled(tmp_path_factory, Twin)


@pytest.fixture(autouse=True)
def last_words() -> Iterator[None]:
    """Tasks that a fault left behind end here. Asyncio logs their errors when they are collected, and parses source to
    do so: in the midst of another test that parses source, Python 3.11 fails with SystemError."""
    yield
    gc.collect()


def spoiled(tmp_path_factory: pytest.TempPathFactory, twin: type[Twin]) -> EngineSubject:
    spec = scripted_model(tmp_path_factory.mktemp(twin.__name__))
    backend = Plugins.load().backend("scripted")

    @asynccontextmanager
    async def started() -> AsyncIterator[Engine]:
        async with paged_engine(backend, spec, LIMITS) as good:
            yield twin(good)

    async def kill_good(engine: Engine) -> None:
        assert isinstance(engine, Twin)
        await kill(engine.good)

    return EngineSubject(
        open=started,
        vocab_size=spec.vocab_size,
        max_model_len=LIMITS.max_model_len,
        max_num_seqs=LIMITS.max_num_seqs,
        kill=kill_good,
    )


@pytest.mark.parametrize(
    ("twin", "rule", "arguments"), BROKEN, ids=[f"{rule.__name__}-{twin.__name__}" for twin, rule, _ in BROKEN]
)
@pytest.mark.filterwarnings("ignore:Enable tracemalloc", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_broken_engine_is_caught(
    twin: type[Twin],
    rule: Rule,
    arguments: tuple[Any, ...],
    subject: EngineSubject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with open_rig(subject) as rig:
        rule(EngineConformance(), rig, *arguments)  # the good engine passes
    with (
        open_rig(replace(spoiled(tmp_path_factory, twin), patience_s=0.6)) as rig,
        pytest.raises((AssertionError, TimeoutError, pytest.fail.Exception, TickertapeError)),
    ):
        rule(EngineConformance(), rig, *arguments)


def test_every_rule_has_an_engine_that_breaks_it() -> None:
    rules = {name for name in vars(EngineConformance) if name.startswith("test_")}
    assert {rule.__name__ for _, rule, _ in BROKEN} == rules
