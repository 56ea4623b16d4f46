"""Streams that are taken up again: the same messages, once each, for their owner alone, and for a while only."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc
import pytest
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo
from grpc_status import rpc_status

from tickertape.api.kept_streams import ResumeLimits
from tickertape.api.proto.tickertape.v1.answer_pb2 import FinishReason
from tickertape.api.proto.tickertape.v1.chat_pb2 import ChatMessage, ChatRequest, Tool
from tickertape.api.proto.tickertape.v1.generate_pb2 import GenerateRequest, Prompt
from tickertape.api.proto.tickertape.v1.sampling_pb2 import Sampling
from tickertape.api.proto.tickertape.v1.token_stream_pb2 import AbortRequest
from tickertape.api.proto.tickertape.v1.token_stream_pb2_grpc import TokenStreamStub
from tickertape.plugins.events import RequestEvent
from tickertape.testing.front import Front, spoken, until
from tickertape.testing.grpc_front import grpc_served

Make = Callable[..., Awaitable[Front]]

WORDS = {"when": spoken("go"), "tokens": spoken("one two, ünï three")}
FOREVER = {"when": spoken("long"), "tokens": spoken("x"), "then": "repeat"}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
CALLS = {"when": spoken("add"), "tokens": spoken(CALL)}

REQUESTS: dict[str, tuple[str, Any]] = {
    "greedy": ("GenerateStream", GenerateRequest(model="scripted", sampling={"max_tokens": 64})),
    "seeded, two choices, logprobs": (
        "GenerateStream",
        GenerateRequest(
            model="scripted", echo=True,
            sampling={"max_tokens": 12, "n": 2, "seed": 5, "temperature": 2.0, "logprobs": 2, "prompt_logprobs": 1},
        ),
    ),
    "a stop string": ("GenerateStream", GenerateRequest(model="scripted", sampling={"stop": ["ünï"]})),
    "a chat": ("ChatStream", ChatRequest(model="scripted", messages=[ChatMessage(role="user", content="go")])),
    "tool calls": (
        "ChatStream",
        ChatRequest(
            model="scripted", messages=[ChatMessage(role="user", content="add")],
            tools=[Tool(name="add", parameters_json='{"type":"object"}')],
        ),
    ),
    "the JSON of the HTTP API": (
        "ChatStream",
        ChatRequest(
            openai_json=json.dumps(
                {
                    "model": "scripted", "messages": [{"role": "user", "content": "go"}],
                    "stream_options": {"include_usage": True},
                }
            )
        ),
    ),
}  # fmt: skip
for _, made in REQUESTS.values():
    if isinstance(made, GenerateRequest):
        made.prompts.append(Prompt(text="go"))


def long(**more: Any) -> GenerateRequest:
    sampling = Sampling(max_tokens=400)
    return GenerateRequest(
        model="scripted", prompts=[Prompt(text="long")], sampling=sampling, **{"resumable": True, **more}
    )


async def read(stream: Any, num: int) -> list[Any]:
    """So many messages, or up to the end."""
    found: list[Any] = []
    while len(found) < num and (message := await stream.read()) is not grpc.aio.EOF:
        found.append(message)
    return found


async def everything(stream: Any) -> list[Any]:
    return await read(stream, 10**9)


async def refusal(stream: Any) -> tuple[grpc.StatusCode, str, str]:
    """Its status, its code, and the field it is about."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await everything(stream)
    status, info, bad = rpc_status.from_call(raised.value), ErrorInfo(), BadRequest()
    assert status is not None
    assert status.details[0].Unpack(info)
    named = len(status.details) > 1 and status.details[1].Unpack(bad)
    return raised.value.code(), info.reason, bad.field_violations[0].field if named else ""


def told(messages: list[Any]) -> dict[str, Any]:
    """All that a stream says, whatever step said it; two streams of the same request differ in no more than ids."""
    found: dict[str, Any] = {"usage": [m.usage for m in messages if m.HasField("usage")], "scored": [], "json": []}
    for message in messages:
        found["json"] += [{**json.loads(text), "id": "", "created": 0} for text in getattr(message, "openai_json", ())]
        scored = message.prompt_logprobs if isinstance(message.prompt_logprobs, Iterable) else [message.prompt_logprobs]
        found["scored"] += [each for each in scored if each.tokens]
        for choice in message.choices:
            parts = found.setdefault(f"choice {choice.index}", [])
            text = choice.content + choice.reasoning if hasattr(choice, "content") else choice.text
            calls = [(call.index, call.name, call.arguments) for call in getattr(choice, "tool_calls", ())]
            parts.append((text, list(choice.logprobs), calls, choice.finish))
    return found


