"""Weights of 8 bits: what becomes of which tensor, made once, small in memory, and said in config.json."""

from __future__ import annotations

import json
import logging
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from tickertape.core.backend import ModelSpec
from tickertape.core.errors import StartupError
from tickertape.core.ports import Progress
from tickertape.core.quantization import INT8_CONFIG, becomes_int8, is_int8, quantize_rows
from tickertape.plugins.sources.directory import DirectorySource
from tickertape.weights.mapping import MappedWeights
from tickertape.weights.materialize import materialize
from tickertape.weights.quantize import quantize_file
from tickertape.weights.spec import read_spec
from tickertape.weights.store import Store

Q = "model.layers.0.self_attn.q_proj.weight"


def obtain(directory: Path, store: Path, dtype: str = "auto", quantization: str = "int8", **more: Any) -> ModelSpec:
    sources = {"file": DirectorySource()}
    options = {"report": lambda _: None, **more}
    return materialize(
        str(directory), store=Store(store), sources=sources, dtype=dtype, quantization=quantization, **options
    )


def opened(spec: ModelSpec) -> dict[str, npt.NDArray[Any]]:
    weights = MappedWeights(Path(spec.path))
    found = {name: weights.open(name).copy() for name in weights.names()}
    weights.close()
    return found


def numbers(*shape: int, seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 0.1, shape).astype(np.float32)


def stood_for(integers: npt.NDArray[np.int8], scales: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    wide: npt.NDArray[np.float64] = integers.astype(np.float64) * scales.astype(np.float64)[:, None]
    return wide


# -- the numbers -----------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(
    arrays(
        np.float32,
        array_shapes(min_dims=2, max_dims=2, max_side=8),
        elements=st.floats(-(2.0**100), 2.0**100, width=32),
    )
)
def test_what_integers_stand_for_is_within_half_a_step(values: npt.NDArray[np.float32]) -> None:
    integers, scales = quantize_rows(values)
    assert (str(integers.dtype), str(scales.dtype), scales.shape) == ("int8", "float32", values.shape[:1])
    assert integers.min() >= -127
    step = np.maximum(scales.astype(np.float64), 2.0**-149)[:, None]  # where the scale is 0, so are the integers
    assert (np.abs(stood_for(integers, scales) - values) <= step * (0.5 + 1e-4) + 127 * 2.0**-149).all()
    used = np.abs(integers).max(axis=1)
    assert (used[np.abs(values).max(axis=1) > 1e-30] == 127).all()


def test_rounding_is_to_the_nearest_even_and_zero_stays_zero() -> None:
    integers, scales = quantize_rows(np.array([[127, 0.5, 1.5, -2.5, -127], [0, 0, 0, 0, 0]], np.float32))
    assert integers.tolist() == [[127, 0, 2, -2, -127], [0, 0, 0, 0, 0]]
    assert scales.tolist() == [1, 0]


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_by_name(models: Any, tmp_path: Path, odd: float) -> None:
    values = numbers(4, 16)
    values[2, 3] = odd
    directory = models.directory("odd", {"model.safetensors": {Q: values}})
    with pytest.raises(StartupError, match=f"'{Q}' cannot be quantized: a value is not finite") as caught:
        obtain(directory, tmp_path / "store")
    assert caught.value.code == "OutOfRange"


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        (Q, True),
        ("model.layers.3.mlp.down_proj.weight", True),
        ("model.layers.3.mlp.gate_proj.weight", True),
        ("model.layers.3.mlp.shared_experts.up_proj.weight", True),
        ("model.layers.3.self_attn.dense.weight", True),
        ("model.layers.3.mlp.gate.weight", False),
        ("model.layers.3.mlp.router.weight", False),
        ("model.layers.3.block_sparse_moe.experts.7.w1.weight", False),
        ("model.layers.3.mlp.experts.gate_up_proj", False),
        ("model.embed_tokens.weight", False),
        ("transformer.wte.weight", False),
        ("transformer.h.0.attn.c_attn.weight", False),
        ("model.layers.3.input_layernorm.weight", False),
        ("lm_head.weight", False),
        ("embed_out.weight", False),
        ("model.layers.3.conv.weight", False),
        ("model.layers.3.self_attn.q_proj.bias", False),
    ],
)
def test_linear_layers_and_nothing_else(name: str, wanted: bool) -> None:
    assert becomes_int8(name, "BF16", (32, 64)) == wanted
    assert not becomes_int8(name, "I8", (32, 64))
    assert not becomes_int8(name, "F64", (32, 64))
    assert not becomes_int8(name, "F32", (64, 33))
    assert not becomes_int8(name, "F32", (64,))


# -- the files -------------------------------------------------------------------------------------------------------


def tensors(dtype: str = "float32") -> dict[str, npt.NDArray[Any]]:
    made = {
        "model.embed_tokens.weight": numbers(5, 32),
        Q: numbers(6, 32, seed=1),
        "model.norm.weight": numbers(3),
        "model.layers.0.mlp.down_proj.weight": numbers(3, 16, seed=2),
        "model.layers.0.mlp.odd_proj.weight": numbers(3, 17, seed=3),
    }
    if dtype == "float32":
        return made
    half = getattr(torch, dtype)
    narrow = {name: torch.from_numpy(values).to(half) for name, values in made.items()}
    return {n: (v.view(torch.uint16) if dtype == "bfloat16" else v).numpy() for n, v in narrow.items()}


