"""Derived files: made once per store, laid over links to the rest of the model, left out where none can be written."""

from __future__ import annotations

import json
import logging
import threading
import tracemalloc
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType

from tickertape.core.backend import ModelSpec
from tickertape.core.errors import StartupError
from tickertape.core.ports import Progress
from tickertape.plugins.sources.directory import DirectorySource
from tickertape.testing.tokenizers import byte_level_tokenizer
from tickertape.weights.cast import cast_file
from tickertape.weights.derive import obtained
from tickertape.weights.fetch.fetching import Fetching
from tickertape.weights.gguf.convert import convert_gguf
from tickertape.weights.mapping import MappedWeights
from tickertape.weights.materialize import materialize
from tickertape.weights.store import Recipe, Store

TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def values(shape: tuple[int, ...], dtype: str, seed: int = 0) -> torch.Tensor:
    """Ordinary numbers, the exact ties of rounding, and every odd value there is."""
    odd = torch.tensor(
        [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-8, 6e-8, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11]
    )
    random = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).flatten()
    random[: len(odd)] = odd
    return random.reshape(shape).to(TYPES[dtype])


def as_numpy(tensor: torch.Tensor) -> Any:
    return tensor.view(torch.uint16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


def obtain(directory: Path, store: Path, dtype: str = "auto", **options: Any) -> ModelSpec:
    sources = {"file": DirectorySource()}
    return materialize(
        str(directory), store=Store(store), sources=sources, report=lambda _: None, dtype=dtype, **options
    )


def opened(spec: ModelSpec) -> dict[str, torch.Tensor]:
    weights = MappedWeights(Path(spec.path))
    found = {}
    for name in weights.names():
        tensor = torch.from_numpy(weights.open(name).copy())
        found[name] = tensor.view(torch.bfloat16) if weights.dtype(name) == "BF16" else tensor
    weights.close()
    return found


def tiny(models: Any, dtype: str, **more: Any) -> tuple[Path, dict[str, torch.Tensor]]:
    tensors = {
        "a.weight": values((6, 11), dtype),
        "norm.weight": values((13,), dtype),
        "b.weight": values((3, 5, 7), dtype, 1),
    }
    directory: Path = models.directory(
        "tiny", {"model.safetensors": {k: as_numpy(v) for k, v in tensors.items()}}, **more
    )
    return directory, tensors


@pytest.mark.parametrize("found", TYPES)
@pytest.mark.parametrize("wanted", TYPES)
def test_a_cast_is_what_torch_makes_of_it(models: Any, tmp_path: Path, found: str, wanted: str) -> None:
    directory, tensors = tiny(models, found)
    spec = obtain(directory, tmp_path / "store", wanted)
    assert (spec.dtype, spec.name) == (wanted, "tiny")
    assert (spec.path == str(directory)) == (found == wanted)
    for name, tensor in opened(spec).items():
        expected = tensors[name] if name == "norm.weight" else tensors[name].to(TYPES[wanted])
        assert tensor.dtype == expected.dtype, name
        assert torch.equal(torch.nan_to_num(tensor, 7.0), torch.nan_to_num(expected, 7.0)), name
        assert torch.equal(torch.signbit(tensor) & ~tensor.isnan(), torch.signbit(expected) & ~tensor.isnan())


def test_it_is_made_once_and_lies_beside_links(models: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, _ = tiny(models, "float32", **{"notes.txt": b"mine"})
    first = obtain(directory, tmp_path / "store", "bfloat16")
    path = Path(first.path)
    assert path.is_relative_to(tmp_path / "store")
    assert (path / "notes.txt").resolve() == (directory / "notes.txt").resolve()
    assert not (path / "model.safetensors").resolve().is_relative_to(directory)
    assert (path / "model.safetensors").stat().st_mode & 0o222 == 0
    monkeypatch.setattr("tickertape.weights.derive.cast_file", None)  # calling it would fail
    assert obtain(directory, tmp_path / "store", "bfloat16") == first
    (directory / "notes.txt").write_bytes(b"changed")  # an edit is seen, and casts nothing anew
    second = obtain(directory, tmp_path / "store", "bfloat16")
    assert (Path(second.path) / "notes.txt").read_bytes() == b"changed"
    objects = [file for file in (tmp_path / "store" / "objects").rglob("*") if file.is_file()]
    assert len(objects) == 1


def test_other_weights_are_cast_anew(models: Any, tmp_path: Path) -> None:
    directory = models.directory("ones", {"model.safetensors": {"a": np.ones((2, 2), np.float32)}})
    assert opened(obtain(directory, tmp_path / "store", "float16"))["a"].tolist() == [[1, 1], [1, 1]]
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(np.float32(1).tobytes(), np.float32(2).tobytes()))
    assert opened(obtain(directory, tmp_path / "store", "float16"))["a"].tolist() == [[2, 2], [2, 2]]


def test_shards_keep_their_index(models: Any, tmp_path: Path) -> None:
    a, b = np.ones((2, 2), np.float32), np.full((2, 3), 2, np.float32)
    directory = models.sharded(
        "two", {"x.safetensors": {"a": a}, "y.safetensors": {"b": b}}, {"a": "x.safetensors", "b": "y.safetensors"}
    )
    spec = obtain(directory, tmp_path / "store", "bfloat16")
    assert {name: tensor.dtype for name, tensor in opened(spec).items()} == {"a": torch.bfloat16, "b": torch.bfloat16}
    assert (Path(spec.path) / "model.safetensors.index.json").resolve().parent == directory


def test_routers_are_not_narrowed_but_widened(models: Any, tmp_path: Path) -> None:
    gate = {"mlp.gate.weight": np.ones((2, 3), np.float32), "up.gate_proj.weight": np.ones((4, 4), np.float32)}
    directory = models.directory("moe", {"model.safetensors": gate})
    found = opened(obtain(directory, tmp_path / "store", "bfloat16"))
    assert (found["mlp.gate.weight"].dtype, found["up.gate_proj.weight"].dtype) == (torch.float32, torch.bfloat16)
    half = {name: as_numpy(torch.ones(4, 4, dtype=torch.bfloat16)) for name in gate}
    directory = models.directory("half", {"model.safetensors": half})
    assert opened(obtain(directory, tmp_path / "store", "float32"))["mlp.gate.weight"].dtype == torch.float32


def test_what_would_become_infinite_is_refused(models: Any, tmp_path: Path) -> None:
    directory = models.directory("big", {"model.safetensors": {"a": np.full((2, 2), 70000, np.float32)}})
    with pytest.raises(StartupError, match="'a' holds values that F16 cannot hold"):
        obtain(directory, tmp_path / "store", "float16")
    assert opened(obtain(directory, tmp_path / "store", "bfloat16"))["a"].isfinite().all()


def test_processes_that_start_at_once_cast_once(models: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, _ = tiny(models, "float32")
    calls = []

    def counted(*arguments: Any) -> str:
        calls.append(1)
        return cast_file(*arguments)

    monkeypatch.setattr("tickertape.weights.derive.cast_file", counted)
    paths: list[str] = []
    threads = [
        threading.Thread(target=lambda: paths.append(obtain(directory, tmp_path / "store", "bfloat16").path))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(calls), len(paths), len(set(paths))) == (1, 6, 1)


def test_without_a_store_to_write_to_every_worker_casts_for_itself(
    models: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory, _ = tiny(models, "float32")

    (tmp_path / "store").write_bytes(b"")  # not even root can make a store of a file
    with caplog.at_level(logging.WARNING):
        spec = obtain(directory, tmp_path / "store", "bfloat16")
    assert (spec.path, spec.dtype) == (str(directory), "float32")
    assert [record.message for record in caplog.records if "private copy of the weights in bfloat16" in record.message]
    assert len(caplog.records) == 1


def tokenizer_files() -> Mapping[str, Any]:
    model = json.loads(byte_level_tokenizer().to_str())["model"]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    return {
        "vocab.json": model["vocab"],
        "merges.txt": ("\n".join(merges) + "\n").encode(),
        "tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer"},
    }


def test_a_tokenizer_is_converted_once_and_the_weights_stay(models: Any, tmp_path: Path) -> None:
    directory, _ = tiny(models, "float32", **tokenizer_files())
    spec = obtain(directory, tmp_path / "store")
    path = Path(spec.path)
    assert not (directory / "tokenizer.json").exists()
    assert (path / "tokenizer.json").is_file()
    assert (path / "model.safetensors").resolve() == (directory / "model.safetensors").resolve()
    assert obtain(directory, tmp_path / "store").path == spec.path
    both = Path(obtain(directory, tmp_path / "store", "float16").path)
    assert (both / "tokenizer.json").resolve() == (path / "tokenizer.json").resolve()


def test_a_tokenizer_that_a_plugin_reads_is_left_alone(models: Any, tmp_path: Path) -> None:
    directory, _ = tiny(models, "float32", **tokenizer_files())
    assert obtain(directory, tmp_path / "store", reads_itself=lambda _: True).path == str(directory)


def test_a_tokenizer_that_cannot_be_converted_is_refused_by_name(models: Any, tmp_path: Path) -> None:
    directory, _ = tiny(models, "float32", **{"spiece.model": b"x"})
    with pytest.raises(StartupError, match=r"^spiece\.model cannot be converted to a tokenizer\.json$"):
        obtain(directory, tmp_path / "store")


def test_what_is_made_is_counted_and_room_is_made_for_it(models: Any, ggufs: Any, tmp_path: Path) -> None:
    asked: list[int] = []
    fetching = replace(Fetching.alone(tmp_path / "store"), make_room=asked.append)
    directory, _ = tiny(models, "float32")
    spec = obtain(directory, tmp_path / "store", "bfloat16", fetching=fetching)
    made = (Path(spec.path) / "model.safetensors").stat().st_size
    assert fetching.ledger.counts().num_bytes == {"derived": made}
    assert asked == [spec.weight_bytes]
    spec = obtain(ggufs.write(), tmp_path / "store", fetching=fetching)
    made += sum(path.stat().st_size for path in Path(spec.path).iterdir())
    assert fetching.ledger.counts().num_bytes == {"derived": made}
    assert asked[1:] == [spec.weight_bytes]
    obtain(ggufs.root / "tiny.gguf", tmp_path / "store", fetching=fetching)
    assert len(asked) == 2  # found, not made


def test_without_room_for_a_cast_the_workers_cast_for_themselves(models: Any, tmp_path: Path) -> None:
    def refuse(_: int) -> None:
        raise StartupError("no space in the weights store", code="NoSpace")

    fetching = replace(Fetching.alone(tmp_path / "store"), make_room=refuse)
    directory, _ = tiny(models, "float32")
    assert obtain(directory, tmp_path / "store", "bfloat16", fetching=fetching).path == str(directory)


def test_a_conversion_takes_little_memory(ggufs: Any, tmp_path: Path) -> None:
    """Most of it is one tensor of 128 MiB as float32; a piece of 8 MiB is worked on at a time."""
    kind, rows, width, inner = GGMLQuantizationType.Q8_0, 32768, 1024, 64
    shapes = {"attn_q": (width, width), "attn_k": (width // 2, width), "attn_v": (width // 2, width),
              "attn_output": (width, width), "ffn_gate": (inner, width), "ffn_up": (inner, width),
              "ffn_down": (width, inner)}  # fmt: skip

    def add(writer: Any) -> None:
        for name, shape in {"token_embd": (rows, width), **{f"blk.0.{n}": s for n, s in shapes.items()}}.items():
            raw = np.zeros((shape[0], shape[1] // 32 * 34), np.uint8)
            writer.add_tensor(f"{name}.weight", raw, raw_shape=raw.shape, raw_dtype=kind)
        for name in ("output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"):
            writer.add_tensor(name, np.ones(width, np.float32))

    path = ggufs.write(sizes=(rows, width, inner, 1), tokens=300, change=add)
    (tmp_path / "target").mkdir()
    tracemalloc.start()
    convert_gguf(path, tmp_path / "target", lambda _: None)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (tmp_path / "target" / "model.safetensors").stat().st_size > rows * width * 4
    assert peak_bytes < rows * width * 4 // 3


def test_who_waits_for_another_process_says_so(tmp_path: Path) -> None:
    recipe, told = Recipe("test", {}), list[Progress]()

    def report(step: Progress) -> None:
        told.append(step)
        raise KeyboardInterrupt

    with Store(tmp_path).lock(recipe), pytest.raises(KeyboardInterrupt):
        obtained(Store(tmp_path), recipe, lambda: pytest.fail("made twice"), report, "casting the weights")
    assert (told[0].stage, told[0].detail) == ("wait", "another process of this node is casting the weights")