@pytest.mark.parametrize("name", REQUESTS)
async def test_cut_at_every_message_the_rest_is_as_if_undisturbed(make_front: Make, name: str) -> None:
    front = await make_front(WORDS, CALLS, tool_parser="hermes")
    method, request = REQUESTS[name]
    async with grpc_served(front) as address, grpc.aio.insecure_channel(address) as channel:
        ask = getattr(TokenStreamStub(channel), method)
        await everything(ask(request))  # so that every later one finds its prefix in the cache
        plain = await everything(ask(request))
        assert not any(message.sequence or message.resume_token for message in plain)
        wanted = told(plain)
        request.resumable = True
        for cut in range(1, len(plain) + 1):
            stream = ask(request)
            got = await read(stream, cut)
            stream.cancel()
            token = got[0].resume_token
            assert len(token) == 32
            again = type(request)(resume_token=token, received=got[-1].sequence)
            got += await everything(ask(again))
            assert [message.sequence for message in got] == list(range(1, len(got) + 1))
            assert not any(message.resume_token for message in got[1:])
            assert told(got) == wanted
        request.resumable = False


async def test_a_stream_that_is_resumed_over_and_over(make_front: Make) -> None:
    front = await make_front(FOREVER, token_s=0.002)
    async with grpc_served(front) as address, grpc.aio.insecure_channel(address) as channel:
        stub = TokenStreamStub(channel)
        request = long()
        got: list[Any] = []
        while not got or not got[-1].HasField("usage"):
            stream = stub.GenerateStream(request)
            got += await read(stream, 7)
            stream.cancel()
            request = GenerateRequest(resume_token=got[0].resume_token, received=got[-1].sequence)
        assert [message.sequence for message in got] == list(range(1, len(got) + 1))
        assert "".join(choice.text for message in got for choice in message.choices) == "x" * 400
        assert got[-1].choices[0].finish.reason == FinishReason.FINISH_REASON_LENGTH
        assert got[-1].usage.completion_tokens == 400
        assert front.engine.stats().num_generated_tokens == 400


async def test_it_can_be_read_again_from_any_point_after_its_end(make_front: Make) -> None:
    front = await make_front(WORDS)
    async with grpc_served(front) as address, grpc.aio.insecure_channel(address) as channel:
        ask = TokenStreamStub(channel).GenerateStream
        request = GenerateRequest(model="scripted", prompts=[Prompt(text="go")], resumable=True)
        got = await everything(ask(request))
        for received in (0, 3, len(got)):
            again = ask(GenerateRequest(resume_token=got[0].resume_token, received=received))
            assert await everything(again) == got[received:]


async def test_nobody_comes_back(make_front: Make) -> None:
    front = await make_front(FOREVER, token_s=0.005, resume=ResumeLimits(window_s=0.3))
    async with grpc_served(front) as address, grpc.aio.insecure_channel(address) as channel:
        stub = TokenStreamStub(channel)
        stream = stub.GenerateStream(long())
        token = (await stream.read()).resume_token
        stream.cancel()
        steps = front.engine.stats().num_steps
        await until(lambda: front.engine.stats().num_steps > steps + 10)  # it goes on
        await until(lambda: front.service.kept.num_running == 0)
        await front.idle()
        assert front.engine.stats().num_generated_tokens < 300
        again = stub.GenerateStream(GenerateRequest(resume_token=token, received=1))
        assert await refusal(again) == (grpc.StatusCode.NOT_FOUND, "stream_not_found", "resume_token")


async def test_who_got_nothing_cannot_come_back_and_is_not_waited_for(make_front: Make) -> None:
    front = await make_front(FOREVER, max_num_seqs=1, token_s=0.005)
    async with grpc_served(front) as address, grpc.aio.insecure_channel(address) as channel:
        stub = TokenStreamStub(channel)
        first = stub.GenerateStream(long(resumable=False))
        await first.read()
        queued = stub.GenerateStream(long())
        await until(lambda: front.engine.stats().num_waiting == 1)
        queued.cancel()
        await until(lambda: front.engine.stats().num_waiting == 0)
        assert front.service.kept.num_running == 0
        first.cancel()


