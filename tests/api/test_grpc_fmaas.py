"""`fmaas.GenerationService`: what the parity kit does not reach."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest

from tickertape.api.grpc.fmaas.protocol import messages
from tickertape.testing.front import PLAIN_TEXT, Front, spoken
from tickertape.testing.grpc_front import grpc_served

Make = Callable[..., Awaitable[Front]]


class Client:
    def __init__(self, front: Front, channel: Any) -> None:
        self.front = front
        self.of = messages()
        self._channel = channel

    def call(self, name: str, answer: str, request: Any) -> Any:
        make = self._channel.unary_stream if name == "GenerateStream" else self._channel.unary_unary
        method = make(
            f"/fmaas.GenerationService/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=getattr(self.of, answer).FromString,
        )
        return method(request)

    async def generate(self, *texts: str, **params: Any) -> list[Any]:
        of = self.of
        requests = [of.GenerationRequest(text=text) for text in texts]
        request = of.BatchedGenerationRequest(model_id="scripted", requests=requests, params=params)
        return list((await self.call("Generate", "BatchedGenerationResponse", request)).responses)

    async def stream(self, text: str, **params: Any) -> list[Any]:
        of = self.of
        request = of.SingleGenerationRequest(
            model_id="scripted", request=of.GenerationRequest(text=text), params=params
        )
        return [part async for part in self.call("GenerateStream", "GenerationResponse", request)]


@pytest.fixture
async def client(make_front: Make) -> AsyncIterator[Client]:
    plays = (
        {"when": spoken("long"), "tokens": spoken("x"), "then": "repeat"},
        {"when": spoken("go"), "tokens": spoken("abc")},
    )
    front = await make_front(*plays, token_s=0.005)
    async with grpc_served(front) as address, grpc.aio.insecure_channel(address) as channel:
        yield Client(front, channel)


async def test_several_requests_each_with_its_answer(client: Client) -> None:
    first, second = await client.generate("go", "plain", response={"input_text": True})
    assert (first.text, first.input_token_count, first.stop_reason) == ("goabc", 2, 2)
    assert second.text == f"plain{PLAIN_TEXT}"


async def test_the_default_length_and_the_stop_sequence(client: Client) -> None:
    (answer,) = await client.generate("long")
    assert (answer.text, answer.generated_token_count, answer.stop_reason) == ("x" * 20, 20, 1)
    (answer,) = await client.generate("go", stopping={"stop_sequences": ["b"]})
    assert (answer.text, answer.stop_reason, answer.stop_sequence) == ("ab", 5, "b")  # included, as TGIS has it


async def test_the_time_limit_ends_it_quietly(client: Client) -> None:
    limit = {"max_new_tokens": 400, "time_limit_millis": 200}
    (answer,) = await client.generate("long", stopping=limit)
    assert answer.stop_reason == 4
    assert 0 < answer.generated_token_count < 100
    parts = await client.stream("long", stopping=limit)
    assert [part.stop_reason for part in parts[:-1]] == [0] * (len(parts) - 1)
    assert parts[-1].stop_reason == 4
    await client.front.idle()


async def test_tokens_of_input_and_output(client: Client) -> None:
    wanted = {
        "input_tokens": True, "generated_tokens": True, "token_logprobs": True, "token_ranks": True, "top_n_tokens": 2,
    }  # fmt: skip
    (answer,) = await client.generate("go", response=wanted)
    assert [token.text for token in answer.input_tokens] == ["g", "o"]
    assert [token.text for token in answer.tokens][:3] == ["a", "b", "c"]
    assert answer.tokens[0].logprob < 0
    assert (answer.tokens[0].rank, len(answer.tokens[0].top_tokens)) == (1, 2)
    parts = await client.stream("go", response={"input_tokens": True})
    assert [token.text for token in parts[0].input_tokens] == ["g", "o"]
    assert "".join(part.text for part in parts) == "abc"


async def test_tokenize_and_info(client: Client) -> None:
    of = client.of
    request = of.BatchedTokenizeRequest(
        model_id="scripted", requests=[of.TokenizeRequest(text="abc")], return_tokens=True, return_offsets=True
    )
    (found,) = (await client.call("Tokenize", "BatchedTokenizeResponse", request)).responses
    assert (found.token_count, list(found.tokens)) == (3, ["a", "b", "c"])
    assert [(each.start, each.end) for each in found.offsets] == [(0, 1), (1, 2), (2, 3)]
    info = await client.call("ModelInfo", "ModelInfoResponse", of.ModelInfoRequest(model_id="scripted"))
    assert info.max_sequence_length == 512


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"method": 1, "sampling": {"typical_p": 0.5}}, "params.sampling.typical_p"),
        ({"decoding": {"length_penalty": {"start_index": 1}}}, "params.decoding.length_penalty"),
    ],
)
async def test_what_is_not_honoured_is_refused(client: Client, params: Any, field: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match=field) as raised:
        await client.generate("go", **params)
    assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
