"""tritonclient, unchanged, against the Open Inference Protocol: sync, aio, and streams of several requests."""

from __future__ import annotations

import asyncio
import json
import queue
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
from tritonclient.utils import InferenceServerException

from tickertape.testing.front import PLAIN_TEXT, Front, spoken, until
from tickertape.testing.grpc_front import grpc_served

Make = Callable[..., Awaitable[Front]]


def inputs(text: str, *, stream: bool = False, of: Any = tritonclient.grpc, **more: Any) -> list[Any]:
    """Tensors of a request; `sampling` is an object, the rest are flags."""
    values: dict[str, Any] = {"text_input": text.encode(), "stream": stream, **more}
    if "sampling" in values:
        values["sampling_parameters"] = json.dumps(values.pop("sampling")).encode()
    found = []
    for name, value in values.items():
        kind = "BOOL" if isinstance(value, bool) else "BYTES"
        tensor = of.InferInput(name, [1], kind)
        tensor.set_data_from_numpy(np.array([value], dtype=bool if kind == "BOOL" else object))
        found.append(tensor)
    return found


def text_of(result: Any) -> str:
    found = result.as_numpy("text_output")
    return "" if found is None else b"".join(found.tolist()).decode()


@pytest.fixture
async def served(make_front: Make) -> AsyncIterator[tuple[Front, str]]:
    front = await make_front({"when": spoken("go"), "tokens": spoken("abcdefgh")}, token_s=0.005)
    async with grpc_served(front) as address:
        yield front, address


async def test_metadata_configuration_and_readiness(served: tuple[Front, str]) -> None:
    _, address = served

    def ask() -> None:
        with tritonclient.grpc.InferenceServerClient(address) as client:
            assert client.is_server_live()
            assert client.is_server_ready()
            assert client.is_model_ready("scripted")
            assert client.is_model_ready("scripted", "1")
            assert not client.is_model_ready("nope")
            assert client.get_server_metadata().name == "tickertape"
            metadata = client.get_model_metadata("scripted")
            assert [tensor.name for tensor in metadata.inputs][:2] == ["text_input", "stream"]
            assert metadata.inputs[0].datatype == "BYTES"
            config = client.get_model_config("scripted").config
            assert config.model_transaction_policy.decoupled
            assert config.input[0].data_type == 13  # TYPE_STRING
            with pytest.raises(InferenceServerException) as refused:
                client.get_model_metadata("nope")
            assert refused.value.status() == "StatusCode.NOT_FOUND"
            client.infer("scripted", inputs("plain", exclude_input_in_output=True))
            stats = client.get_inference_statistics("scripted").model_stats[0]
            assert (stats.inference_count, stats.inference_stats.success.count) == (1, 1)

    await asyncio.to_thread(ask)


async def test_infer(served: tuple[Front, str]) -> None:
    _, address = served

    def ask() -> None:
        flags = dict.fromkeys(
            ("return_finish_reason", "return_num_input_tokens", "return_num_output_tokens", "return_logprobs"), True
        )
        with tritonclient.grpc.InferenceServerClient(address) as client:
            result = client.infer("scripted", inputs("go", sampling={"max_tokens": "3"}, **flags), request_id="7")
            assert text_of(result) == "goabc"  # Triton repeats the input unless it is told not to
            assert result.get_response().id == "7"
            assert result.as_numpy("finish_reason").tolist() == [b"length"]
            assert result.as_numpy("num_input_tokens").tolist() == [2]
            assert result.as_numpy("num_output_tokens").tolist() == [3]
            tokens = json.loads(result.as_numpy("logprobs")[0])
            assert [entry["token"] for entry in tokens] == list("abc")
            only = client.infer(
                "scripted", inputs("go", **flags), outputs=[tritonclient.grpc.InferRequestedOutput("text_output")]
            )
            assert [output.name for output in only.get_response().outputs] == ["text_output"]

    await asyncio.to_thread(ask)


