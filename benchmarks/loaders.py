"""Loads a model directory as another program does, and generates one token; run in that program's environment.

    python benchmarks/loaders.py transformers|vllm DIR

Prints a JSON object as its last line: seconds to import, to load the weights, and from then to the first token.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


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
    print(json.dumps({"transformers": transformers, "vllm": vllm}[sys.argv[1]](sys.argv[2])))
