"""One table of requests over every wire: what is answered, and what is refused, is the same whoever asks."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import grpc
import numpy as np
import pytest
import tritonclient.grpc.aio as triton
from google.rpc.error_details_pb2 import ErrorInfo
from grpc_status import rpc_status
from tritonclient.utils import InferenceServerException

from tickertape.api.error_table import TABLE, spelling
from tickertape.api.grpc.fmaas.protocol import messages
from tickertape.api.proto.tickertape.v1.answer_pb2 import FinishReason
from tickertape.api.proto.tickertape.v1.generate_pb2 import GenerateRequest, Prompt
from tickertape.api.proto.tickertape.v1.sampling_pb2 import Sampling
from tickertape.api.proto.tickertape.v1.token_stream_pb2_grpc import TokenStreamStub
from tickertape.core.errors import RouteNotFound, TickertapeError
from tickertape.testing.front import Front, spoken
from tickertape.testing.grpc_front import grpc_served

Make = Callable[..., Awaitable[Front]]

WORDS = {"when": spoken("go"), "tokens": spoken("one two, three four. ünï")}

REQUESTS: Mapping[str, Mapping[str, Any]] = {
    "greedy, to its end": {"temperature": 0.0, "max_tokens": 64},
    "greedy, cut": {"temperature": 0.0, "max_tokens": 5},
    "a stop string": {"temperature": 0.0, "max_tokens": 64, "stop": ["three"]},
    "a stop string of several": {"temperature": 0.0, "max_tokens": 64, "stop": ["zzz", ", th"]},
    "seeded": {"temperature": 2.0, "seed": 7, "max_tokens": 24},
    "seeded, filtered": {"temperature": 1.5, "seed": 11, "top_k": 40, "top_p": 0.95, "max_tokens": 24},
    "penalised": {"temperature": 0.0, "repetition_penalty": 1.5, "max_tokens": 24},
    "logprobs": {"temperature": 0.0, "logprobs": 3, "max_tokens": 8},
    "seeded, with logprobs": {"temperature": 2.0, "seed": 3, "logprobs": 2, "max_tokens": 12},
    "held to a choice": {"temperature": 0.0, "max_tokens": 24, "choice": ["red", "green"]},
}


class Told(NamedTuple):
    """What an answer says. None: this wire does not tell."""

    text: str
    finish: str
    num_prompt: int
    num_new: int
    tokens: list[int] | None
    logprobs: list[tuple[str, float]] | None


Wire = Callable[[Front, str, Mapping[str, Any]], Awaitable[Told]]


def body_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    body = dict(fields)
    if "choice" in body:
        body["structured_outputs"] = {"choice": body.pop("choice")}
    return body


async def over_http(front: Front, _: str, fields: Mapping[str, Any]) -> Told:
    answer = (await front.complete("go", return_token_ids=True, **body_of(fields))).json()
    choice, usage = answer["choices"][0], answer["usage"]
    return Told(
        choice["text"], choice["finish_reason"], usage["prompt_tokens"], usage["completion_tokens"],
        choice["token_ids"], _legacy([choice]),
    )  # fmt: skip


async def over_sse(front: Front, _: str, fields: Mapping[str, Any]) -> Told:
    answer = await front.complete(
        "go", return_token_ids=True, stream=True, stream_options={"include_usage": True}, **body_of(fields)
    )
    chunks = [json.loads(event) for event in answer.events if event != "[DONE]"]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    usage = chunks[-1]["usage"]
    return Told(
        "".join(choice["text"] for choice in choices),
        next(choice["finish_reason"] for choice in choices if choice["finish_reason"]),
        usage["prompt_tokens"],
        usage["completion_tokens"],
        [token for choice in choices for token in choice["token_ids"]],
        _legacy(choices),
    )


def _legacy(choices: list[Any]) -> list[tuple[str, float]] | None:
    found = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    pairs = [pair for each in found for pair in zip(each["tokens"], each["token_logprobs"], strict=True)]
    return pairs or None


def native_request(fields: Mapping[str, Any]) -> GenerateRequest:
    return GenerateRequest(
        model="scripted", prompts=[Prompt(text="go")], sampling=Sampling(return_token_ids=True, **_native(fields))
    )


def _native(fields: Mapping[str, Any]) -> dict[str, Any]:
    sampling = dict(fields)
    if "choice" in sampling:
        sampling["structured_outputs"] = {"choice": {"values": sampling.pop("choice")}}
    return sampling


async def over_native(_: Front, address: str, fields: Mapping[str, Any]) -> Told:
    async with grpc.aio.insecure_channel(address) as channel:
        answer = await TokenStreamStub(channel).Generate(native_request(fields))
    return _of_native([answer])


async def over_native_stream(_: Front, address: str, fields: Mapping[str, Any]) -> Told:
    async with grpc.aio.insecure_channel(address) as channel:
        return _of_native([part async for part in TokenStreamStub(channel).GenerateStream(native_request(fields))])


def _of_native(messages: list[Any]) -> Told:
    choices = [choice for message in messages for choice in message.choices]
    reason = FinishReason.Name(next(choice.finish.reason for choice in choices if choice.HasField("finish")))
    usage = messages[-1].usage
    pairs = [(entry.token, entry.logprob) for choice in choices for entry in choice.logprobs]
    return Told(
        "".join(choice.text for choice in choices),
        reason.removeprefix("FINISH_REASON_").lower(),
        usage.prompt_tokens,
        usage.completion_tokens,
        [token for choice in choices for token in choice.token_ids],
        pairs or None,
    )


def tensors(fields: Mapping[str, Any], *, stream: bool) -> list[Any]:
    values: dict[str, Any] = {
        "text_input": b"go",
        "stream": stream,
        "sampling_parameters": json.dumps(body_of(fields)).encode(),
        "exclude_input_in_output": True,
        "return_finish_reason": True,
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
        "return_logprobs": "logprobs" in fields,
    }
    found = []
    for name, value in values.items():
        kind = "BOOL" if isinstance(value, bool) else "BYTES"
        tensor = triton.InferInput(name, [1], kind)
        tensor.set_data_from_numpy(np.array([value], dtype=bool if kind == "BOOL" else object))
        found.append(tensor)
    return found


async def over_kserve(_: Front, address: str, fields: Mapping[str, Any]) -> Told:
    async with triton.InferenceServerClient(address) as client:
        return _of_kserve([await client.infer("scripted", tensors(fields, stream=False))])


async def over_kserve_stream(_: Front, address: str, fields: Mapping[str, Any]) -> Told:
    async def requests() -> Any:
        yield {"model_name": "scripted", "inputs": tensors(fields, stream=True)}

    async with triton.InferenceServerClient(address) as client:
        found = [each async for each in client.stream_infer(requests())]
    for _, error in found:
        if error is not None:
            raise error
    return _of_kserve([result for result, _ in found])


def _of_kserve(results: list[Any]) -> Told:
    def joined(name: str) -> list[Any]:
        return [result.as_numpy(name).tolist()[0] for result in results if result.as_numpy(name) is not None]

    entries = [entry for text in joined("logprobs") for entry in json.loads(text)]
    return Told(
        b"".join(joined("text_output")).decode(),
        joined("finish_reason")[-1].decode(),
        joined("num_input_tokens")[0],
        sum(joined("num_output_tokens")),
        None,
        [(entry["token"], entry["logprob"]) for entry in entries] or None,
    )


def fmaas_parameters(of: Any, fields: Mapping[str, Any]) -> Any:
    parameters = of.Parameters()
    given = dict(fields)
    if (temperature := given.pop("temperature", 1.0)) > 0:
        parameters.method = 1
        parameters.sampling.temperature = temperature
    for name in ("seed", "top_k", "top_p"):
        if name in given:
            setattr(parameters.sampling, name, given.pop(name))
    parameters.stopping.max_new_tokens = given.pop("max_tokens", 0)
    parameters.stopping.stop_sequences.extend(given.pop("stop", ()))
    parameters.stopping.include_stop_sequence = False
    parameters.decoding.repetition_penalty = given.pop("repetition_penalty", 0.0)
    if "choice" in given:
        parameters.decoding.choice.choices.extend(given.pop("choice"))
    if "logprobs" in given:
        parameters.response.generated_tokens = parameters.response.token_logprobs = True
        parameters.response.top_n_tokens = given.pop("logprobs")
    assert not given
    return parameters


async def over_fmaas(_: Front, address: str, fields: Mapping[str, Any]) -> Told:
    of = messages()
    request = of.BatchedGenerationRequest(
        model_id="scripted", requests=[of.GenerationRequest(text="go")], params=fmaas_parameters(of, fields)
    )
    async with grpc.aio.insecure_channel(address) as channel:
        answer = await fmaas_method(channel, "Generate", of.BatchedGenerationResponse)(request)
    return _of_fmaas(list(answer.responses))


async def over_fmaas_stream(_: Front, address: str, fields: Mapping[str, Any]) -> Told:
    of = messages()
    request = of.SingleGenerationRequest(
        model_id="scripted", request=of.GenerationRequest(text="go"), params=fmaas_parameters(of, fields)
    )
    async with grpc.aio.insecure_channel(address) as channel:
        call = fmaas_method(channel, "GenerateStream", of.GenerationResponse, stream=True)(request)
        return _of_fmaas([part async for part in call])


def fmaas_method(channel: Any, name: str, answer: Any, *, stream: bool = False) -> Any:
    make = channel.unary_stream if stream else channel.unary_unary
    return make(
        f"/fmaas.GenerationService/{name}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=answer.FromString,
    )


def _of_fmaas(parts: list[Any]) -> Told:
    reason = messages().GenerationResponse.DESCRIPTOR.fields_by_name["stop_reason"].enum_type.values_by_number
    name = reason[parts[-1].stop_reason].name
    entries = [(token.text, token.logprob) for part in parts for token in part.tokens if token.logprob]
    return Told(
        "".join(part.text for part in parts),
        {"MAX_TOKENS": "length", "EOS_TOKEN": "stop", "STOP_SEQUENCE": "stop"}[name],
        parts[0].input_token_count,
        parts[-1].generated_token_count,
        None,
        entries or None,
    )


WIRES: Mapping[str, Wire] = {
    "sse": over_sse,
    "native": over_native,
    "native stream": over_native_stream,
    "kserve": over_kserve,
    "kserve stream": over_kserve_stream,
    "fmaas": over_fmaas,
    "fmaas stream": over_fmaas_stream,
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_every_wire_tells_the_same(make_front: Make, name: str) -> None:
    front = await make_front(WORDS)
    async with grpc_served(front) as address:
        wanted = await over_http(front, address, REQUESTS[name])
        for wire, ask in WIRES.items():
            told = await ask(front, address, REQUESTS[name])
            assert told[:4] == wanted[:4], wire
            assert told.tokens in (None, wanted.tokens), wire
            if wanted.logprobs is None:
                assert told.logprobs is None, wire
                continue
            assert told.logprobs is not None, wire
            assert [token for token, _ in told.logprobs] == [token for token, _ in wanted.logprobs], wire
            values = [value for _, value in wanted.logprobs]
            exact = 1e-6 if "fmaas" in wire else 1e-12  # that protocol has 32 bits for them
            assert [value for _, value in told.logprobs] == pytest.approx(values, rel=exact), wire


@pytest.mark.parametrize("kind", TABLE)
async def test_every_wire_refuses_the_same(
    make_front: Make, kind: type[TickertapeError], monkeypatch: pytest.MonkeyPatch
) -> None:
    front = await make_front(WORDS)
    error = kind("it is so", param="prompt", retry_after_s=2.0)

    async def fail(_: Any) -> Any:
        raise error

    monkeypatch.setattr(front.service, "complete", fail)
    line = spelling(error)
    answer = await front.complete("go")
    assert (answer.status, answer.json()["error"]["code"]) == (line.status, error.code)
    async with grpc_served(front) as address:
        for wire, ask in WIRES.items():
            if wire == "sse":
                continue
            with pytest.raises((grpc.aio.AioRpcError, InferenceServerException)) as raised:
                await ask(front, address, {"max_tokens": 3})
            refused = raised.value
            if wire == "kserve stream":
                assert isinstance(refused, InferenceServerException)
                assert refused.message() == "it is so"  # all that its protocol has room for
            elif isinstance(refused, InferenceServerException):
                assert (refused.status(), refused.message()) == (f"StatusCode.{line.grpc}", "it is so")
            else:
                assert isinstance(refused, grpc.aio.AioRpcError), wire
                assert (refused.code().name, refused.details()) == (line.grpc, "it is so")
                status = rpc_status.from_call(refused)
                assert status is not None
                info = ErrorInfo()
                status.details[0].Unpack(info)
                assert info.reason == error.code
                assert info.metadata["param"] == ("requests" if "fmaas" in wire else "prompts")
                kinds = [detail.type_url.rpartition(".")[2] for detail in status.details]
                assert kinds == ["ErrorInfo", "BadRequest"] + (["RetryInfo"] if line.retry else [])
    monkeypatch.undo()


async def test_a_method_that_is_not_there(make_front: Make) -> None:
    front = await make_front()
    async with grpc_served(front) as address, grpc.aio.insecure_channel(address) as channel:
        for path in ("/tickertape.v1.TokenStream/Embed", "/inference.GRPCInferenceService/RepositoryIndex"):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await channel.unary_unary(path)(b"")
            assert raised.value.code().name == spelling(RouteNotFound("")).grpc