async def test_abort_ends_it_with_and_without_a_reader(make_front: Make) -> None:
    front = await make_front(FOREVER, token_s=0.005)
    async with grpc_served(front) as address, grpc.aio.insecure_channel(address) as channel:
        stub = TokenStreamStub(channel)
        aborted = (grpc.StatusCode.ABORTED, "aborted", "")
        for reader in ("none", "the first", "another"):
            stream = stub.GenerateStream(long(), metadata=(("x-request-id", "first"),))
            token = (await stream.read()).resume_token
            again = GenerateRequest(resume_token=token, received=1)
            if reader != "the first":
                stream.cancel()
            if reader == "another":
                stream = stub.GenerateStream(again, metadata=(("x-request-id", "another"),))
                await stream.read()
            name = "another" if reader == "another" else "first"
            assert (await stub.Abort(AbortRequest(request_id=name))).found
            await front.idle()
            if reader != "none":
                assert await refusal(stream) == aborted
            assert await refusal(stub.GenerateStream(again)) == aborted  # who comes back is told why
            assert not (await stub.Abort(AbortRequest(request_id="first"))).found


async def test_the_deadline_of_the_first_call_is_that_of_the_stream(make_front: Make) -> None:
    front = await make_front(FOREVER, token_s=0.01)
    async with grpc_served(front) as address, grpc.aio.insecure_channel(address) as channel:
        stub = TokenStreamStub(channel)
        stream = stub.GenerateStream(long(), timeout=0.4)
        token = (await stream.read()).resume_token
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await everything(stream)
        assert raised.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        await front.idle()
        assert front.engine.stats().num_generated_tokens < 200
        again = stub.GenerateStream(GenerateRequest(resume_token=token, received=1))
        assert await refusal(again) == (grpc.StatusCode.DEADLINE_EXCEEDED, "timeout", "")


async def test_a_token_is_good_for_its_key_and_its_method_alone(make_front: Make) -> None:
    front = await make_front(FOREVER, token_s=0.005)
    async with grpc_served(front, api_keys=("a", "b")) as address, grpc.aio.insecure_channel(address) as channel:
        stub = TokenStreamStub(channel)
        a, b = ((("authorization", f"Bearer {key}"),) for key in "ab")
        stream = stub.GenerateStream(long(), metadata=a)
        token = (await stream.read()).resume_token
        missing = (grpc.StatusCode.NOT_FOUND, "stream_not_found", "resume_token")
        for other in (
            stub.GenerateStream(GenerateRequest(resume_token=token), metadata=b),
            stub.GenerateStream(GenerateRequest(resume_token=f"{token[:-1]}x"), metadata=a),
            stub.ChatStream(ChatRequest(resume_token=token), metadata=a),
        ):
            assert await refusal(other) == missing
        assert (await stream.read()).choices[0].text  # undisturbed
        again = stub.GenerateStream(GenerateRequest(resume_token=token, received=1), metadata=a)
        assert (await again.read()).sequence == 2
        assert (await refusal(stream))[:2] == (grpc.StatusCode.ABORTED, "aborted")  # it was taken over
        await stub.Abort(AbortRequest(request_id=dict(await again.initial_metadata())["x-request-id"]), metadata=a)


async def test_what_was_read_is_dropped_beyond_the_bound_and_what_was_not_is_waited_for(make_front: Make) -> None:
    """The engine takes a few steps, and goes on when the server knows that the reader has gone: how much is handed out
    before that is nothing that time decides."""
    steps, go_on = itertools.count(), threading.Event()

    def sleep(_: float) -> None:
        if next(steps) >= 8:
            go_on.wait(60)

    limits = ResumeLimits(max_bytes=6000)
    front = await make_front(FOREVER, resume=limits, max_model_len=2048, num_blocks=200, token_s=0.0005, sleep=sleep)
    async with grpc_served(front) as address, grpc.aio.insecure_channel(address) as channel:
        stub = TokenStreamStub(channel)
        request = long()
        request.sampling.max_tokens = 1500
        stream = stub.GenerateStream(request)
        try:
            first = await stream.read()
            stream.cancel()
            kept = front.service.kept
            cut = kept.find(tenant="", kind="GenerateStream", token=first.resume_token)
            await until(lambda: not cut.is_read)
        finally:
            go_on.set()
        await until(lambda: front.engine.stats().num_running == 0)  # computed, and not to be taken
        assert kept.num_running == 1
        rest = stub.GenerateStream(GenerateRequest(resume_token=first.resume_token, received=1))
        got = [first, *await everything(rest)]
        assert "".join(choice.text for message in got for choice in message.choices) == "x" * 1500
        assert got[-1].usage.completion_tokens == 1500
        assert kept.num_running == 0
        for received, wanted in ((1, "stream_not_found"), (len(got) + 1, "invalid_value")):
            again = stub.GenerateStream(GenerateRequest(resume_token=first.resume_token, received=received))
            assert (await refusal(again))[1:] == (wanted, "received")


