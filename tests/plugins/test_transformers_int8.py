"""Weights of int8 in the transformers backend: the model they stand for, no private copies, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import nn

from tickertape.core.quantization import INT8_CONFIG
from tickertape.plugins import BackendOptions, Limits, ModelSpec, Row, StartupError
from tickertape.plugins.backends.transformers import suitability
from tickertape.plugins.backends.transformers.checkpoint import Stored
from tickertape.plugins.backends.transformers.int8 import find_layers
from tickertape.plugins.backends.transformers.runner import TransformersRunner, make
from tickertape.plugins.backends.transformers.suitability import supports
from tickertape.plugins.sources.directory import DirectorySource
from tickertape.testing.architectures import write_architecture
from tickertape.testing.models import model_spec, plain_model
from tickertape.weights.mapping import MappedWeights
from tickertape.weights.materialize import materialize
from tickertape.weights.store import Store

pytest.importorskip("numba")

LIMITS = Limits(max_model_len=64, max_num_seqs=2, max_batch_tokens=64, block_tokens=16)
IDS = np.random.default_rng(0).integers(2, 199, 23).tolist()


def quantized(directory: Path, store: Path) -> ModelSpec:
    sources = {"file": DirectorySource()}
    return materialize(str(directory), store=Store(store), sources=sources, report=lambda _: None, quantization="int8")


@contextmanager
def started(spec: ModelSpec, **options: Any) -> Iterator[TransformersRunner]:
    runner = make(spec, BackendOptions(num_threads=1, extra={"self_check": False}, **options))
    weights = MappedWeights(Path(spec.path))
    try:
        plan = runner.plan(LIMITS)
        for _ in runner.load(weights):
            pass
        runner.allocate([9] * len(plan.groups))
        yield runner
    finally:
        runner.close()
        weights.close()


def logits(runner: TransformersRunner) -> NDArray[np.float64]:
    assert runner._paged is not None
    tables = [np.arange(1, 9, dtype=np.int32).reshape(2, 4)] * len(runner.plan(LIMITS).groups)
    found: NDArray[np.float64] = runner._paged.logits([Row(0, IDS, 0, len(IDS))], tables).double().numpy()
    return found


def widened(spec: ModelSpec, target: Path) -> ModelSpec:
    """A model of wide weights, those that the integers stand for."""
    target.mkdir()
    tensors = load_file(Path(spec.path) / "model.safetensors")
    narrow = {name for name, tensor in tensors.items() if tensor.dtype == torch.int8}
    assert narrow, "nothing was quantized"
    for name in narrow:
        tensors[name] = tensors[name].float() * tensors.pop(f"{name}_scale")[:, None]
    save_file(tensors, target / "model.safetensors")
    config = {key: value for key, value in spec.config.items() if key != "quantization_config"}
    (target / "config.json").write_text(json.dumps(config))
    return model_spec(target)


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "gemma2", "phi3", "mixtral", "deepseek_v3"])
def test_logits_are_those_of_the_weights_the_integers_stand_for(model_type: str, tmp_path: Path) -> None:
    write_architecture(tmp_path / "wide", model_type, dtype="float32")
    spec = quantized(tmp_path / "wide", tmp_path / "store")
    assert supports(spec) is None
    wanted = plain_model(widened(spec, tmp_path / "meant"))(IDS)
    with started(spec, quantization="int8") as runner:
        np.testing.assert_allclose(logits(runner), wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("model_type", ["llama", "deepseek_v3"])
def test_integers_are_used_where_they_are_mapped_and_the_plan_says_so(model_type: str, tmp_path: Path) -> None:
    write_architecture(tmp_path / "wide", model_type, dtype="float32")
    spec = quantized(tmp_path / "wide", tmp_path / "store")
    runner = make(spec, BackendOptions(extra={"self_check": False}))
    plan = runner.plan(LIMITS)
    weights = MappedWeights(Path(spec.path))
    addresses = {weights.open(name).__array_interface__["data"][0] for name in weights.names()}
    for _ in runner.load(weights):
        pass
    assert runner._paged is not None
    model: Any = runner._paged._model
    held = {t.data_ptr(): t.nbytes for t in [*model.parameters(), *model.buffers()] if t.nbytes}
    mapped = sum(size for address, size in held.items() if address in addresses)
    assert (mapped, sum(held.values()) - mapped) == (plan.weight_bytes, plan.private_bytes)
    if model_type == "llama":  # others merge their experts
        assert plan.private_bytes < 1024
        assert plan.weight_bytes == spec.weight_bytes
    runner.close()
    weights.close()


def test_a_worker_makes_its_own_of_wide_weights_and_computes_the_same(tmp_path: Path) -> None:
    wide = write_architecture(tmp_path / "wide", "llama", dtype="float32")
    with started(quantized(tmp_path / "wide", tmp_path / "store")) as runner:
        wanted, mapped = logits(runner), runner.plan(LIMITS)
    with started(wide, quantization="int8") as runner:
        np.testing.assert_array_equal(logits(runner), wanted)
        own = runner.plan(LIMITS)
    assert own.weight_bytes + own.private_bytes == mapped.weight_bytes + mapped.private_bytes
    assert own.private_bytes > mapped.weight_bytes / 5


def test_bfloat16_is_computed_too(tmp_path: Path) -> None:
    write_architecture(tmp_path / "wide", "llama", dtype="bfloat16")
    spec = quantized(tmp_path / "wide", tmp_path / "store")
    wanted = plain_model(widened(spec, tmp_path / "meant"))(IDS)
    with started(spec, dtype="bfloat16") as runner:
        assert runner.plan(LIMITS).private_bytes < 1024
        np.testing.assert_allclose(logits(runner), wanted, rtol=0, atol=0.05 * np.abs(wanted).max())


def test_integers_that_no_layer_takes_are_expanded(tmp_path: Path) -> None:
    """Of an embedding, say: somebody else may have written the file."""
    write_architecture(tmp_path / "wide", "llama", dtype="float32")
    tensors = load_file(tmp_path / "wide" / "model.safetensors")
    name = "model.embed_tokens.weight"
    integers = torch.randint(-127, 128, tensors[name].shape, dtype=torch.int8)
    save_file(
        {**tensors, name: integers, f"{name}_scale": torch.full(integers.shape[:1], 0.01)},
        tmp_path / "wide" / "model.safetensors",
    )
    spec = said_to_be_int8(tmp_path / "wide")
    wanted = plain_model(widened(spec, tmp_path / "meant"))(IDS)
    with started(spec) as runner:
        np.testing.assert_allclose(logits(runner), wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())


def said_to_be_int8(directory: Path) -> ModelSpec:
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "quantization_config": dict(INT8_CONFIG)}))
    return model_spec(directory)


def test_layers_whose_weight_is_tied_or_that_are_no_plain_ones_are_left_alone() -> None:
    class Special(nn.Linear):  # type: ignore[misc]
        pass

    model = nn.ModuleDict({name: nn.Linear(16, 8) for name in ("plain", "tied", "same")} | {"special": Special(16, 8)})
    model["same"].weight = model["tied"].weight
    stored = {f"{name}.weight": Stored("F32", (8, 16)) for name in model} | {"plain.bias": Stored("F32", (8,))}
    own = {name: name for name in stored}
    assert find_layers(model, stored, own, quantize=True).made == {"plain.weight": "plain.weight"}
    assert find_layers(model, stored, own, quantize=False) == ({}, {})


def test_integers_without_scales_are_refused(tmp_path: Path) -> None:
    write_architecture(tmp_path / "wide", "llama", dtype="float32")
    path = tmp_path / "wide" / "model.safetensors"
    name = "model.layers.0.self_attn.q_proj.weight"
    save_file(load_file(path) | {name: torch.ones(load_file(path)[name].shape, dtype=torch.int8)}, path)
    spec = said_to_be_int8(tmp_path / "wide")
    words = f"{name} is of 8 bits, and {name}_scale does not hold its scales"
    with pytest.raises(StartupError, match=words), started(spec):
        pass


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (BackendOptions(quantization="int8", dtype="float64"), "not computed in float64"),
        (BackendOptions(quantization="int8", extra={"kernels": False}), "need the compiled kernels"),
        (BackendOptions(quantization="int8", device="mps"), "on the CPU only, not on mps"),
        (BackendOptions(quantization="int4"), "does not quantize to int4"),
    ],
)
def test_what_cannot_be_computed_is_refused(options: BackendOptions, words: str, tmp_path: Path) -> None:
    spec = write_architecture(tmp_path, "llama", dtype="float32")
    with pytest.raises(StartupError, match=words) as caught:
        make(spec, options)
    assert caught.value.code == "BadOption"


def test_without_numba_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = write_architecture(tmp_path, "llama", dtype="float32")
    monkeypatch.setattr(suitability, "find_spec", lambda name: None)
    with pytest.raises(StartupError, match="need numba"):
        make(spec, BackendOptions(quantization="int8"))


def test_a_method_of_another_version_is_not_taken_for_this_one(tmp_path: Path) -> None:
    spec = write_architecture(tmp_path, "llama", dtype="float32")
    other = {"quantization_config": {**INT8_CONFIG, "version": 2}}
    reason = supports(msgspec.structs.replace(spec, config={**spec.config, **other}))
    assert reason == "its weights are quantized (tickertape-int8), which this backend does not compute with"
