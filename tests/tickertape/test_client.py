"""The clients: the same records over either wire."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tickertape.client import Delta, Finish, GrpcClient, HttpClient, Message, Sampling, ServerError
from tickertape.testing.front import Front, front, spoken
from tickertape.testing.grpc_front import grpc_served
from tickertape.testing.loopback import served

PLAYS = (
    {"when": spoken("long"), "tokens": spoken("x"), "then": "repeat"},
    {"when": spoken("go"), "tokens": spoken("one two three")},
)


@asynccontextmanager
async def both(directory: Path) -> AsyncIterator[tuple[Front, GrpcClient, HttpClient]]:
    async with (
        front(directory, PLAYS, api_keys=("k",), token_s=0.002) as made,
        grpc_served(made, api_keys=("k",)) as address,
        served(made.app) as port,
        GrpcClient(address, api_key="k") as over_grpc,
        HttpClient(f"http://127.0.0.1:{port}", api_key="k") as over_http,
    ):
        yield made, over_grpc, over_http


async def test_both_give_the_same(tmp_path: Path) -> None:
    sampling = Sampling(max_tokens=30, seed=5, stop=[" three"], logprobs=2, return_token_ids=True, logit_bias={5: 1.0})
    async with both(tmp_path) as (_, over_grpc, over_http):
        assert await over_grpc.models() == await over_http.models() == ("scripted",)
        assert list(await over_grpc.tokenize("scripted", "go")) == spoken("go")
        for prompt in ("go", spoken("go")):
            answer = await over_grpc.generate("scripted", prompt, sampling)
            assert answer == await over_http.generate("scripted", prompt, sampling)
            assert answer.text == "one two"
            assert answer.choices[0].finish == Finish("stop", " three")
        messages = [Message("user", "go")]
        await over_grpc.chat("scripted", messages)  # so that both find its prefix in the cache
        assert await over_grpc.chat("scripted", messages, sampling) == await over_http.chat(
            "scripted", messages, sampling
        )
        for client in (over_grpc, over_http):
            deltas = [delta async for delta in client.stream("scripted", "go", sampling)]
            assert "".join(delta.text for delta in deltas) == "one two"
            assert deltas[-1].usage == answer.usage
            deltas = [delta async for delta in client.chat_stream("scripted", messages, sampling)]
            assert "".join(delta.text for delta in deltas) == "one two"
            assert [delta.finish for delta in deltas if delta.finish] == [Finish("stop", " three")]


async def test_a_schema(tmp_path: Path) -> None:
    async with both(tmp_path) as (_, over_grpc, over_http):
        sampling = Sampling(temperature=0.0, max_tokens=20, json_schema={"type": "boolean"})
        answer = await over_grpc.generate("scripted", "go", sampling)
        assert answer.text in ("true", "false")
        assert answer == await over_http.generate("scripted", "go", sampling)


async def test_both_fail_the_same(tmp_path: Path) -> None:
    async with both(tmp_path) as (made, over_grpc, over_http):
        for client in (over_grpc, over_http):
            with pytest.raises(ServerError) as raised:
                await client.generate("nope", "go")
            assert (raised.value.code, raised.value.param) == ("model_not_found", "model")
            with pytest.raises(ServerError) as raised:
                _ = [delta async for delta in client.stream("scripted", "go", Sampling(temperature=7.0))]
            assert raised.value.code == "invalid_value"
            assert (raised.value.param or "").endswith("temperature")
        made.readiness.set_state("draining")
        for client in (over_grpc, over_http):
            with pytest.raises(ServerError) as raised:
                await client.generate("scripted", "go")
            assert (raised.value.code, raised.value.retry_after_s) == ("draining", 1.0)


async def test_leaving_a_stream_cancels_it(tmp_path: Path) -> None:
    async with both(tmp_path) as (made, over_grpc, over_http):
        for client in (over_grpc, over_http):
            async with aclosing(client.stream("scripted", "long", Sampling(max_tokens=400))) as stream:
                first: Delta = await anext(stream)
                assert first.text == "x"
            await made.idle()


async def test_no_server_is_no_server_error() -> None:
    async with HttpClient("http://127.0.0.1:9") as client:
        with pytest.raises(httpx.TransportError):
            await client.models()
