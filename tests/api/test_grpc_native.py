"""`tickertape.v1.TokenStream`: what the parity kit does not reach."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from tickertape.api.proto.tickertape.v1.answer_pb2 import FinishReason
from tickertape.api.proto.tickertape.v1.chat_pb2 import ChatMessage, ChatRequest, Tool, ToolChoice
from tickertape.api.proto.tickertape.v1.generate_pb2 import GenerateRequest, Prompt, TokenIds
from tickertape.api.proto.tickertape.v1.token_stream_pb2 import (
    DetokenizeRequest,
    GetLoadRequest,
    ListModelsRequest,
    TokenizeRequest,
)
from tickertape.api.proto.tickertape.v1.token_stream_pb2_grpc import TokenStreamStub
from tickertape.testing.front import PLAIN_TEXT, Front, spoken
from tickertape.testing.grpc_front import grpc_served

Make = Callable[..., Awaitable[Front]]

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
SCHEMA = '{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}'


def said(text: str, **more: Any) -> ChatRequest:
    return ChatRequest(model="scripted", messages=[ChatMessage(role="user", content=text)], **more)


async def test_models_tokens_and_load(make_front: Make) -> None:
    front = await make_front()
    async with grpc_served(front) as address, grpc.aio.insecure_channel(address) as channel:
        stub = TokenStreamStub(channel)
        (model,) = (await stub.ListModels(ListModelsRequest())).models
        assert (model.name, model.max_model_len, model.vocab_size, model.chat) == ("scripted", 512, 512, True)
        tokens = (await stub.Tokenize(TokenizeRequest(model="scripted", text="año"))).token_ids
        assert list(tokens) == spoken("año")
        assert (await stub.Detokenize(DetokenizeRequest(model="scripted", token_ids=tokens))).text == "año"
        (load,) = (await stub.GetLoad(GetLoadRequest())).models
        assert (load.name, load.running, load.waiting, load.used_blocks, load.total_blocks) == ("scripted", 0, 0, 0, 64)
        for call in (
            stub.GetLoad(GetLoadRequest(model="nope")),
            stub.Tokenize(TokenizeRequest(model="nope")),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call
            assert raised.value.code() == grpc.StatusCode.NOT_FOUND
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.Detokenize(DetokenizeRequest(model="scripted", token_ids=[512]))
        assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_several_prompts_choices_and_ids(make_front: Make) -> None:
    front = await make_front({"when": spoken("go"), "tokens": spoken("abc")})
    async with grpc_served(front) as address, grpc.aio.insecure_channel(address) as channel:
        stub = TokenStreamStub(channel)
        ids = [Prompt(tokens=TokenIds(ids=spoken(text))) for text in ("go", "plain")]
        request = GenerateRequest(model="scripted", prompts=ids, sampling={"n": 2, "max_tokens": 30}, echo=True)
        answer = await stub.Generate(request)
        assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
        assert [choice.text for choice in answer.choices] == ["goabc"] * 2 + [f"plain{PLAIN_TEXT}"] * 2
        parts: dict[int, str] = {}
        async for message in stub.GenerateStream(request):
            for choice in message.choices:
                parts[choice.index] = parts.get(choice.index, "") + choice.text
        assert [parts[n] for n in range(4)] == [choice.text for choice in answer.choices]
        mixed = GenerateRequest(model="scripted", prompts=[ids[0], Prompt(text="go")])
        with pytest.raises(grpc.aio.AioRpcError, match="prompts") as raised:
            await stub.Generate(mixed)
        assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_tools_whole_and_streamed(make_front: Make) -> None:
    front = await make_front({"when": spoken("add"), "tokens": spoken(CALL)}, tool_parser="hermes")
    tools = [Tool(name="add", parameters_json=SCHEMA)]
    async with grpc_served(front) as address, grpc.aio.insecure_channel(address) as channel:
        stub = TokenStreamStub(channel)
        (choice,) = (await stub.Chat(said("add", tools=tools))).choices
        (call,) = choice.tool_calls
        assert (call.name, json.loads(call.arguments), choice.content) == ("add", {"a": 1}, "")
        assert call.id.startswith("call_")
        assert choice.finish.reason == FinishReason.FINISH_REASON_TOOL_CALLS
        parts = [
            part
            async for message in stub.ChatStream(said("add", tools=tools))
            for choice in message.choices
            for part in choice.tool_calls
        ]
        assert [part.name for part in parts if part.name] == ["add"]
        assert json.loads("".join(part.arguments for part in parts)) == {"a": 1}
        with pytest.raises(grpc.aio.AioRpcError, match="tool_choice"):
            await stub.Chat(said("add", tools=tools, tool_choice=ToolChoice(function="nope")))
        with pytest.raises(grpc.aio.AioRpcError, match="parameters_json"):
            await stub.Chat(said("add", tools=[Tool(name="add", parameters_json="{")]))


async def test_the_json_of_the_http_api_gets_its_answers(make_front: Make) -> None:
    front = await make_front({"when": spoken("go"), "tokens": spoken("abc")})
    body = front.chat_body("go", seed=1, logprobs=True)
    await front.chat("go")  # so that both find its prefix in the cache
    http = (await front.chat("go", seed=1, logprobs=True)).json()
    async with grpc_served(front) as address, grpc.aio.insecure_channel(address) as channel:
        stub = TokenStreamStub(channel)
        request = ChatRequest(openai_json=json.dumps(body))
        whole = json.loads((await stub.Chat(request)).openai_json)
        changing = ("id", "created")
        assert {k: v for k, v in whole.items() if k not in changing} == {
            k: v for k, v in http.items() if k not in changing
        }
        chunks = [json.loads(text) async for message in stub.ChatStream(request) for text in message.openai_json]
        assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
        assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "abc"
        for bad in (
            ChatRequest(openai_json="{"),
            ChatRequest(openai_json="[]"),
            ChatRequest(openai_json=json.dumps(body), model="scripted"),
            ChatRequest(openai_json=json.dumps({**body, "no_such": 1})),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await stub.Chat(bad)
            assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_a_fault_in_mid_stream_is_the_status(make_front: Make) -> None:
    front = await make_front({"when": spoken("bad"), "tokens": spoken("abcdef"), "fail": {"at": 3}})
    async with grpc_served(front) as address, grpc.aio.insecure_channel(address) as channel:
        request = GenerateRequest(model="scripted", prompts=[Prompt(text="bad")])
        stream = TokenStreamStub(channel).GenerateStream(request)
        assert [(await stream.read()).choices[0].text for _ in range(3)] == list("abc")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stream.read()
        assert raised.value.code() == grpc.StatusCode.INTERNAL
