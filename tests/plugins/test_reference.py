"""The reference backend beyond the kit: what it reads, what it refuses, what it shares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from safetensors.numpy import load_file, save_file

from tickertape.core.errors import StartupError
from tickertape.plugins import BackendOptions, Limits, ModelSpec
from tickertape.plugins.backends.reference import supports
from tickertape.plugins.backends.reference.runner import ReferenceRunner, make
from tickertape.plugins.manager import Plugins
from tickertape.testing.models import write_llama
from tickertape.testing.runner import RunnerConformance
from tickertape.testing.subject import Subject
from tickertape.weights.mapping import MappedWeights
from tickertape.weights.spec import read_spec

LIMITS = Limits(max_model_len=64, max_num_seqs=2, max_batch_tokens=64, block_tokens=16)


def loaded(spec: ModelSpec, options: BackendOptions | None = None) -> ReferenceRunner:
    runner = make(spec, options or BackendOptions())
    runner.plan(LIMITS)
    for _ in runner.load(MappedWeights(Path(spec.path))):
        pass
    return runner


def rewrite(spec: ModelSpec, **tensors: np.ndarray[Any, Any] | None) -> ModelSpec:
    path = Path(spec.path) / "model.safetensors"
    kept = {name: tensor for name, tensor in (load_file(path) | tensors).items() if tensor is not None}
    save_file(kept, path, metadata={"format": "pt"})
    return read_spec(Path(spec.path), spec.name)


@pytest.mark.parametrize(
    ("stored", "dtype"), [("float32", "auto"), ("float16", "auto"), ("float16", "float64"), ("float64", "float32")]
)
def test_any_float_the_file_holds_is_computed_in_the_dtype_asked_for(tmp_path: Path, stored: str, dtype: str) -> None:
    backend = Plugins.load().backend("reference")
    spec = write_llama(tmp_path, dtype=stored)
    subject = Subject.of(backend, spec, options=BackendOptions(dtype=dtype), near_tie=1e-3)
    RunnerConformance().test_a_batch_of_mixed_lengths_equals_the_plain_model(subject)
    RunnerConformance().test_log_probabilities_equal_the_plain_model(subject)
    RunnerConformance().test_takes_no_more_than_it_promised(subject)


def test_bfloat16_is_read(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file as save_torch

    spec = write_llama(tmp_path)
    path = tmp_path / "model.safetensors"
    save_torch({name: torch.from_numpy(t).bfloat16() for name, t in load_file(path).items()}, path, {"format": "pt"})
    spec = read_spec(tmp_path, "m")
    assert spec.dtype == "bfloat16"
    subject = Subject.of(Plugins.load().backend("reference"), spec, near_tie=1e-3)
    RunnerConformance().test_a_batch_of_mixed_lengths_equals_the_plain_model(subject)


def test_weights_are_views_on_the_mapping_where_the_dtype_is_right(tmp_path: Path) -> None:
    spec = write_llama(tmp_path, dtype="float32", tie_word_embeddings=True)
    model = loaded(spec)._model
    assert model.head is model.embedding
    for tensor in (model.embedding, *model.layers[0].values()):
        assert not tensor.flags.owndata
        assert not tensor.flags.writeable
    assert make(spec, BackendOptions()).plan(LIMITS).private_bytes < spec.weight_bytes / 10
    widened = make(spec, BackendOptions(dtype="float64")).plan(LIMITS)
    assert 2 * spec.weight_bytes <= widened.private_bytes < 3 * spec.weight_bytes


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"architectures": ["Qwen3ForCausalLM"]}, "it computes LlamaForCausalLM"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantized"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope type 'yarn'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rope type 'dynamic'"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope type 'longrope'"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"attention_bias": True}, "no biases"),
        ({"mlp_bias": True}, "no biases"),
    ],
)
def test_what_it_cannot_compute_is_refused_with_a_reason(
    tiny_model: ModelSpec, changes: dict[str, Any], reason: str
) -> None:
    config = {**tiny_model.config, **changes}
    verdict = supports(replace(tiny_model, config=config, architecture=config["architectures"][0]))
    assert verdict is not None
    assert reason in verdict
    assert supports(tiny_model) is None


@pytest.mark.parametrize(
    "options", [BackendOptions(dtype="float16"), BackendOptions(device="cuda"), BackendOptions(quantization="int8")]
)
def test_options_it_cannot_follow_are_refused(tiny_model: ModelSpec, options: BackendOptions) -> None:
    with pytest.raises(StartupError, match="float32 or float64, on cpu, unquantized"):
        make(tiny_model, options)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    spec = rewrite(write_llama(tmp_path), **{name: None})
    with pytest.raises(StartupError, match=f"the model has no tensor {name}") as caught:
        loaded(spec)
    assert caught.value.code == "MissingTensor"


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (np.zeros((96, 32)), r"is F64 \(96, 32\), config.json says \(96, 64\)"),
        (np.zeros((96, 64), np.int8), r"is I8 \(96, 64\)"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(tmp_path: Path, tensor: np.ndarray[Any, Any], message: str) -> None:
    spec = rewrite(write_llama(tmp_path), **{"model.layers.0.mlp.up_proj.weight": tensor})
    with pytest.raises(StartupError, match=message) as caught:
        loaded(spec)
    assert caught.value.code == "BadTensor"


def test_the_example_stays_short() -> None:
    """Authors read it before they write their own: registration and all in under 300 lines, blank ones aside."""
    import tickertape.plugins.backends.reference as package

    sources = [path.read_text() for path in Path(package.__file__).parent.glob("*.py")]
    assert sum(1 for source in sources for line in source.splitlines() if line.strip()) < 300
