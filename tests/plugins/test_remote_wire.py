"""What servers of other makes send and refuse, and what becomes of it: against a server that does as it is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from tickertape.plugins import (
    BackendOptions,
    ContextLengthExceeded,
    Engine,
    EngineDead,
    Finish,
    InvalidRequest,
    ModelSpec,
    Overloaded,
    Request,
    RowError,
    SamplingParams,
    StartupError,
    TickertapeError,
    TokenDelta,
    TokenLogprobs,
    Unavailable,
    pack_tokens,
)
from tickertape.plugins.backends.remote.engine import make
from tickertape.testing.loopback import served

SPEC = ModelSpec(name="m", path="/m", architecture="A", config={}, max_model_len=64, vocab_size=99)
PROMPT = (5, 6, 7)


@dataclass
class Scripted:
    """An ASGI app. `parts` are the pieces of the answer to a completion, sent one by one, a number being a pause."""

    owner: str = "vllm"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    parts: Sequence[bytes | float] = ()
    models: Sequence[str] = ("m",)
    health: int = 200
    metrics: str = ""
    breaks: bool = False
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    num_sent: int = 0
    clients: set[tuple[str, int]] = field(default_factory=set)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        self.clients.add(tuple(scope["client"]))
        self.keys += [value.decode() for name, value in scope["headers"] if name == b"authorization"]
        if path == "/v1/models":
            data = [{"id": name, "owned_by": self.owner, "max_model_len": 64} for name in self.models]
            await self._answer(send, 200, [json.dumps({"data": data}).encode()])
        elif path == "/health":
            await self._answer(send, self.health, [b""])
        elif path == "/metrics":
            await self._answer(send, 200, [self.metrics.encode()])
        else:
            body = b""
            more = True
            while more:
                message = await receive()
                body += message.get("body", b"")
                more = message.get("more_body", False)
            self.asked.append(json.loads(body))
            await self._answer(send, self.status, self.parts)

    async def _answer(self, send: Send, status: int, parts: Sequence[bytes | float]) -> None:
        headers = [(name.encode(), value.encode()) for name, value in self.headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for part in parts:
            if isinstance(part, bytes):
                self.num_sent += len(part)
                await send({"type": "http.response.body", "body": part, "more_body": True})
            else:
                await asyncio.sleep(part)
        if not (self.breaks and parts is self.parts):
            await send({"type": "http.response.body", "body": b""})


def event(**choice: Any) -> bytes:
    return f"data: {json.dumps({'choices': [{'index': 0, 'text': 'x', **choice}]})}\n\n".encode()


DONE = b"data: [DONE]\n\n"
LENGTH = event(text="", token_ids=[], finish_reason="length")


@asynccontextmanager
async def engine_over(app: Scripted, **extra: Any) -> AsyncIterator[Engine]:
    async with served(app) as port:
        url = f"http://127.0.0.1:{port}/v1"
        engine = make(SPEC, BackendOptions(extra={"url": url, **extra}))
        await engine.start()
        try:
            yield engine
        finally:
            await engine.stop(0.0)


def ask(**sampling: Any) -> Request:
    return Request(
        id=1,
        prompt=pack_tokens(PROMPT),
        num_prompt_tokens=len(PROMPT),
        sampling=SamplingParams(**{"max_tokens": 8, "seed": 3, **sampling}),
    )


async def collect(engine: Engine, request: Request | None = None) -> list[TokenDelta]:
    async with asyncio.timeout(20), aclosing(engine.generate(request or ask())) as deltas:  # type: ignore[type-var]
        return [delta async for delta in deltas]


async def answer_of(app: Scripted, request: Request | None = None, **extra: Any) -> list[TokenDelta]:
    async with engine_over(app, **extra) as engine:
        return await collect(engine, request)


async def fault_of(app: Scripted, request: Request | None = None, **extra: Any) -> TickertapeError:
    async with engine_over(app, **extra) as engine:
        with pytest.raises(TickertapeError) as caught:
            await collect(engine, request)
        assert engine.stats().num_running == engine.stats().num_waiting == 0
        return caught.value


# -- what they send ------------------------------------------------------------------------------------------------


async def test_an_answer_of_vllm() -> None:
    app = Scripted(
        parts=[
            b": keep-alive\n\n",
            event(token_ids=[11, 12], finish_reason=None, prompt_token_ids=[5, 6, 7]),
            event(token_ids=[13]) + event(token_ids=[9], finish_reason="stop", stop_reason=9),
            b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}\n\n',
            DONE,
        ]
    )
    assert await answer_of(app, ask(stop_tokens=(9,))) == [
        TokenDelta((11, 12)),
        TokenDelta((13,)),
        TokenDelta((9,), finish=Finish("stop", 9)),
    ]


async def test_a_finish_in_a_chunk_of_its_own_comes_with_its_token() -> None:
    app = Scripted(
        "sglang",
        parts=[
            event(token_ids=[11]),
            event(token_ids=[12, 9]),
            event(text="", token_ids=[], finish_reason="stop"),
            DONE,
        ],
    )
    assert await answer_of(app, ask(stop_tokens=(9,))) == [
        TokenDelta((11,)),
        TokenDelta((12, 9), finish=Finish("stop", 9)),
    ]


async def test_an_answer_that_is_complete_ends_without_a_stop_token() -> None:
    app = Scripted(parts=[event(token_ids=[11], finish_reason="stop", stop_reason=None), DONE])
    assert await answer_of(app, ask(stop_tokens=(9,))) == [TokenDelta((11,), finish=Finish("stop", None))]


async def test_events_cut_anywhere_are_the_same() -> None:
    whole = b"".join([event(token_ids=[n]) for n in range(20)]) + LENGTH.replace(b"\n", b"\r\n") + DONE
    for size in (1, 7, 64, len(whole)):
        parts = [whole[n : n + size] for n in range(0, len(whole), size)]
        deltas = await answer_of(Scripted(parts=parts), ask(max_tokens=20))
        assert [token for delta in deltas for token in delta.tokens] == list(range(20))
        assert deltas[-1].finish == Finish("length")


async def test_log_probabilities_are_put_in_order() -> None:
    """vLLM lists the token itself first; one that is not among the top ids has no rank on this wire."""
    logprobs = {
        "tokens": ["token_id:11", "token_id:12"],
        "token_logprobs": [-3.0, -0.5],
        "top_logprobs": [
            {"token_id:11": -3.0, "token_id:4": -0.1, "token_id:5": -0.2},
            {"token_id:12": -0.5, "token_id:4": -0.7},
        ],
        "text_offset": [0, 1],
    }
    app = Scripted(parts=[event(token_ids=[11, 12], logprobs=logprobs, finish_reason="length"), DONE])
    [delta] = await answer_of(app, ask(logprobs=2))
    assert delta.logprobs == (
        TokenLogprobs((11, 4, 5), (-3.0, -0.1, -0.2), 3),
        TokenLogprobs((12, 12, 4), (-0.5, -0.5, -0.7), 1),
    )


async def test_a_scored_prompt_of_vllm_is_asked_for_whole() -> None:
    scores = [None, {"6": {"logprob": -2.0, "rank": 40}, "1": {"logprob": -0.1, "rank": 1}}, {"7": {"logprob": -0.3}}]
    choice = {"index": 0, "text": "x", "token_ids": [11], "finish_reason": "length", "prompt_logprobs": scores}
    app = Scripted(parts=[json.dumps({"choices": [choice], "usage": {"prompt_tokens": 3}}).encode()])
    assert await answer_of(app, ask(prompt_logprobs=1, max_tokens=0)) == [
        TokenDelta(
            (),
            prompt_logprobs=(TokenLogprobs((6, 1), (-2.0, -0.1), 40), TokenLogprobs((7, 7), (-0.3, -0.3), 1)),
            finish=Finish("length"),
        )
    ]
    assert app.asked[0]["stream"] is False
    assert app.asked[0]["max_tokens"] == 1
    assert "stream_options" not in app.asked[0]


@pytest.mark.parametrize(
    ("parts", "kind", "message"),
    [
        ([event(token_ids=[1])], EngineDead, "broke off"),
        ([event(token_ids=[1]), DONE], EngineDead, "without a reason"),
        ([event(token_ids=[1], finish_reason="abort"), DONE], RowError, "ended the answer: abort"),
        ([event()], RowError, "without token ids"),
        ([b"data: <html>\n\n"], RowError, "in no way that is known"),
        ([b'data: {"error":{"message":"boom","type":"InternalServerError","code":500}}\n\n', DONE], RowError, "boom"),
        ([b'data: {"error":{"message":"going","type":"server_error","code":"draining"}}\n\n'], Unavailable, "going"),
        (
            [b'data: {"error":{"message":"bad","type":"invalid_request_error","param":"seed"}}\n\n'],
            InvalidRequest,
            "bad",
        ),
        ([b'data: {"error":"oh"}\n\n'], RowError, "oh"),
    ],
)
async def test_an_answer_that_fails(parts: list[bytes], kind: type[TickertapeError], message: str) -> None:
    error = await fault_of(Scripted(parts=parts))
    assert type(error) is kind
    assert message in error.message


async def test_a_connection_that_is_cut_ends_the_answer() -> None:
    error = await fault_of(Scripted(parts=[event(token_ids=[1]), 0.05], breaks=True))
    assert type(error) is EngineDead


@pytest.mark.parametrize(
    ("logprobs", "message"),
    [
        (None, "without log probabilities"),
        ({"tokens": [" a"], "token_logprobs": [-1.0], "top_logprobs": [{" a": -1.0}]}, "by their texts"),
        ({"tokens": [], "token_logprobs": []}, "without log probabilities"),
    ],
)
async def test_log_probabilities_without_ids_are_no_answer(logprobs: object, message: str) -> None:
    error = await fault_of(Scripted(parts=[event(token_ids=[1], logprobs=logprobs)]), ask(logprobs=1))
    assert type(error) is RowError
    assert message in error.message


# -- what they refuse ----------------------------------------------------------------------------------------------


def told(**error: Any) -> bytes:
    return json.dumps({"error": error}).encode()


@pytest.mark.parametrize(
    ("status", "body", "kind", "code", "param"),
    [
        (400, told(message="no", code="unsupported_value", param="n"), InvalidRequest, "unsupported_value", "n"),
        (400, told(message="no", type="BadRequestError", code=400), InvalidRequest, "invalid_value", None),
        (422, b'{"detail":[]}', InvalidRequest, "invalid_value", None),
        (400, told(message="n", code="context_length_exceeded", param="prompt"), ContextLengthExceeded, None, "prompt"),
        (400, told(message="maximum context length is 8", code=400), ContextLengthExceeded, None, "prompt"),
        (401, told(message="who?", code="invalid_api_key"), RowError, "row_error", None),
        (404, told(message="what?", code="model_not_found"), RowError, "row_error", None),
        (429, told(message="full", code="queue_full"), Overloaded, "queue_full", None),
        (503, told(message="soon", code="loading"), Unavailable, "loading", None),
        (502, b"<html>bad gateway</html>", Unavailable, "loading", None),
        (500, told(message="oops"), RowError, "row_error", None),
        (500, b"", RowError, "row_error", None),
        (400, b'{"object":"error","message":"flat","type":"BadRequest","param":null,"code":400}', InvalidRequest,
         "invalid_value", None),
    ],
)  # fmt: skip
async def test_refusals_keep_their_place_in_the_tree(
    status: int, body: bytes, kind: type[TickertapeError], code: str | None, param: str | None
) -> None:
    error = await fault_of(Scripted(status=status, parts=[body]))
    assert type(error) is kind
    assert error.code == (code or error.default_code)
    assert error.param == param
    assert "\n" not in error.message


@pytest.mark.parametrize(
    ("headers", "after_s"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "7", "retry-after-ms": "1500"}, 1.5),
        ({"retry-after": "Mon"}, None),
    ],
)
async def test_when_to_come_back_is_passed_on(headers: dict[str, str], after_s: float | None) -> None:
    for status in (429, 503):
        error = await fault_of(Scripted(status=status, headers=headers, parts=[told(message="later")]))
        assert error.retry_after_s == after_s


async def test_the_key_is_sent() -> None:
    app = Scripted(parts=[LENGTH, DONE])
    await answer_of(app, api_key="k1")
    assert set(app.keys) == {"Bearer k1"}


# -- bounds --------------------------------------------------------------------------------------------------------


async def test_a_slow_reader_slows_the_server_down() -> None:
    """What it does not read is not read for it: the rest waits in the server."""
    part = event(token_ids=[1], text="y" * 60_000)
    app = Scripted(parts=[part] * 400 + [LENGTH, DONE])
    async with engine_over(app) as engine, aclosing(engine.generate(ask(max_tokens=500))) as deltas:  # type: ignore[type-var]
        await anext(deltas)
        await asyncio.sleep(0.3)
        held = app.num_sent
        assert held < 400 * len(part) / 2
        tokens = [token async for delta in deltas for token in delta.tokens]
    assert len(tokens) == 399
    assert app.num_sent > held


async def test_an_event_without_end_is_not_gathered() -> None:
    error = await fault_of(Scripted(parts=[b"data: " + b"x" * 5000] * 20), max_event_bytes=20_000)
    assert type(error) is RowError
    assert "more than 20000 bytes" in error.message


async def test_silence_ends_an_answer_and_keep_alives_break_it() -> None:
    error = await fault_of(Scripted(parts=[event(token_ids=[1]), 5.0]), silence_s=0.2)
    assert type(error) is EngineDead
    assert "ReadTimeout" in error.message
    alive: list[bytes | float] = [0.1, b": keep-alive\n\n"] * 4
    assert await answer_of(Scripted(parts=[event(token_ids=[1]), *alive, LENGTH, DONE]), silence_s=0.3)


async def test_more_streams_than_connections_are_refused() -> None:
    app = Scripted(parts=[event(token_ids=[1]), 5.0])
    async with engine_over(app, max_connections=1, connect_s=0.1) as engine, aclosing(engine.generate(ask())) as deltas:  # type: ignore[type-var]
        await anext(deltas)
        with pytest.raises(Overloaded, match="too many streams"):
            await collect(engine)


async def test_stopping_ends_an_answer_that_nobody_reads() -> None:
    async with engine_over(Scripted(parts=[event(token_ids=[n]) for n in range(8)] + [5.0])) as engine:
        deltas = engine.generate(ask())
        await anext(deltas)
        await engine.stop(0.0)
        with pytest.raises(Unavailable) as caught:
            await anext(deltas)
        assert caught.value.code == "draining"


# -- who is there --------------------------------------------------------------------------------------------------


async def test_health_is_the_servers() -> None:
    metrics = (
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="100",engine="0"} 1.0\n'
        'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25\n'
    )
    app = Scripted(metrics=metrics, parts=[event(token_ids=[1]), 5.0])
    async with engine_over(app) as engine:
        await engine.health()
        stats = engine.stats()
        assert (stats.max_model_len, stats.num_blocks, stats.kv_capacity_tokens) == (64, 100, 1600)
        assert stats.num_used_blocks == 0  # nothing of ours runs
        async with aclosing(engine.generate(ask())) as deltas:  # type: ignore[type-var]
            await anext(deltas)
            assert (engine.stats().num_used_blocks, engine.stats().num_free_blocks) == (25, 75)
        app.health = 503
        with pytest.raises(Unavailable, match="its health is 503"):
            await engine.health()


@pytest.mark.parametrize(
    ("app", "extra", "name"),
    [
        (Scripted(models=("a", "m")), {}, "m"),
        (Scripted(models=("only",)), {}, "only"),
        (Scripted(models=("a", "b")), {"model": "b"}, "b"),
    ],
)
async def test_the_model_is_called_as_it_is_there(app: Scripted, extra: dict[str, Any], name: str) -> None:
    app.parts = [LENGTH, DONE]
    await answer_of(app, **extra)
    assert app.asked[0]["model"] == name


@pytest.mark.parametrize(
    ("app", "extra", "message"),
    [
        (Scripted(models=("a", "b")), {}, "has no model 'm'; it has: a, b"),
        (Scripted(models=("a",)), {"model": "z"}, "has no model 'z'; it has: a"),
        (Scripted(owner="acme"), {}, "does not say what it is"),
    ],
)
async def test_a_server_that_cannot_be_the_one_is_refused_at_start(
    app: Scripted, extra: dict[str, Any], message: str
) -> None:
    with pytest.raises(StartupError, match=message):
        async with engine_over(app, **extra):
            pass


async def test_a_dialect_may_be_named() -> None:
    app = Scripted(owner="acme", parts=[LENGTH, DONE])
    await answer_of(app, dialect="sglang")
    assert app.asked[0]["no_stop_trim"] is True


Make = Callable[[ModelSpec, BackendOptions], object]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({}, "needs the URL of a server for m"),
        ({"url": "host:80"}, "needs the URL"),
        ({"url": {"other": "http://h"}}, "needs the URL of a server for m"),
        ({"url": "http://h", "retries": 3}, "unknown field `retries`"),
        ({"url": "http://h", "silence_s": "long"}, "silence_s"),
        ({"url": "http://h", "silence_s": 0}, "above 0"),
    ],
)
def test_options_are_checked(extra: dict[str, Any], message: str) -> None:
    with pytest.raises(StartupError, match=message):
        make(SPEC, BackendOptions(extra=extra))


async def test_a_connection_serves_one_request_after_another() -> None:
    app = Scripted(parts=[event(token_ids=[1]), LENGTH, b'data: {"choices":[],"usage":{}}\n\n', 0.02, DONE])
    async with engine_over(app) as engine:
        for _ in range(3):
            await collect(engine)
    assert len(app.clients) == 1
