"""A real tickertape server in a process of its own, as the engine behind the remote backend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tickertape.plugins import (
    BackendOptions,
    Engine,
    EngineDead,
    Limits,
    ModelSpec,
    Request,
    SamplingParams,
    TokenDelta,
    TokenLogprobs,
    Unavailable,
    pack_tokens,
)
from tickertape.plugins.backends.remote.engine import make
from tickertape.plugins.manager import Plugins
from tickertape.testing.engine import EngineConformance
from tickertape.testing.engines import paged_engine
from tickertape.testing.models import write_llama, write_scripted
from tickertape.testing.processes import Server
from tickertape.testing.rig import EngineSubject, Heard
from tickertape.testing.tokenizers import write_byte_level

LIMITS = Limits(max_model_len=1024, max_num_seqs=4, max_batch_tokens=64, block_tokens=16)
ARGUMENTS = ("--port", "0", "--max-model-len", "1024", "--max-num-seqs", "4", "--max-batch-tokens", "64")


@contextmanager
def upstream(spec: ModelSpec, directory: Path, *arguments: str) -> Iterator[Server]:
    """Serves a model until the end of the block."""
    store = ("--store", str(directory / "store"))
    server = Server([f"m={spec.path}", *ARGUMENTS, *store, *arguments], log=directory / "stderr", model="m")
    try:
        yield server.until_ready()
    finally:
        server.kill()


def remote(spec: ModelSpec, url: str, **extra: object) -> Engine:
    return make(spec, BackendOptions(extra={"url": url, "model": "m", **extra}))


@asynccontextmanager
async def started(spec: ModelSpec, url: str) -> AsyncIterator[Engine]:
    engine = remote(spec, url)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop(0.0)


def scripted(directory: Path) -> ModelSpec:
    """Every prompt comes back, over and over; slow enough to be cancelled. Id 0 is never met."""
    write_byte_level(directory)
    return write_scripted(directory, [{"echo": True, "then": "repeat"}], eos_token_id=0, token_s=0.001, chunk_s=0.002)


class TestRemote(EngineConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineSubject]:
        spec = scripted(tmp_path_factory.mktemp("scripted"))
        servers: list[Server] = []
        contexts = []

        def serving() -> Server:
            if not servers or servers[-1].process.poll() is not None:
                contexts.append(upstream(spec, tmp_path_factory.mktemp("upstream")))
                servers.append(contexts[-1].__enter__())
            return servers[-1]

        @asynccontextmanager
        async def opened() -> AsyncIterator[Engine]:
            async with started(spec, serving().url) as engine:
                yield engine

        async def kill(_: Engine) -> None:
            servers[-1].kill()

        yield EngineSubject(
            open=opened, vocab_size=spec.vocab_size, max_model_len=1024, max_num_seqs=4, kill=kill, patience_s=60.0
        )
        for context in contexts:
            context.__exit__(None, None, None)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    directory = tmp_path_factory.mktemp("llama")
    write_byte_level(directory)
    return write_llama(directory, vocab_size=300, max_position_embeddings=1024)


@pytest.fixture(scope="module")
def served_llama(llama: ModelSpec, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with upstream(llama, tmp_path_factory.mktemp("upstream"), "--backend", "reference") as server:
        yield server


def ask(*, prompt: tuple[int, ...] = (72, 105, 32, 120), **sampling: Any) -> Request:
    fields: dict[str, Any] = {"max_tokens": 24, "seed": 11, **sampling}
    return Request(
        id=1,
        prompt=pack_tokens(prompt),
        num_prompt_tokens=len(prompt),
        sampling=SamplingParams(**fields),
    )


async def collect(engine: Engine, request: Request) -> Heard:
    heard = Heard(request)
    async with aclosing(engine.generate(request)) as deltas:  # type: ignore[type-var]
        async for delta in deltas:
            heard.add(delta)
    assert heard.finished
    return heard


def direct(spec: ModelSpec) -> AbstractAsyncContextManager[Engine]:
    return paged_engine(Plugins.load().backend("reference"), spec, LIMITS)


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.0, "logprobs": 3},
        {"temperature": 0.0, "logprobs": 0},
        {"temperature": 1.0, "seed": 2**64 - 5, "logprobs": 5},
        {"temperature": 1.3, "top_k": 9, "top_p": 0.8, "min_p": 0.02},
        {"presence_penalty": 0.7, "frequency_penalty": 0.4, "repetition_penalty": 1.3, "temperature": 0.6},
        {"temperature": 0.0, "logit_bias": ((65, 50.0), (66, 48.0)), "min_tokens": 3, "stop_tokens": (65,)},
        {"allowed_tokens": (65, 66, 67, 90), "logprobs": 1},
        {"temperature": 0.0, "prompt_logprobs": 2, "logprobs": 1},
        {"temperature": 0.0, "prompt_logprobs": 0, "max_tokens": 0},
    ],
)
async def test_the_answer_is_what_the_engine_there_gives(
    llama: ModelSpec, served_llama: Server, sampling: dict[str, Any]
) -> None:
    """Tokens, log probabilities to the last bit, ranks where they are told, the finish; by ids, whatever their text."""
    async with direct(llama) as engine:
        expected = await collect(engine, ask(**sampling))
    async with started(llama, served_llama.url) as engine:
        found = await collect(engine, ask(**sampling))
    assert found.tokens == expected.tokens
    assert found.deltas[-1].finish == expected.deltas[-1].finish
    if (finish := found.deltas[-1].finish) and finish.stop_token is not None:
        assert found.deltas[-1].tokens[-1] == finish.stop_token
    for name in ("logprobs", "prompt_logprobs"):
        pairs = zip(entries(found, name), entries(expected, name), strict=True)
        for mine, theirs in pairs:
            assert (mine.ids, mine.values) == (theirs.ids, theirs.values)
            assert mine.rank == theirs.rank or (name == "logprobs" and mine.rank == len(mine.ids) <= theirs.rank)


async def drain(deltas: AsyncIterator[TokenDelta]) -> None:
    async for delta in deltas:
        assert delta.finish is None


def entries(heard: Heard, name: str) -> list[TokenLogprobs]:
    return [entry for delta in heard.deltas for entry in getattr(delta, name) or ()]


async def test_the_prefix_cache_there_is_told_here(llama: ModelSpec, served_llama: Server) -> None:
    prompt = tuple(range(40, 90))
    async with started(llama, served_llama.url) as engine:
        await collect(engine, ask(prompt=prompt, max_tokens=2))
        again = await collect(engine, ask(prompt=prompt, max_tokens=2))
        assert again.deltas[0].num_cached_tokens == 48
        assert engine.stats().num_cached_tokens == 48
        assert engine.stats().num_prompt_tokens == 100
        assert engine.stats().max_model_len == 1024
        await engine.health()


async def test_choices_of_one_seed_differ_and_repeat(llama: ModelSpec, served_llama: Server) -> None:
    async with started(llama, served_llama.url) as engine:
        texts = [(await collect(engine, ask(choice=n % 2))).tokens for n in range(4)]
    assert texts[0] != texts[1]
    assert texts[:2] == texts[2:]


async def test_it_waits_for_a_server_that_is_not_there_yet(tmp_path: Path) -> None:
    spec = scripted(tmp_path / "model")
    (tmp_path / "up").mkdir()
    with upstream(spec, tmp_path / "up") as server:
        port = server.port
    engine = remote(spec, f"http://127.0.0.1:{port}")
    await engine.start()
    with pytest.raises(Unavailable, match="does not answer: ConnectError"):
        await engine.health()
    with pytest.raises(Unavailable):
        await collect(engine, ask())
    (tmp_path / "again").mkdir()
    with upstream(spec, tmp_path / "again", "--port", str(port)):
        await engine.health()
        assert len((await collect(engine, ask(max_tokens=5))).tokens) == 5
    await engine.stop(0.0)


async def test_a_server_that_dies_in_an_answer_ends_it_with_an_error(tmp_path: Path) -> None:
    spec = scripted(tmp_path / "model")
    (tmp_path / "up").mkdir()
    with upstream(spec, tmp_path / "up") as server:
        async with started(spec, server.url) as engine:
            deltas = engine.generate(ask(max_tokens=900))
            assert (await anext(deltas)).tokens
            server.kill()
            with pytest.raises(EngineDead, match="broke off"):
                await drain(deltas)
            assert engine.stats().num_running == 0


async def test_closing_ends_the_request_there(tmp_path: Path) -> None:
    spec = scripted(tmp_path / "model")
    (tmp_path / "up").mkdir()
    with upstream(spec, tmp_path / "up") as server:
        async with started(spec, server.url) as engine:
            async with aclosing(engine.generate(ask(max_tokens=900))) as deltas:  # type: ignore[type-var]
                await anext(deltas)
                assert running(server) == 1
            for _ in range(200):
                if running(server) == 0:
                    break
                await asyncio.sleep(0.01)
            assert running(server) == 0


def running(server: Server) -> float:
    lines: Callable[[], list[str]] = server.client.get("/metrics").text.splitlines
    return sum(float(line.split()[-1]) for line in lines() if line.startswith("tickertape_requests_running{"))
