"""The clients: the same records over either wire."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from tickertape.client import (
    Answer,
    Delta,
    Finish,
    GrpcClient,
    HttpClient,
    Message,
    Sampling,
    ServerError,
    Tool,
    ToolChoice,
)
from tickertape.testing import templates
from tickertape.testing.front import Front, front, spoken, until
from tickertape.testing.grpc_front import grpc_served
from tickertape.testing.loopback import served

PAGE = Path(__file__).parents[2] / "docs" / "clients.md"
CALL = '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'
PLAYS = (
    {"when": spoken("sunny"), "tokens": spoken("It is sunny.")},
    {"when": spoken("long"), "tokens": spoken("x"), "then": "repeat"},
    {"when": spoken("go"), "tokens": spoken("one two three")},
    {"when": spoken("both"), "tokens": spoken(CALL % ("weather", '{"city": "Paris"}') + CALL % ("now", "{}"))},
)
WEATHER = Tool(
    "weather",
    "What the weather is like.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
NOW = Tool("now")


@asynccontextmanager
async def both(directory: Path) -> AsyncIterator[tuple[Front, GrpcClient, HttpClient]]:
    async with (
        front(
            directory,
            PLAYS,
            api_keys=("k",),
            token_s=0.002,
            template=templates.ITERATES_ARGUMENTS,
            tool_parser="hermes",
            max_model_len=1024,
        ) as made,
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


def without_ids(answer: Answer) -> Answer:
    """Ids of calls are drawn anew for each answer."""
    return replace(
        answer,
        choices=tuple(
            replace(choice, tool_calls=tuple(replace(call, id="") for call in choice.tool_calls))
            for choice in answer.choices
        ),
    )


async def test_a_stream_adds_up_to_the_answer(tmp_path: Path) -> None:
    sampling = Sampling(max_tokens=12, n=2, seed=5, temperature=2.0, logprobs=3, return_token_ids=True)
    async with both(tmp_path) as (_, *clients):
        await clients[0].generate("scripted", "go")  # so that all find its prefix in the cache
        wanted = await clients[0].generate("scripted", "go", sampling)
        assert len(wanted.choices) == 2
        assert [len(entry.top) for entry in wanted.choices[0].logprobs] == [3] * 12
        assert all(entry.top[0].logprob >= entry.top[1].logprob for entry in wanted.choices[0].logprobs)
        for client in clients:
            assert await client.generate("scripted", "go", sampling) == wanted
            assert Answer.of([delta async for delta in client.stream("scripted", "go", sampling)]) == wanted
        messages = [Message("user", "both")]
        await clients[0].chat("scripted", messages, tools=(WEATHER, NOW))
        told = without_ids(await clients[0].chat("scripted", messages, tools=(WEATHER, NOW)))
        for client in clients:
            assert without_ids(await client.chat("scripted", messages, tools=(WEATHER, NOW))) == told
            deltas = [delta async for delta in client.chat_stream("scripted", messages, tools=(WEATHER, NOW))]
            assert without_ids(Answer.of(deltas)) == told
            assert [part.index for delta in deltas for part in delta.tool_calls if part.id] == [0, 1]


async def test_calls_are_made_answered_and_answered_for(tmp_path: Path) -> None:
    async with both(tmp_path) as (_, *clients):
        for client in clients:
            messages = [Message("system", "Be brief."), Message("user", "both")]
            answer = await client.chat("scripted", messages, tools=[WEATHER, NOW])
            first, second = answer.tool_calls
            assert (first.name, json.loads(first.arguments), second.name, second.arguments) == (
                "weather", {"city": "Paris"}, "now", "{}",
            )  # fmt: skip
            assert first.id.startswith("call_")
            assert answer.choices[0].finish == Finish("tool_calls")
            messages += [
                answer.message,
                Message("tool", "sunny", tool_call_id=first.id),
                Message("tool", "noon", tool_call_id=second.id),
            ]
            assert (await client.chat("scripted", messages, tools=[WEATHER, NOW])).text == "It is sunny."


@pytest.mark.parametrize("choice", ["none", "required", NOW])
async def test_the_choice_of_tools(tmp_path: Path, choice: ToolChoice) -> None:
    async with both(tmp_path) as (_, *clients):
        sampling = Sampling(temperature=0.0, max_tokens=200)
        for client in clients:
            answer = await client.chat(
                "scripted", [Message("user", "both")], sampling, tools=[WEATHER, NOW], tool_choice=choice,
                parallel_tool_calls=False,
            )  # fmt: skip
            calls = [call.name for call in answer.tool_calls]
            assert calls == {"none": [], "required": ["weather"], NOW: ["now"]}[choice]
            assert bool(answer.text) == (choice == "none")


TAG = {"triggers": ["<t"], "structures": [{"begin": "<t>", "schema": {"const": 1}, "end": "</t>"}]}
STRUCTURES: dict[str, tuple[Any, str]] = {
    "json_schema": ({"const": 7}, "7"),
    "regex": ("[ab]{3}", "[ab]{3}"),
    "choice": (("red", "green"), "red|green"),
    "grammar": ('start: "k" "l"', "kl"),
    "json_object": (True, "[{].*"),
    "structural_tag": (TAG, "one two thre"),  # free, until a tag begins
}
"""By name: what is asked for, and what the answer is like then."""


@pytest.mark.parametrize("form", STRUCTURES)
async def test_each_structure_is_asked_for_by_both(tmp_path: Path, form: str) -> None:
    asked, like = STRUCTURES[form]
    sampling = Sampling(temperature=0.0, max_tokens=12, **{form: asked})
    async with both(tmp_path) as (_, over_grpc, over_http):
        await over_grpc.generate("scripted", "go")
        answer = await over_grpc.generate("scripted", "go", sampling)
        assert answer == await over_http.generate("scripted", "go", sampling)
        assert re.fullmatch(like, answer.text, re.DOTALL)


def test_an_answer_follows_one_structure() -> None:
    with pytest.raises(ValueError, match="regex and choice exclude"):
        Sampling(regex="a", choice=("a",)).structure()


async def test_requests_have_ids_by_which_they_are_aborted(tmp_path: Path) -> None:
    async with both(tmp_path) as (made, over_grpc, over_http):
        for client in (over_grpc, over_http):
            asking = asyncio.create_task(
                client.generate("scripted", "long", Sampling(max_tokens=400), request_id="mine")
            )
            await until(lambda: made.engine.stats().num_running == 1)
            assert await over_grpc.abort("mine")
            with pytest.raises(ServerError) as raised:
                await asking
            assert raised.value.code == "aborted"
            assert not await over_grpc.abort("mine")
            await made.idle()


class Line:
    """A connection between a client and a server that can be cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: list[asyncio.StreamWriter] = []
        self._pumps: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._joined, "127.0.0.1", 0)
        try:
            yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            self.cut()
            await asyncio.gather(*self._pumps, return_exceptions=True)
            await server.wait_closed()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _joined(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += (writer, far_writer)
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(_pump(source, sink))
            self._pumps.add(task)
            task.add_done_callback(self._pumps.discard)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    except OSError:
        pass
    finally:
        sink.close()


@asynccontextmanager
async def over_a_line(directory: Path, max_resumes: int = 8) -> AsyncIterator[tuple[Front, Line, GrpcClient]]:
    async with (
        front(
            directory,
            PLAYS,
            token_s=0.002,
            template=templates.ITERATES_ARGUMENTS,
            tool_parser="hermes",
            max_model_len=1024,
        ) as made,
        grpc_served(made) as address,
    ):
        line = Line(int(address.rpartition(":")[2]))
        async with line.open() as near, GrpcClient(near, max_resumes=max_resumes) as client:
            yield made, line, client


async def test_a_stream_survives_a_cut_at_every_delta(tmp_path: Path) -> None:
    sampling = Sampling(seed=3, logprobs=1, return_token_ids=True)
    messages = [Message("user", "go")]
    async with over_a_line(tmp_path) as (made, line, client):
        await client.chat("scripted", messages)
        wanted = await client.chat("scripted", messages, sampling)
        num_deltas = len([delta async for delta in client.chat_stream("scripted", messages, sampling)])
        assert num_deltas > 8
        for cut in range(1, num_deltas):
            deltas: list[Delta] = []
            async for delta in client.chat_stream("scripted", messages, sampling):
                deltas.append(delta)
                if len(deltas) == cut:
                    line.cut()
            assert Answer.of(deltas) == wanted
        await made.idle()


async def test_a_line_that_breaks_again_and_again(tmp_path: Path) -> None:
    async with over_a_line(tmp_path) as (made, line, client):
        deltas: list[Delta] = []
        async for delta in client.stream("scripted", "long", Sampling(max_tokens=60)):
            deltas.append(delta)
            if len(deltas) % 20 == 0:
                line.cut()
        answer = Answer.of(deltas)
        assert (answer.text, answer.usage.completion_tokens) == ("x" * 60, 60)
        await made.idle()


async def test_without_it_a_broken_line_is_an_error(tmp_path: Path) -> None:
    async with over_a_line(tmp_path, max_resumes=0) as (made, line, client):
        stream = client.stream("scripted", "long", Sampling(max_tokens=400))
        await anext(stream)
        line.cut()
        with pytest.raises(ServerError) as raised:
            _ = [delta async for delta in stream]
        assert raised.value.status == "UNAVAILABLE"
        await made.idle()


async def test_who_leaves_a_stream_that_could_be_resumed_ends_it(tmp_path: Path) -> None:
    async with over_a_line(tmp_path) as (made, _, client):
        async with aclosing(client.stream("scripted", "long", Sampling(max_tokens=400))) as stream:
            await anext(stream)
        await made.idle()
        assert made.engine.stats().num_generated_tokens < 200

        async def read() -> None:
            async for _ in client.stream("scripted", "long", Sampling(max_tokens=400)):
                pass

        reading = asyncio.create_task(read())
        await until(lambda: made.engine.stats().num_running == 1)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await made.idle()


async def test_what_the_server_refuses_is_not_tried_again(tmp_path: Path) -> None:
    async with over_a_line(tmp_path) as (made, _, client):
        made.readiness.set_state("draining")
        with pytest.raises(ServerError) as raised:
            await anext(client.stream("scripted", "go"))
        assert raised.value.code == "draining"


async def test_no_server_is_no_server_error() -> None:
    async with HttpClient("http://127.0.0.1:9") as client:
        with pytest.raises(httpx.TransportError):
            await client.models()


HELLO = 272  # one token of the tiny tokenizer
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
PRINTED = (
    r"one two three Usage\(prompt_tokens=15, completion_tokens=14, .*\)\none two three",
    r"It is sunny\.\n",
    r"\[[-\d,\s]*\]?\s*\n(\S+ -\d+\.\d+ \[\(.*\), \(.*\)\]\n){3}",
    "one two three",
)


@pytest.mark.parametrize(("example", "printed"), list(zip(EXAMPLES, PRINTED, strict=True)))
async def test_the_examples_of_the_page(
    tmp_path: Path, example: str, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plays = [
        {"when": spoken("tool\nsunny in Paris"), "tokens": spoken("It is sunny.")},
        {"when": spoken("Is it sunny"), "tokens": spoken(CALL % ("weather", '{"city": "Paris"}'))},
        {"when": spoken("Once"), "tokens": spoken("one two three")},
        {"when": [HELLO, *spoken("!")], "tokens": spoken("one two three")},
    ]
    template = templates.ITERATES_ARGUMENTS
    async with (
        front(tmp_path, plays, template=template, tool_parser="hermes", max_model_len=1024) as made,
        grpc_served(made) as address,
        served(made.app) as port,
    ):
        here = example.replace("127.0.0.1:8001", address).replace("127.0.0.1:8000", f"127.0.0.1:{port}")
        await asyncio.to_thread(exec, compile(here, str(PAGE), "exec"), {"__name__": "example"})
    assert re.fullmatch(printed, capsys.readouterr().out)
