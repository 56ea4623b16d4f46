"""EngineConformance: what every Engine must do, written once.

    class TestMine(EngineConformance):
        @pytest.fixture(scope="class")
        @classmethod
        def subject(cls):
            return EngineSubject(open=started_engine, vocab_size=199, max_model_len=512, max_num_seqs=4)

No rule needs a socket, a GPU or an asyncio plugin for pytest. Most share one engine, so that what a rule leaves behind
shows in the next.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator

import pytest

from tickertape.plugins import EngineDead, Request, TickertapeError, TokenDelta, Unavailable
from tickertape.testing.rig import EngineSubject, Heard, Rig, closing, open_rig

__all__ = ["EngineConformance"]

NUM_STREAMS = 64
GRACE_S = 30.0


class EngineConformance:
    """Override `subject`."""

    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> EngineSubject:
        raise pytest.UsageError("a subclass of EngineConformance overrides the fixture `subject`")

    @pytest.fixture(scope="class")
    @classmethod
    def rig(cls, subject: EngineSubject) -> Iterator[Rig]:
        """The engine that the rules share."""
        with open_rig(subject) as rig:
            yield rig

    @pytest.fixture
    def own_rig(self, subject: EngineSubject) -> Iterator[Rig]:
        """An engine for a rule that ends it."""
        with open_rig(subject) as rig:
            yield rig

    # -- answers -------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("max_tokens", [1, 2, 17])
    def test_one_last_delta_has_the_finish(self, rig: Rig, max_tokens: int) -> None:
        """Exactly one, at max_tokens tokens, for the reason "length"."""

        async def rule() -> None:
            heard = await rig.collect(rig.request(max_tokens=max_tokens))
            assert len(heard.tokens) == max_tokens
            assert all(0 <= token < rig.subject.vocab_size for token in heard.tokens)
            finish = heard.deltas[-1].finish
            assert finish is not None
            assert (finish.reason, finish.stop_token) == ("length", None)
            await rig.idle()

        rig.run(rule())

    def test_a_stop_token_ends_the_answer_and_is_its_last(self, rig: Rig) -> None:
        async def rule() -> None:
            plain = (await rig.collect(rig.request(max_tokens=12))).tokens
            stop = plain[len(plain) // 2]
            heard = await rig.collect(rig.request(max_tokens=12, stop_tokens=(stop,)))
            finish = heard.deltas[-1].finish
            assert finish is not None
            assert (finish.reason, finish.stop_token) == ("stop", stop)
            assert heard.tokens == plain[: plain.index(stop) + 1]
            await rig.idle()

        rig.run(rule())

    def test_a_seed_gives_the_same_text_again(self, rig: Rig) -> None:
        async def rule() -> None:
            def ask(seed: int, temperature: float) -> Request:
                return rig.request(max_tokens=24, seed=seed, temperature=temperature)

            first, again = await rig.collect(ask(7, 1.0)), await rig.collect(ask(7, 1.0))
            assert first.tokens == again.tokens
            await rig.idle()

        rig.run(rule())

    def test_log_probabilities_come_with_their_tokens(self, rig: Rig) -> None:
        if not rig.subject.capabilities.logprobs:
            pytest.skip("the engine gives no log probabilities")

        async def rule() -> None:
            heard = await rig.collect(rig.request(max_tokens=6, logprobs=2))
            for delta in heard.deltas:
                _check_logprobs(delta)
            await rig.idle()

        rig.run(rule())

    def test_a_request_that_cannot_be_served_fails_alone(self, rig: Rig) -> None:
        """With an error of the tree, whoever else runs."""

        async def rule() -> None:
            good = asyncio.ensure_future(rig.collect(rig.request(max_tokens=16)))
            with pytest.raises(TickertapeError):
                await rig.collect(rig.request(rig.subject.max_model_len + 1, max_tokens=1))
            assert len((await good).tokens) == 16
            await rig.engine.health()
            await rig.idle()

        rig.run(rule())

    # -- many at once --------------------------------------------------------------------------------------------

    def test_many_streams_at_once_get_their_own_tokens(self, rig: Rig) -> None:
        async def rule() -> None:
            asked = [rig.request(4 + n % 13, max_tokens=8 + n % 5, variant=n) for n in range(NUM_STREAMS)]
            for request, heard in zip(asked, await rig.collect_all(asked), strict=True):
                assert len(heard.tokens) == request.sampling.max_tokens
                if rig.subject.exact and request.id % 8 == 0:
                    n = asked.index(request)
                    alone = await rig.collect(rig.request(4 + n % 13, max_tokens=8 + n % 5, variant=n))
                    assert heard.tokens == alone.tokens, "another answer than when it runs alone"
            await rig.idle()

        rig.run(rule())

    def test_a_slow_reader_holds_up_nobody_and_loses_nothing(self, rig: Rig) -> None:
        async def rule() -> None:
            request = rig.request(max_tokens=rig.subject.long_output // 2)
            slow = Heard(request)
            async with closing(rig.engine.generate(request)) as stream:
                slow.add(await anext(stream))
                for _ in range(3):
                    others = await rig.collect_all([rig.request(max_tokens=8, variant=n) for n in range(3)])
                    assert all(len(heard.tokens) == 8 for heard in others)
                async with asyncio.timeout(rig.subject.patience_s):
                    async for delta in stream:
                        slow.add(delta)
            assert slow.finished
            assert len(slow.tokens) == request.sampling.max_tokens
            await rig.idle()

        rig.run(rule())

    def test_the_figures_tell_what_runs_and_go_back_to_zero(self, rig: Rig) -> None:
        async def rule() -> None:
            streams = [asyncio.ensure_future(rig.collect(_long(rig))) for _ in range(2)]
            await rig.until(lambda stats: stats.num_running + stats.num_waiting == 2, "two requests in the figures")
            for stream in streams:
                stream.cancel()
            await asyncio.wait(streams)
            await rig.idle()

        rig.run(rule())

    # -- cancelling: closing the stream ---------------------------------------------------------------------------

    def test_closing_a_queued_stream_takes_it_out(self, rig: Rig) -> None:
        num_seats = rig.subject.max_num_seqs
        if num_seats is None:
            pytest.skip("it is not known when the engine is full")

        async def rule() -> None:
            before = rig.engine.stats().num_generated_tokens
            running = [_open(rig, _long(rig)) for _ in range(num_seats)]
            await rig.until(lambda stats: stats.num_running >= len(running), "the engine full")
            queued = [_open(rig, _long(rig)) for _ in range(3)]
            await rig.until(lambda stats: stats.num_waiting >= len(queued), "requests that wait")
            assert not any(stream.heard.deltas for stream in queued)
            for stream in queued:
                await stream.close()
            await rig.until(lambda stats: stats.num_waiting == 0, "a queue without what was closed")
            for stream in running:
                await stream.close()
            await rig.idle()
            _check_stopped(rig, before, [*running, *queued])

        rig.run(rule())

    def test_closing_a_stream_in_its_prompt_ends_it(self, rig: Rig) -> None:
        async def rule() -> None:
            before = rig.engine.stats().num_generated_tokens
            stream = _open(rig, rig.request(rig.subject.long_prompt, max_tokens=rig.subject.long_output))
            await rig.until(lambda stats: stats.num_running > 0, "a request that runs")
            await stream.close()
            await rig.idle()
            _check_stopped(rig, before, [stream])

        rig.run(rule())

    def test_closing_a_stream_in_its_answer_ends_it(self, rig: Rig) -> None:
        async def rule() -> None:
            before = rig.engine.stats().num_generated_tokens
            streams = [_open(rig, _long(rig)) for _ in range(2)]
            await rig.until(lambda _: all(stream.heard.tokens for stream in streams), "tokens in both streams")
            await streams[0].close()
            seen = len(streams[1].heard.tokens)
            await rig.until(lambda _: len(streams[1].heard.tokens) > seen + 2, "the other stream going on")
            await streams[1].close()
            await rig.idle()
            _check_stopped(rig, before, streams)

        rig.run(rule())

    def test_a_stream_that_nobody_reads_costs_nothing(self, rig: Rig) -> None:
        async def rule() -> None:
            before = rig.engine.stats().num_generated_tokens
            request = _long(rig)
            async with closing(rig.engine.generate(request)):
                pass
            await asyncio.sleep(0.02)
            await rig.idle()
            assert rig.engine.stats().num_generated_tokens - before < request.sampling.max_tokens

        rig.run(rule())

    # -- the end -------------------------------------------------------------------------------------------------

    def test_stopping_lets_running_streams_finish(self, own_rig: Rig) -> None:
        async def rule() -> None:
            rig = own_rig
            stream = _open(rig, rig.request(max_tokens=rig.subject.long_output // 2))
            await rig.until(lambda stats: stats.num_running > 0, "a request that runs")
            stopping = asyncio.ensure_future(rig.engine.stop(GRACE_S))
            await asyncio.sleep(0.01)
            with pytest.raises(Unavailable):
                await rig.collect(rig.request())
            await asyncio.wait_for(stream.task, rig.subject.patience_s)
            assert stream.heard.finished
            assert len(stream.heard.tokens) == stream.heard.request.sampling.max_tokens
            await asyncio.wait_for(stopping, rig.subject.patience_s)
            with pytest.raises(TickertapeError):
                await rig.engine.health()
            await rig.engine.stop(0.0)  # twice is no error

        own_rig.run(rule())

    def test_stopping_at_once_ends_streams_and_says_why(self, own_rig: Rig) -> None:
        async def rule() -> None:
            rig = own_rig
            streams = [_open(rig, _long(rig)) for _ in range((rig.subject.max_num_seqs or 4) + 2)]
            await rig.until(lambda stats: stats.num_running > 0, "requests that run")
            await asyncio.wait_for(rig.engine.stop(0.0), rig.subject.patience_s)
            for stream in streams:
                with pytest.raises(Unavailable):
                    await asyncio.wait_for(stream.task, rig.subject.patience_s)

        own_rig.run(rule())

    def test_a_dead_engine_is_seen(self, own_rig: Rig) -> None:
        """Open streams fail, `health` raises, new requests are refused: nobody waits for ever."""
        kill = own_rig.subject.kill
        if kill is None:
            pytest.skip("the subject has no way to kill what computes")

        async def rule() -> None:
            rig = own_rig
            stream = _open(rig, _long(rig))
            await rig.until(lambda _: bool(stream.heard.tokens), "the first token")
            assert not stream.task.done(), "the stream ended before the engine was killed"
            await kill(rig.engine)
            with pytest.raises((EngineDead, Unavailable)):
                await asyncio.wait_for(stream.task, rig.subject.patience_s)
            with pytest.raises((EngineDead, Unavailable)):
                await asyncio.wait_for(rig.engine.health(), rig.subject.patience_s)
            with pytest.raises((EngineDead, Unavailable)):
                await rig.collect(rig.request())

        own_rig.run(rule())


class _Open:
    """A stream that a task reads, and that can be closed at any point."""

    def __init__(self, rig: Rig, request: Request) -> None:
        self.heard = Heard(request)
        self._rig = rig
        self._stream = rig.engine.generate(request)
        self.task = asyncio.ensure_future(self._read())

    async def close(self) -> None:
        """Nobody reads on, and the stream is closed: at once, and without an error."""
        started = time.monotonic()
        self.task.cancel()
        await asyncio.wait({self.task})
        async with closing(self._stream):
            pass
        took_s = time.monotonic() - started
        assert took_s < self._rig.subject.patience_s, f"closing took {took_s:.1f} s"
        if not self.task.cancelled() and (error := self.task.exception()) is not None:
            raise error

    async def _read(self) -> None:
        async with closing(self._stream) as stream:
            async for delta in stream:
                self.heard.add(delta)


def _open(rig: Rig, request: Request) -> _Open:
    return _Open(rig, request)


def _long(rig: Rig) -> Request:
    return rig.request(max_tokens=rig.subject.long_output)


def _check_stopped(rig: Rig, num_before: int, streams: list[_Open]) -> None:
    """What was closed was not computed to its end behind the reader's back. An engine that does not count its tokens is
    not asked."""
    num_generated = rig.engine.stats().num_generated_tokens - num_before
    num_asked = sum(stream.heard.request.sampling.max_tokens for stream in streams)
    assert num_generated < num_asked, f"all {num_asked} tokens were computed, though their streams were closed"


def _check_logprobs(delta: TokenDelta) -> None:
    if not delta.tokens:
        return
    assert delta.logprobs is not None, "tokens without the log probabilities that were asked for"
    assert len(delta.logprobs) == len(delta.tokens)
    for token, entry in zip(delta.tokens, delta.logprobs, strict=True):
        assert entry.ids[0] == token
        assert len(entry.ids) == len(entry.values) == 3
        assert entry.rank >= 1
        assert all(value <= 1e-6 and not math.isnan(value) for value in entry.values)
        assert list(entry.values[1:]) == sorted(entry.values[1:], reverse=True)
