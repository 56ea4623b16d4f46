"""The safetensors header: what is refused, quickly, and by which name."""

from __future__ import annotations

import json
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from tickertape.core.errors import StartupError
from tickertape.weights.header import read_header

F32_2 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def write(path: Path, header: Any, body: bytes = b"", length: int | None = None) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(raw) if length is None else length).to_bytes(8, "little") + raw + body)
    return path


def refusal(path: Path) -> StartupError:
    with pytest.raises(StartupError) as caught:
        read_header(path)
    assert path.name in caught.value.message
    assert "\n" not in caught.value.message
    return caught.value


def test_reads_what_the_library_writes(tmp_path: Path) -> None:
    tensors: dict[str, npt.NDArray[Any]] = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.zeros((0, 4), np.float16),
        "c": np.array(7),
    }
    save_file(tensors, tmp_path / "m.safetensors", metadata={"format": "pt"})
    header = read_header(tmp_path / "m.safetensors")
    assert {name: (info.dtype, info.shape) for name, info in header.tensors.items()} == {
        "a": ("F32", (2, 3)), "b": ("F16", (0, 4)), "c": ("I64", ()),
    }  # fmt: skip
    assert header.size_bytes == (tmp_path / "m.safetensors").stat().st_size


@pytest.mark.parametrize("length", [2**40, 2**63, 2**64 - 1, 0, 1, 100_000_001])
def test_a_lying_length_is_refused_without_allocating(tmp_path: Path, length: int) -> None:
    path = write(tmp_path / "m.safetensors", {"a": F32_2}, bytes(8), length)
    tracemalloc.start()
    started = time.thread_time()
    error = refusal(path)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert error.code == "BadHeader"
    assert time.thread_time() - started < 0.5
    assert peak_bytes < 1 << 20


@pytest.mark.parametrize(
    ("header", "body", "code"),
    [
        (b"{not json", b"", "BadHeader"),
        (b"\xff\xfe{}", b"", "BadHeader"),
        (b"[1, 2]", b"", "BadHeader"),
        (b"[" * 50_000, b"", "BadHeader"),
        (b'{"a": ' + b"[" * 50_000, b"", "BadHeader"),
        (b'{"a": {"dtype": "\xff\xfe"}}', b"", "BadHeader"),
        ({"a": {**F32_2, "shape": [-2]}}, bytes(8), "BadHeader"),
        ({"a": {**F32_2, "shape": [2.0]}}, bytes(8), "BadHeader"),
        ({"a": {**F32_2, "shape": [3]}}, bytes(8), "BadHeader"),
        ({"a": {**F32_2, "shape": [1] * 65, "data_offsets": [0, 4]}}, bytes(4), "BadHeader"),
        ({"a": {**F32_2, "shape": [2**62, 2**62, 0], "data_offsets": [0, 0]}}, b"", "BadHeader"),
        ({"a": {**F32_2, "shape": [2**62] * 5_000}}, bytes(8), "BadHeader"),
        ({"a": {**F32_2, "data_offsets": [-8, 0]}}, bytes(8), "BadHeader"),
        ({"a": {**F32_2, "data_offsets": [8, 0]}}, bytes(8), "BadHeader"),
        ({"a": F32_2, "b": F32_2}, bytes(8), "BadHeader"),
        ({"a": F32_2, "b": {**F32_2, "data_offsets": [4, 12]}}, bytes(12), "BadHeader"),
        ({"a": F32_2, "b": {**F32_2, "data_offsets": [12, 20]}}, bytes(20), "BadHeader"),
        ({"a": {**F32_2, "data_offsets": [4, 12]}}, bytes(12), "BadHeader"),
        ({"a": F32_2}, bytes(9), "BadHeader"),
        ({"a": F32_2, "__metadata__": {"x": 1}}, bytes(8), "BadHeader"),
        ({"a": {"dtype": "F4", "shape": [16], "data_offsets": [0, 8]}}, bytes(8), "UnsupportedFormat"),
        ({"a": F32_2}, bytes(7), "TruncatedFile"),
        ({"a": F32_2}, b"", "TruncatedFile"),
    ],
)
def test_a_header_that_cannot_be_is_refused(tmp_path: Path, header: Any, body: bytes, code: str) -> None:
    assert refusal(write(tmp_path / "m.safetensors", header, body)).code == code


@pytest.mark.parametrize("size", [0, 7, 8, 20])
def test_a_file_cut_inside_its_header(tmp_path: Path, size: int) -> None:
    path = write(tmp_path / "m.safetensors", {"a": F32_2}, bytes(8))
    path.write_bytes(path.read_bytes()[:size])
    assert refusal(path).code == "TruncatedFile"


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "m.safetensors"


FUZZ = settings(max_examples=200, deadline=1000, suppress_health_check=[HealthCheck.function_scoped_fixture])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
)
ENTRY = st.fixed_dictionaries({
    "dtype": st.sampled_from(["F32", "BF16", "I8", "F4", "X", ""]),
    "shape": st.lists(st.integers(-2, 2**64), max_size=4) | st.lists(st.integers(0, 3), max_size=3),
    "data_offsets": st.tuples(st.integers(-1, 30), st.integers(-1, 30)) | st.tuples(st.integers(), st.integers()),
})  # fmt: skip


def agrees_with_the_library(path: Path) -> None:
    """Whatever we take, the reference implementation takes too, with the same tensors; nothing but StartupError."""
    try:
        header = read_header(path)
    except StartupError:
        return
    if not header.tensors:
        return
    try:
        with safe_open(path, "numpy") as theirs:
            assert set(theirs.keys()) == set(header.tensors)
            for name, info in header.tensors.items():
                assert tuple(theirs.get_slice(name).get_shape()) == info.shape
    except SafetensorError as error:
        raise AssertionError(f"the library refuses it: {error}") from error


@FUZZ
@given(st.binary(max_size=200))
def test_any_bytes(scratch: Path, raw: bytes) -> None:
    scratch.write_bytes(raw)
    agrees_with_the_library(scratch)


@FUZZ
@given(st.dictionaries(st.text(max_size=4), ENTRY | JSON, max_size=4), st.integers(0, 40))
def test_any_header(scratch: Path, header: Any, body: int) -> None:
    agrees_with_the_library(write(scratch, header, bytes(body)))


@FUZZ
@given(st.data())
def test_a_good_file_with_one_byte_changed(scratch: Path, data: st.DataObject) -> None:
    raw = bytearray(write(scratch, {"a": F32_2, "b": {**F32_2, "data_offsets": [8, 16]}}, bytes(16)).read_bytes())
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    scratch.write_bytes(raw)
    agrees_with_the_library(scratch)
