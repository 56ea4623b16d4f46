"""The service without a wire: events, usage, and that closing is the only cancel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from msgspec.structs import replace

from tickertape.api.calls import ChatCall, CompletionCall, Decoding
from tickertape.api.events import Event, Piece, Usage
from tickertape.api.generation import Generation
from tickertape.core.backend import Capabilities
from tickertape.core.errors import (
    EngineFault,
    InvalidRequest,
    ModelNotFound,
    RowError,
    TickertapeError,
    Unavailable,
)
from tickertape.core.memory import MemoryPlan
from tickertape.core.ports import EngineStats
from tickertape.core.request import Finish, Request, TokenDelta, TokenLogprobs
from tickertape.testing.front import Front, spoken

Make = Callable[..., Awaitable[Front]]

FOREVER = {"when": spoken("long"), "tokens": spoken("x"), "then": "repeat"}


async def gather(generation: Generation) -> list[Event]:
    try:
        return [event async for events in generation for event in events]
    finally:
        await generation.aclose()


def completion(prompt: str, **decoding: object) -> CompletionCall:
    return CompletionCall(model="scripted", prompts=(prompt,), decoding=Decoding(**decoding))  # type: ignore[arg-type]


async def test_events_and_usage(make_front: Make) -> None:
    front = await make_front({"when": spoken("go"), "tokens": spoken("ab")})
    generation = await front.service.complete(completion("go", max_tokens=9, return_token_ids=True))
    events = await gather(generation)
    assert events[:2] == [Piece(0, "a", (97,)), Piece(0, "b", (98,))]
    assert isinstance(events[2], Piece)
    assert (events[2].text, events[2].finish, events[2].stop_reason) == ("", "stop", None)
    assert generation.usage == Usage(2, 3, 0)
    assert generation.ttft_s is not None


async def test_several_choices_leave_an_engine_step_together(make_front: Make) -> None:
    front = await make_front({"when": spoken("go"), "tokens": spoken("abc")}, token_s=0.02)
    generation = await front.service.complete(completion("go", n=4, max_tokens=9))
    sizes = [len(events) async for events in generation]
    await generation.aclose()
    assert sum(sizes) == 16
    assert max(sizes) == 4
    assert len(sizes) <= 6


@pytest.mark.parametrize("n", [1, 3])
async def test_closing_cancels_before_during_and_after(make_front: Make, n: int) -> None:
    front = await make_front(FOREVER, token_s=0.01)
    unused = await front.service.complete(completion("long", n=n, max_tokens=400))
    assert front.service.admission.num_waiting_requests == n
    await unused.aclose()
    await front.idle(patience_s=1)
    begun = await front.service.complete(completion("long", n=n, max_tokens=400))
    await anext(begun)
    assert front.service.admission.in_flight("scripted") == n
    await begun.aclose()
    await begun.aclose()
    await front.idle(patience_s=1)
    waiting = await front.service.complete(completion("long", n=n, max_tokens=400))
    task = asyncio.ensure_future(anext(waiting))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await waiting.aclose()
    await front.idle(patience_s=1)
    ended = await front.service.complete(completion("go", n=n))
    await gather(ended)
    await ended.aclose()


@pytest.mark.parametrize("decoding", [{}, {"n": 3}, {"best_of": 3}])
async def test_a_stop_string_ends_the_engines_work(make_front: Make, decoding: dict[str, int]) -> None:
    front = await make_front({"when": spoken("go"), "tokens": spoken("abSTOP"), "then": "repeat"}, token_s=0.002)
    generation = await front.service.complete(completion("go", stop=("STOP",), max_tokens=400, **decoding))
    events = await gather(generation)
    assert sum(isinstance(event, Piece) and event.finish == "stop" for event in events) == generation.num_choices
    await front.idle()
    assert front.engine.stats().num_steps < 60
    assert generation.usage.completion_tokens == 6 * max(decoding.values(), default=1)


async def test_closing_a_best_of_cancels_its_candidates(make_front: Make) -> None:
    front = await make_front(FOREVER, token_s=0.01)
    generation = await front.service.complete(completion("long", best_of=3, max_tokens=400))
    task = asyncio.ensure_future(anext(generation))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await generation.aclose()
    await front.idle(patience_s=1)


async def test_one_failing_choice_ends_all(make_front: Make) -> None:
    front = await make_front({"when": spoken("bad"), "tokens": spoken("ab"), "fail": {"at": 1}}, FOREVER, token_s=0.002)
    call = CompletionCall(model="scripted", prompts=("long", "bad", "long"), decoding=Decoding(max_tokens=300))
    with pytest.raises(RowError):
        await gather(await front.service.complete(call))
    await front.idle()


class Silent:
    """An engine whose streams end without a reason."""

    def plan(self) -> MemoryPlan:
        raise AssertionError

    async def start(self) -> None: ...

    async def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        yield TokenDelta((97,))

    def stats(self) -> EngineStats:
        return EngineStats()

    async def health(self) -> None: ...

    async def stop(self, grace_s: float) -> None: ...


@pytest.mark.parametrize("n", [1, 2])
async def test_a_stream_that_just_ends_is_a_fault(make_front: Make, n: int) -> None:
    front = await make_front()
    front.models.replace(replace(front.model, engine=Silent()))
    with pytest.raises(EngineFault, match="without a reason"):
        await gather(await front.service.complete(completion("a", n=n)))
    front.models.replace(front.model)


class Bursting(Silent):
    """Gives everything at once, and goes on after the stop string."""

    async def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        yield TokenDelta(tuple(b"ab"))
        yield TokenDelta(tuple(b"STOPcd"))
        yield TokenDelta(tuple(b"ef"), finish=Finish("length"))


@pytest.mark.parametrize("n", [1, 3])
async def test_nothing_follows_a_stop_string_however_much_is_on_its_way(make_front: Make, n: int) -> None:
    front = await make_front()
    front.models.replace(replace(front.model, engine=Bursting()))
    generation = await front.service.complete(completion("a", n=n, stop=("STOP",)))
    events = await gather(generation)
    front.models.replace(front.model)
    for index in range(n):
        pieces = [event for event in events if isinstance(event, Piece) and event.choice == index]
        assert "".join(piece.text for piece in pieces) == "ab"
        assert [piece.finish for piece in pieces if piece.finish] == ["stop"]
    assert generation.usage.completion_tokens == 6 * n


async def test_what_is_refused_before_anything_starts(make_front: Make) -> None:
    front = await make_front(template=None)
    message = {"role": "user", "content": "a"}
    wrong: list[tuple[ChatCall | CompletionCall, type[TickertapeError], str | None]] = [
        (ChatCall(model="scripted", messages=(message,)), InvalidRequest, "messages"),
        (ChatCall(model="other", messages=(message,)), ModelNotFound, "model"),
        (CompletionCall(model="scripted", prompts=()), InvalidRequest, "prompt"),
        (completion("a", temperature=float("nan")), InvalidRequest, "temperature"),
        (completion("a", stop=("",)), InvalidRequest, "stop"),
        (completion("a", logit_bias={1: float("inf")}), InvalidRequest, "logit_bias"),
    ]
    for call, kind, param in wrong:
        ask = front.service.chat(call) if isinstance(call, ChatCall) else front.service.complete(call)
        with pytest.raises(kind) as raised:
            await ask
        assert raised.value.param == param
    front.readiness.set_state("draining")
    with pytest.raises(Unavailable):
        await front.service.complete(completion("a"))
    front.readiness.set_state("ready")


async def test_a_backend_without_logprobs_refuses_them_by_name(make_front: Make) -> None:
    front = await make_front(capabilities=Capabilities(logprobs=False, prompt_logprobs=False))
    for fields, param in (
        ({"logprobs": 1}, "logprobs"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ):
        error = (await front.complete(**fields)).json()["error"]
        assert (error["param"], error["code"]) == (param, "unsupported_value")
    scoring = await make_front(capabilities=Capabilities(prompt_logprobs=False))
    assert (await scoring.complete(logprobs=1)).status == 200
    assert (await scoring.complete(logprobs=1, echo=True)).json()["error"]["param"] == "logprobs"


class Ranked(Silent):
    """Gives each candidate its own letter, the later ones the likelier."""

    async def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        assert request.sampling.logprobs is not None
        choice = request.sampling.choice
        tokens = (ord("a") + choice,) * (4 - choice)
        scores = tuple(TokenLogprobs((token,), (-4.0 + choice,), 1) for token in tokens)
        yield TokenDelta(tokens, logprobs=scores, finish=Finish("length"))


async def test_best_of_ranks_by_the_mean_per_token(make_front: Make) -> None:
    front = await make_front()
    front.models.replace(replace(front.model, engine=Ranked()))
    generation = await front.service.complete(completion("a", best_of=4, n=2))
    events = await gather(generation)
    front.models.replace(front.model)
    assert events == [Piece(0, "d", finish="length"), Piece(1, "cc", finish="length")]
    assert generation.usage.completion_tokens == 10
