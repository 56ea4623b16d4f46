"""Model directories mapped: which copy of a tensor counts, and what keeps a model from being served."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tickertape.core.errors import StartupError
from tickertape.weights.mapping import MappedWeights
from tickertape.weights.writer import to_bfloat16

A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.full((4,), 7, np.float16)


def refusal(directory: Path) -> StartupError:
    with pytest.raises(StartupError) as caught:
        MappedWeights(directory)
    assert "\n" not in caught.value.message
    return caught.value


def test_views_are_exact_shared_and_read_only(models: Any) -> None:
    bits = to_bfloat16(np.array([1.0, -2.5], np.float32))
    weights = MappedWeights(models.directory("m", {"model.safetensors": {"a": A, "b": B, "bits": bits}}))
    assert sorted(weights.names()) == ["a", "b", "bits"]
    assert (weights.shape("a"), weights.dtype("a"), weights.dtype("bits")) == ((2, 3), "F32", "BF16")
    np.testing.assert_array_equal(weights.open("a"), A)
    np.testing.assert_array_equal(weights.open("b"), B)
    assert weights.open("bits").dtype == np.uint16
    np.testing.assert_array_equal(weights.open("bits"), bits)
    view = weights.open("a")
    assert not view.flags.owndata
    assert np.shares_memory(view, weights.open("a"))
    with pytest.raises(ValueError, match="read-only"):
        view[0, 0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        view.flags.writeable = True
    with pytest.raises(KeyError):
        weights.open("missing")


def test_views_outlive_close(models: Any) -> None:
    weights = MappedWeights(models.directory("m", {"model.safetensors": {"a": A}}))
    view = weights.open("a")
    weights.close()
    weights.close()
    np.testing.assert_array_equal(view, A)
    with pytest.raises(ValueError, match="closed"):
        weights.open("a")


def test_empty_tensors_and_scalars(models: Any) -> None:
    tensors = {"none": np.zeros((0, 3), np.float32), "one": np.array(5, np.int64)}
    weights = MappedWeights(models.directory("m", {"model.safetensors": tensors}))
    assert weights.open("none").shape == (0, 3)
    assert weights.open("one") == 5
    assert not weights.open("none").flags.writeable
    assert not weights.open("one").flags.writeable


def test_many_threads_open_the_same_tensors(models: Any) -> None:
    weights = MappedWeights(models.directory("m", {"model.safetensors": {"a": A, "b": B}}))
    wrong: list[str] = []

    def read() -> None:
        same = [np.array_equal(weights.open("a"), A) and np.array_equal(weights.open("b"), B) for _ in range(200)]
        wrong.extend("differs" for equal in same if not equal)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("good", ["one.safetensors", "two.safetensors"])
def test_only_the_indexed_copy_is_used(models: Any, good: str) -> None:  # case 109
    stale = {"one.safetensors": "two.safetensors", "two.safetensors": "one.safetensors"}[good]
    files = {good: {"head": A, "x": B}, stale: {"head": np.zeros_like(A), "y": B}}
    weights = MappedWeights(models.sharded("m", files, {"head": good, "x": good, "y": stale}))
    np.testing.assert_array_equal(weights.open("head"), A)
    assert sorted(weights.names()) == ["head", "x", "y"]


def test_a_missing_shard_is_named(models: Any) -> None:  # case 107
    directory = models.sharded("m", {"one.safetensors": {"a": A}}, {"a": "one.safetensors", "b": "two.safetensors"})
    error = refusal(directory)
    assert error.code == "MissingShard"
    assert "two.safetensors" in error.message


def test_a_missing_shard_without_an_index_is_named(models: Any) -> None:
    error = refusal(models.directory("m", {"model-00001-of-00002.safetensors": {"a": A}}))
    assert error.code == "MissingShard"
    assert "model-00002-of-00002.safetensors" in error.message


def test_a_tensor_in_no_shard_is_named(models: Any) -> None:
    error = refusal(
        models.sharded("m", {"one.safetensors": {"a": A}}, {"a": "one.safetensors", "b": "one.safetensors"})
    )
    assert error.code == "MissingTensor"
    assert "'b'" in error.message
    assert "one.safetensors" in error.message


@pytest.mark.parametrize("name", ["x.safetensors", "model.safetensors"])
def test_a_directory_called_like_a_file(models: Any, name: str) -> None:
    directory = models.directory("m", {})
    (directory / name).mkdir()
    error = refusal(directory)
    assert error.code == "NoWeights"
    assert name in error.message
    assert "directory" in error.message


def test_a_shard_that_is_a_directory(models: Any) -> None:
    directory = models.sharded("m", {}, {"a": "one.safetensors"})
    (directory / "one.safetensors").mkdir()
    assert refusal(directory).code == "MissingShard"


def test_a_broken_link_is_named(models: Any) -> None:
    directory = models.directory("m", {})
    (directory / "model.safetensors").symlink_to("nowhere")
    error = refusal(directory)
    assert error.code == "NoWeights"
    assert "broken link" in error.message


def test_no_weights_at_all(models: Any) -> None:
    assert refusal(models.directory("m", {})).code == "NoWeights"


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "consolidated.pt", "m.pth"])
def test_pickles_are_never_read(models: Any, name: str) -> None:
    error = refusal(models.directory("m", {}, **{name: b"\x80\x04never"}))
    assert error.code == "PickleOnly"
    assert name in error.message


def test_pickles_beside_safetensors_are_ignored(models: Any) -> None:
    directory = models.directory("m", {"model.safetensors": {"a": A}}, **{"pytorch_model.bin": b"\x80"})
    assert MappedWeights(directory).names() == ["a"]


@pytest.mark.parametrize(
    "index",
    [b"{", b'{"weight_map": 3}', b'{"weight_map": {"a": 1}}', b"{}", b'{"weight_map": {"a": "../x.safetensors"}}'],
)
def test_a_bad_index_is_named(models: Any, index: bytes) -> None:
    directory = models.directory("m", {"one.safetensors": {"a": A}}, **{"model.safetensors.index.json": index})
    error = refusal(directory)
    assert error.code == "BadIndex"
    assert "model.safetensors.index.json" in error.message


def test_two_files_may_not_claim_one_tensor(models: Any) -> None:
    error = refusal(models.directory("m", {"one.safetensors": {"a": A}, "two.safetensors": {"a": A}}))
    assert error.code == "BadIndex"


def test_a_truncated_shard_is_refused_before_it_is_mapped(models: Any) -> None:
    directory = models.directory("m", {"model.safetensors": {"a": A}})
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    error = refusal(directory)
    assert error.code == "TruncatedFile"
    assert "model.safetensors" in error.message