@pytest.mark.parametrize("stored", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16"])
def test_linear_layers_are_quantized_and_the_rest_is_cast(models: Any, tmp_path: Path, stored: str, dtype: str) -> None:
    given = tensors(stored)
    spec = obtain(models.directory("tiny", {"model.safetensors": given}), tmp_path / "store", dtype)
    plain = obtain(models.directory("same", {"model.safetensors": given}), tmp_path / "store", dtype, "none")
    found, cast = opened(spec), opened(plain)
    quantized = {Q, "model.layers.0.mlp.down_proj.weight"}
    assert found.keys() == cast.keys() | {f"{name}_scale" for name in quantized}
    wide = opened(obtain(models.directory("wide", {"model.safetensors": given}), tmp_path / "store", "auto", "none"))
    for name in cast:
        if name in quantized:
            tensor = torch.from_numpy(wide[name])
            values = (tensor.view(torch.bfloat16) if stored == "bfloat16" else tensor).float().numpy()
            integers, scales = quantize_rows(values)
            np.testing.assert_array_equal(found[name], integers)
            np.testing.assert_array_equal(found[f"{name}_scale"], scales)
        else:
            assert found[name].dtype == cast[name].dtype
            np.testing.assert_array_equal(found[name], cast[name])


def test_the_directory_says_so_and_the_given_one_stays_as_it_is(models: Any, tmp_path: Path) -> None:
    directory = models.directory("tiny", {"model.safetensors": tensors()}, **{"notes.txt": b"mine"})
    before = (directory / "config.json").read_bytes()
    spec = obtain(directory, tmp_path / "store")
    assert spec.config == {**json.loads(before), "quantization_config": dict(INT8_CONFIG)}
    assert is_int8(spec.config)
    assert not is_int8(json.loads(before))
    assert spec.dtype == "float32"
    assert (directory / "config.json").read_bytes() == before
    assert (Path(spec.path) / "notes.txt").read_bytes() == b"mine"
    # Once more, of what is quantized already: as it is.
    again = obtain(Path(spec.path), tmp_path / "store")
    assert opened(again).keys() == opened(spec).keys()
    assert is_int8(again.config)


def test_rows_of_integers_lie_at_multiples_of_16(models: Any, tmp_path: Path) -> None:
    spec = obtain(models.directory("tiny", {"model.safetensors": tensors("bfloat16")}), tmp_path / "store")
    weights = MappedWeights(Path(spec.path))
    places = {name: weights.open(name).__array_interface__["data"][0] for name in weights.names()}
    for name, place in places.items():
        assert place % {"I8": 16, "F32": 4, "BF16": 2}[weights.dtype(name)] == 0, name
    weights.close()


def test_a_model_in_several_files_keeps_an_index_of_all(models: Any, tmp_path: Path) -> None:
    first, second = {Q: numbers(4, 16)}, {"model.norm.weight": numbers(4), "b.o_proj.weight": numbers(4, 32)}
    files = {"x.safetensors": first, "y.safetensors": second}
    weight_map = {name: file for file, held in files.items() for name in held}
    spec = obtain(models.sharded("two", files, weight_map), tmp_path / "store")
    found = opened(spec)
    assert found.keys() == {*weight_map, f"{Q}_scale", "b.o_proj.weight_scale"}
    assert [str(found[name].dtype) for name in (Q, "b.o_proj.weight")] == ["int8", "int8"]


def test_a_model_without_linear_layers_is_only_cast(models: Any, tmp_path: Path) -> None:
    directory = models.directory("tables", {"model.safetensors": {"embed.weight": numbers(4, 16)}})
    spec = obtain(directory, tmp_path / "store", "float16")
    assert opened(spec)["embed.weight"].dtype == np.float16
    assert not is_int8(spec.config)


def test_quantizers_of_backends_start_from_what_there_is(models: Any, tmp_path: Path) -> None:
    directory = models.directory("tiny", {"model.safetensors": tensors()})
    assert obtain(directory, tmp_path / "store", "bfloat16", "int4").path == str(directory)


# -- the store -------------------------------------------------------------------------------------------------------


def test_it_is_made_once_and_found_again(models: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = models.directory("tiny", {"model.safetensors": tensors()})
    calls = []

    def counted(*arguments: Any) -> str:
        calls.append(1)
        return quantize_file(*arguments)

    monkeypatch.setattr("tickertape.weights.derive.quantize_file", counted)
    specs: list[ModelSpec] = []
    threads = [threading.Thread(target=lambda: specs.append(obtain(directory, tmp_path / "store"))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    specs.append(obtain(directory, tmp_path / "store"))  # a later start
    assert len(calls) == 1
    assert len(specs) == 7
    assert all(spec == specs[0] for spec in specs)
    inodes = {(Path(spec.path) / "model.safetensors").stat().st_ino for spec in specs}
    assert len(inodes) == 1


def test_memory_is_a_piece_not_a_tensor(tmp_path: Path, models: Any) -> None:
    directory = models.directory("large", {"model.safetensors": {Q: numbers(32768, 1024)}})
    steps: list[Progress] = []
    tracemalloc.start()
    spec = obtain(directory, tmp_path / "store", report=steps.append)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 48 << 20  # the tensor has 128 MiB
    assert spec.weight_bytes == 32768 * 1024 + 4 * 32768
    done = [step.done for step in steps if step.stage == "quantize"]
    assert done == sorted(done)
    assert done[-1] == 32768 * 1024 * 4


def test_where_the_store_cannot_be_written_workers_do_it(
    models: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    directory = models.directory("tiny", {"model.safetensors": tensors()})

    def full(*_: Any) -> str:
        raise StartupError("no space left for the store", code="NoSpace")

    monkeypatch.setattr("tickertape.weights.derive.quantize_file", full)
    with caplog.at_level(logging.WARNING):
        spec = obtain(directory, tmp_path / "store")
    assert spec == read_spec(directory, "tiny")
    assert "every worker keeps a private copy of the weights in int8" in caplog.text
