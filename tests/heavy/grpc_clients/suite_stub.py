"""A stub that was made of the public .proto files, in an environment without the server's package."""

from __future__ import annotations

import json
import time
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_status import rpc_status

Metadata = tuple[tuple[str, str], ...]


def request(stubs: Any, text: str, **sampling: Any) -> Any:
    prompt = stubs.generate.Prompt(text=text)
    return stubs.generate.GenerateRequest(model="tiny", prompts=[prompt], sampling=sampling)


def said(stubs: Any, text: str, **more: Any) -> Any:
    return stubs.chat.ChatRequest(model="tiny", messages=[stubs.chat.ChatMessage(role="user", content=text)], **more)


def until_idle(stubs: Any, channel: grpc.Channel, key: Metadata) -> None:
    deadline = time.monotonic() + 10
    while stubs.stub(channel).GetLoad(stubs.service.GetLoadRequest(), metadata=key).models[0].running:
        assert time.monotonic() < deadline, "something goes on"
        time.sleep(0.02)


def test_whole_and_streamed_are_the_same(stubs: Any, channel: grpc.Channel, key: Metadata) -> None:
    stub = stubs.stub(channel)
    (model,) = stub.ListModels(stubs.service.ListModelsRequest(), metadata=key).models
    assert (model.name, model.chat) == ("tiny", True)
    whole = stub.Chat(said(stubs, "greet"), metadata=key).choices[0]
    assert whole.content == "Hello, wörld 😀!"
    parts = [choice for message in stub.ChatStream(said(stubs, "greet"), metadata=key) for choice in message.choices]
    assert "".join(part.content for part in parts) == whole.content
    assert parts[-1].finish.reason == whole.finish.reason
    greeting = request(stubs, "greet", max_tokens=60)
    streamed = [choice.text for message in stub.GenerateStream(greeting, metadata=key) for choice in message.choices]
    assert "".join(streamed) == stub.Generate(greeting, metadata=key).choices[0].text == whole.content


def test_tools(stubs: Any, channel: grpc.Channel, key: Metadata) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = stubs.chat.Tool(name="get_weather", parameters_json=json.dumps(schema))
    parts = [
        call
        for message in stubs.stub(channel).ChatStream(said(stubs, "weather?", tools=[tool]), metadata=key)
        for choice in message.choices
        for call in choice.tool_calls
    ]
    assert [part.name for part in parts if part.name] == ["get_weather"]
    assert json.loads("".join(part.arguments for part in parts)) == {"city": "Paris"}


def test_cancel_and_deadline_end_the_work(stubs: Any, channel: grpc.Channel, key: Metadata) -> None:
    stub = stubs.stub(channel)
    stream = stub.GenerateStream(request(stubs, "endless", max_tokens=10_000), metadata=key)
    next(stream)
    stream.cancel()
    until_idle(stubs, channel, key)
    begun = time.monotonic()
    with pytest.raises(grpc.RpcError) as raised:
        stub.Generate(request(stubs, "endless", max_tokens=10_000), metadata=key, timeout=0.3)
    assert raised.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert time.monotonic() - begun < 5
    until_idle(stubs, channel, key)


def test_resuming_and_aborting(stubs: Any, channel: grpc.Channel, key: Metadata) -> None:
    stub = stubs.stub(channel)
    asked = request(stubs, "slow", max_tokens=100)
    asked.resumable = True
    stream = stub.GenerateStream(asked, metadata=key)
    got = [next(stream) for _ in range(10)]
    stream.cancel()
    rest = stubs.generate.GenerateRequest(resume_token=got[0].resume_token, received=got[-1].sequence)
    got += stub.GenerateStream(rest, metadata=key)
    assert "".join(choice.text for message in got for choice in message.choices) == "0123456789" * 10
    assert [message.sequence for message in got] == list(range(1, len(got) + 1))
    stream = stub.GenerateStream(
        request(stubs, "endless", max_tokens=10_000), metadata=(*key, ("x-request-id", "of-the-suite"))
    )
    next(stream)
    assert stub.Abort(stubs.service.AbortRequest(request_id="of-the-suite"), metadata=key).found
    with pytest.raises(grpc.RpcError) as raised:
        list(stream)
    assert raised.value.code() == grpc.StatusCode.ABORTED


def test_refusals(stubs: Any, channel: grpc.Channel, key: Metadata) -> None:
    stub = stubs.stub(channel)
    with pytest.raises(grpc.RpcError) as raised:
        stub.Generate(request(stubs, "x", temperature=9), metadata=key)
    status, info, bad = rpc_status.from_call(raised.value), ErrorInfo(), BadRequest()
    assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert status.details[0].Unpack(info)
    assert status.details[1].Unpack(bad)
    assert (info.reason, bad.field_violations[0].field) == ("invalid_value", "sampling.temperature")
    for metadata in ((), (("authorization", "Bearer wrong"),)):
        with pytest.raises(grpc.RpcError) as raised:
            stub.Generate(request(stubs, "x"), metadata=metadata)
        assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("service", ["", "tiny", "tickertape.v1.TokenStream", "inference.GRPCInferenceService"])
def test_health_as_a_probe_asks(channel: grpc.Channel, service: str) -> None:
    """As grpc_health_probe does it: without a key."""
    health = HealthStub(channel)
    assert health.Check(HealthCheckRequest(service=service)).status == HealthCheckResponse.SERVING
    watch = health.Watch(HealthCheckRequest(service=service))
    assert next(watch).status == HealthCheckResponse.SERVING
    watch.cancel()


def test_a_call_through_reflection_alone(address: str, key: Metadata) -> None:
    """Nothing but the address is known: the messages are made of what reflection says."""
    with grpc.intercept_channel(grpc.insecure_channel(address), _Authorized(key)) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert "tickertape.v1.TokenStream" in database.get_services()
        service = DescriptorPool(database).FindServiceByName("tickertape.v1.TokenStream")
        method = service.methods_by_name["Generate"]
        ask, answer = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        call = channel.unary_unary(
            f"/{service.full_name}/{method.name}",
            request_serializer=ask.SerializeToString,
            response_deserializer=answer.FromString,
        )
        prompt = {"text": "greet"}
        assert (
            call(ask(model="tiny", prompts=[prompt], sampling={"max_tokens": 60})).choices[0].text.startswith("Hello")
        )


class _Authorized(grpc.StreamStreamClientInterceptor, grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    def __init__(self, key: Metadata) -> None:
        self._key = key

    def intercept_stream_stream(self, continuation: Any, details: Any, requests: Any) -> Any:
        return continuation(self._with_key(details), requests)

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        return continuation(self._with_key(details), request)

    def _with_key(self, details: Any) -> Any:
        return details._replace(metadata=[*(details.metadata or ()), *self._key])
