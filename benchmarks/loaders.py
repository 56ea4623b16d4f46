"""Loads a model directory as a worker of ours or another program does, and generates one token; run in that program's
environment.

    python benchmarks/loaders.py tickertape|transformers|vllm DIR

Prints a JSON object as its last line: seconds to import, to load the weights, and from then to the first token.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def tickertape(directory: str) -> dict[str, float]:
    """All that a worker does before it is ready: plan, map, check, allocate, warm up."""
    began = time.monotonic()
    import tickertape.plugins.backends.transformers.runner  # noqa: F401
    from tickertape.core.backend import Backend, BackendOptions
    from tickertape.core.memory import Limits
    from tickertape.core.messages import Configure
    from tickertape.core.request import Request, SamplingParams, pack_tokens
    from tickertape.engine_room import build_loop
    from tickertape.plugins.backends.transformers import register_backends
    from tickertape.plugins.manager import Plugins
    from tickertape.weights.spec import read_spec

    imported = time.monotonic()
    backends: list[Backend] = []
    register_backends(backends.append)
    limits = Limits(max_model_len=1024, max_num_seqs=4, max_batch_tokens=1024, block_tokens=16)
    configure = Configure(
        epoch=0,
        spec=read_spec(Path(directory), "model"),
        backend=backends[0].name,
        options=BackendOptions(),
        limits=limits,
        kv_cache_bytes=1 << 30,
        plugins={},
    )
    parts = build_loop(backends[0], configure, lambda _: None, Plugins.none())
    loaded = time.monotonic()
    sampling = SamplingParams(max_tokens=1, temperature=0.0, seed=0)
    parts.loop.submit(Request(id=1, prompt=pack_tokens([1, 2, 3]), num_prompt_tokens=3, sampling=sampling))
    while parts.loop.stats().num_running or parts.loop.stats().num_waiting:
        parts.loop.step()
    return _seconds(began, imported, loaded)


def transformers(directory: str) -> dict[str, float]:
    began = time.monotonic()
    import torch
    from transformers import AutoModelForCausalLM

    imported = time.monotonic()
    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype="auto")
    loaded = time.monotonic()
    model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=1, do_sample=False)
    return _seconds(began, imported, loaded)


def vllm(directory: str) -> dict[str, float]:
    """`LLM` plans, loads and warms up in one call; what its loader took of that, it says in its log."""
    began = time.monotonic()
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]

    imported = time.monotonic()
    model = LLM(directory, dtype="float32", enforce_eager=True, max_model_len=1024, max_num_seqs=4)
    loaded = time.monotonic()
    model.generate([{"prompt_token_ids": [1, 2, 3]}], SamplingParams(max_tokens=1, temperature=0.0), use_tqdm=False)
    return _seconds(began, imported, loaded)


def _seconds(began: float, imported: float, loaded: float) -> dict[str, float]:
    return {"import": imported - began, "load": loaded - imported, "first_token": time.monotonic() - loaded}


if __name__ == "__main__":
    print(json.dumps({"tickertape": tickertape, "transformers": transformers, "vllm": vllm}[sys.argv[1]](sys.argv[2])))