@pytest.mark.parametrize(
    ("tensors", "word"),
    [
        (inputs("x", sampling={"temperature": 9}), "temperature"),
        (inputs("x", sampling={"no_such": 1}), "no_such"),
        (inputs("x", stream=True, exclude_input_in_output=False), "exclude_input_in_output"),
        (inputs("x", unknown=b"1"), "unknown"),
        (inputs("x", sampling_parameters=b"{"), "sampling_parameters"),
        (inputs("x" * 600), "context length"),
    ],
)
async def test_what_is_wrong_is_named(served: tuple[Front, str], tensors: list[Any], word: str) -> None:
    def ask() -> None:
        with tritonclient.grpc.InferenceServerClient(served[1]) as client:
            with pytest.raises(InferenceServerException, match=word) as refused:
                client.infer("scripted", tensors)
            assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"

    await asyncio.to_thread(ask)


async def test_a_stream_of_interleaved_requests(served: tuple[Front, str]) -> None:
    def ask() -> list[tuple[Any, Any]]:
        answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        found = []
        with tritonclient.grpc.InferenceServerClient(served[1]) as client:
            client.start_stream(callback=lambda result, error: answers.put((result, error)))
            for n in range(3):
                client.async_stream_infer("scripted", inputs("go", stream=True), request_id=str(n))
            client.async_stream_infer("nope", inputs("go", stream=True), request_id="bad")
            client.async_stream_infer(
                "scripted", inputs("go", stream=True), request_id="empty", enable_empty_final_response=True
            )
            ended = 0
            while ended < 5:
                result, error = answers.get(timeout=10)
                found.append((result, error))
                ended += error is not None or result.get_response().parameters["triton_final_response"].bool_param
            client.stop_stream()
        return found

    found = await asyncio.to_thread(ask)
    errors = [str(error) for _, error in found if error is not None]
    assert len(errors) == 1
    assert "nope" in errors[0]
    results = [result for result, error in found if error is None]
    for n in ("0", "1", "2", "empty"):
        parts = [each for each in results if each.get_response().id == n]
        assert "".join(map(text_of, parts)) == "abcdefgh"
        ends = [each.get_response().parameters["triton_final_response"].bool_param for each in parts]
        assert ends == [False] * (len(ends) - 1) + [True]
    order = [each.get_response().id for each in results]
    assert order != sorted(order)  # side by side
    assert not [each for each in results if each.get_response().id == "empty"][-1].get_response().outputs


async def test_aio(served: tuple[Front, str]) -> None:
    _, address = served
    async with tritonclient.grpc.aio.InferenceServerClient(address) as client:
        assert await client.is_model_ready("scripted")
        tensors = inputs("plain", exclude_input_in_output=True)
        assert text_of(await client.infer("scripted", tensors)) == PLAIN_TEXT

        async def requests() -> AsyncIterator[dict[str, Any]]:
            for n in range(2):
                yield {"model_name": "scripted", "inputs": inputs("go", stream=True), "request_id": str(n)}

        texts = {"0": "", "1": ""}
        async for result, error in client.stream_infer(requests()):
            assert error is None
            texts[result.get_response().id] += text_of(result)
        assert texts == {"0": "abcdefgh", "1": "abcdefgh"}


async def test_a_stream_that_is_cut_frees_all_of_its_requests(make_front: Make) -> None:
    front = await make_front({"when": spoken("go"), "tokens": spoken("x"), "then": "repeat"}, token_s=0.005)
    async with (
        grpc_served(front) as address,
        tritonclient.grpc.aio.InferenceServerClient(address) as client,
    ):

        async def requests() -> AsyncIterator[dict[str, Any]]:
            for n in range(3):
                yield {"model_name": "scripted", "inputs": inputs("go", stream=True), "request_id": str(n)}
            await asyncio.sleep(60)

        stream = client.stream_infer(requests())
        await anext(stream)
        await until(lambda: front.engine.stats().num_running == 3)
        stream.cancel()
        await front.idle()