async def test_how_many_there_may_be(make_front: Make) -> None:
    front = await make_front(FOREVER, WORDS, token_s=0.005, resume=ResumeLimits(max_streams=2))
    async with grpc_served(front) as address, grpc.aio.insecure_channel(address) as channel:
        stub = TokenStreamStub(channel)
        short = GenerateRequest(model="scripted", prompts=[Prompt(text="go")], resumable=True)
        ended = await everything(stub.GenerateStream(short))
        running = [stub.GenerateStream(long(), metadata=(("x-request-id", "r"),)) for _ in range(2)]
        for stream in running:
            await stream.read()
        gone = stub.GenerateStream(GenerateRequest(resume_token=ended[0].resume_token))
        assert (await refusal(gone))[1] == "stream_not_found"  # it made room
        refused = await refusal(stub.GenerateStream(long()))
        assert refused == (grpc.StatusCode.RESOURCE_EXHAUSTED, "too_many_resumable", "")
        await stub.Abort(AbortRequest(request_id="r"))
        assert await everything(stub.GenerateStream(short))


async def test_a_fault_is_told_to_who_comes_back(make_front: Make) -> None:
    front = await make_front({"when": spoken("bad"), "tokens": spoken("abcdef"), "fail": {"at": 3}}, token_s=0.01)
    async with grpc_served(front) as address, grpc.aio.insecure_channel(address) as channel:
        ask = TokenStreamStub(channel).GenerateStream
        stream = ask(GenerateRequest(model="scripted", prompts=[Prompt(text="bad")], resumable=True))
        first = await stream.read()
        stream.cancel()
        await front.idle()
        again = ask(GenerateRequest(resume_token=first.resume_token, received=1))
        assert [message.choices[0].text for message in await read(again, 2)] == ["b", "c"]
        assert (await refusal(again))[0] == grpc.StatusCode.INTERNAL


@pytest.mark.parametrize(
    ("method", "field", "value"),
    [
        ("Generate", "resumable", True),
        ("Generate", "resume_token", "t"),
        ("GenerateStream", "received", 3),
        ("Chat", "resumable", True),
    ],
)
async def test_fields_that_make_no_sense_there(make_front: Make, method: str, field: str, value: Any) -> None:
    front = await make_front()
    kind = ChatRequest if method == "Chat" else GenerateRequest
    async with grpc_served(front) as address, grpc.aio.insecure_channel(address) as channel:
        call = getattr(TokenStreamStub(channel), method)(kind(model="scripted", **{field: value}))
        with pytest.raises(grpc.aio.AioRpcError, match=field) as raised:
            await (call if method in ("Generate", "Chat") else everything(call))
        assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_it_can_be_turned_off(make_front: Make) -> None:
    front = await make_front(resume=ResumeLimits(window_s=0))
    async with grpc_served(front) as address, grpc.aio.insecure_channel(address) as channel:
        refused = await refusal(TokenStreamStub(channel).GenerateStream(long()))
        assert refused == (grpc.StatusCode.INVALID_ARGUMENT, "unsupported_value", "resumable")


async def test_bad_requests_are_refused_as_ever_and_keep_nothing(make_front: Make) -> None:
    front = await make_front(resume=ResumeLimits(max_streams=1))
    async with grpc_served(front) as address, grpc.aio.insecure_channel(address) as channel:
        for _ in range(3):
            request = long()
            request.sampling.temperature = 7
            refused = await refusal(TokenStreamStub(channel).GenerateStream(request))
            assert refused == (grpc.StatusCode.INVALID_ARGUMENT, "invalid_value", "sampling.temperature")


async def test_each_call_tells_of_its_share_of_the_cost(make_front: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    front = await make_front(FOREVER, token_s=0.005)
    seen: list[RequestEvent] = []
    monkeypatch.setattr("tickertape.plugins.observers.Observers.__bool__", lambda _: True)
    monkeypatch.setattr("tickertape.plugins.observers.Observers.__call__", lambda _, event: seen.append(event))
    async with grpc_served(front) as address, grpc.aio.insecure_channel(address) as channel:
        ask = TokenStreamStub(channel).GenerateStream
        stream = ask(long())
        first = await stream.read()
        await asyncio.sleep(0.1)
        stream.cancel()
        await until(lambda: len(seen) == 1)
        await everything(ask(GenerateRequest(resume_token=first.resume_token, received=1)))
        await until(lambda: len(seen) == 2)
    assert [event.outcome for event in seen] == ["cancelled", "ok"]
    assert sum(event.num_generated_tokens for event in seen) == 400
    assert sum(event.num_prompt_tokens for event in seen) == 4
    assert [event.model for event in seen] == ["scripted", "scripted"]
    assert 0 < seen[0].num_generated_tokens < 400
    monkeypatch.undo()
