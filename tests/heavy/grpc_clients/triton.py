"""tritonclient, sync, aio and streaming, as its maker ships it: `triton.py ADDRESS KEY`."""

from __future__ import annotations

import asyncio
import json
import queue
import sys
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.grpc.aio
from tritonclient.utils import InferenceServerException

GREETING = "Hello, wörld 😀!"


def inputs(text: str, *, stream: bool = False, max_tokens: int = 60) -> list[Any]:
    values = {
        "text_input": (text.encode(), "BYTES"),
        "stream": (stream, "BOOL"),
        "exclude_input_in_output": (True, "BOOL"),
        "sampling_parameters": (json.dumps({"max_tokens": max_tokens}).encode(), "BYTES"),
    }
    found = []
    for name, (value, kind) in values.items():
        tensor = tritonclient.grpc.InferInput(name, [1], kind)
        tensor.set_data_from_numpy(np.array([value], dtype=bool if kind == "BOOL" else object))
        found.append(tensor)
    return found


def text_of(result: Any) -> str:
    found = result.as_numpy("text_output")
    return "" if found is None else b"".join(found.tolist()).decode()


def is_last(result: Any) -> bool:
    return bool(result.get_response().parameters["triton_final_response"].bool_param)


def sync(address: str, headers: dict[str, str]) -> None:
    with tritonclient.grpc.InferenceServerClient(address) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("tiny", headers=headers)
        assert client.get_model_metadata("tiny", headers=headers).inputs[0].name == "text_input"
        assert client.get_model_config("tiny", headers=headers).config.model_transaction_policy.decoupled
        assert text_of(client.infer("tiny", inputs("greet"), headers=headers)) == GREETING
        refused = None
        try:
            client.infer("nope", inputs("greet"), headers=headers)
        except InferenceServerException as error:
            refused = error.status()
        assert refused == "StatusCode.NOT_FOUND"


def streaming(address: str, headers: dict[str, str]) -> None:
    """Several requests of one stream, side by side, and one that fails alone."""
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    texts = {"0": "", "1": "", "2": ""}
    order, num_failed, num_ended = [], 0, 0
    with tritonclient.grpc.InferenceServerClient(address) as client:
        client.start_stream(callback=lambda result, error: answers.put((result, error)), headers=headers)
        for name in texts:
            client.async_stream_infer("tiny", inputs("slow", stream=True, max_tokens=40), request_id=name)
        client.async_stream_infer("nope", inputs("slow", stream=True), request_id="bad")
        while num_ended < 4:
            result, error = answers.get(timeout=20)
            if error is not None:
                num_failed += 1
                num_ended += 1
                continue
            order.append(result.get_response().id)
            texts[order[-1]] += text_of(result)
            num_ended += is_last(result)
        client.stop_stream()
    assert num_failed == 1
    assert set(texts.values()) == {"0123456789" * 4}
    assert order != sorted(order), "one after the other"


async def aio(address: str, headers: dict[str, str]) -> None:
    async with tritonclient.grpc.aio.InferenceServerClient(address) as client:
        assert await client.is_model_ready("tiny", headers=headers)
        assert text_of(await client.infer("tiny", inputs("greet"), headers=headers)) == GREETING
        texts = {"0": "", "1": ""}

        async def requests() -> Any:
            for name in texts:
                yield {"model_name": "tiny", "inputs": inputs("slow", stream=True, max_tokens=40), "request_id": name}

        async for result, error in client.stream_infer(requests(), headers=headers):
            assert error is None
            texts[result.get_response().id] += text_of(result)
        assert set(texts.values()) == {"0123456789" * 4}


if __name__ == "__main__":
    where, key = sys.argv[1], {"authorization": f"Bearer {sys.argv[2]}"}
    sync(where, key)
    streaming(where, key)
    asyncio.run(aio(where, key))
