"""Weights of 8 bits: quantized once per store, tensor by tensor, then mapped by every worker."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from tickertape.core.errors import StartupError
from tickertape.core.ports import Progress
from tickertape.core.quantization import INT8_CONFIG, SCALE_SUFFIX, becomes_int8, quantize_rows
from tickertape.weights.cast import CASTS, cast_values, is_cast, read_pieces, widened
from tickertape.weights.header import DTYPE_BYTES, Header, TensorInfo
from tickertape.weights.objects import DigestWriter
from tickertape.weights.shards import Shards
from tickertape.weights.writer import write_tensors

__all__ = ["QUANTIZER_VERSION", "has_linears", "marked_config", "quantize_file", "quantized_bytes", "scales_indexed"]

QUANTIZER_VERSION: Final = "1"
"""Part of the recipe of what is made here: raise it whenever the output changes."""

Layout = dict[str, tuple[str, tuple[int, ...]]]


def has_linears(header: Header) -> bool:
    """Whether a file holds anything to quantize."""
    return any(becomes_int8(name, info.dtype, info.shape) for name, info in header.tensors.items())


def quantized_bytes(header: Header, wanted: str, found: str) -> int:
    """How many bytes of tensors `quantize_file` writes."""
    quantized, scales, others = _layouts(header, wanted, found)
    return sum(
        DTYPE_BYTES[dtype] * int(np.prod(shape, dtype=np.int64))
        for dtype, shape in chain(quantized.values(), scales.values(), others.values())
    )


def marked_config(raw: bytes) -> bytes:
    """config.json, saying that the weights are quantized."""
    config = msgspec.json.decode(raw, type=dict[str, Any])
    return msgspec.json.format(msgspec.json.encode({**config, "quantization_config": dict(INT8_CONFIG)}), indent=2)


def scales_indexed(shards: Shards, raw: bytes) -> bytes:
    """The index of a model in several files, with the scales of what is quantized."""
    index = msgspec.json.decode(raw, type=dict[str, Any])
    for name, (path, info) in shards.tensors.items():
        if becomes_int8(name, info.dtype, info.shape):
            index["weight_map"][name + SCALE_SUFFIX] = path.name
    return msgspec.json.format(msgspec.json.encode(index), indent=2)


def quantize_file(
    source: Path, header: Header, target: Path, wanted: str, found: str, report: Callable[[Progress], None]
) -> str:
    """Writes `target`, the tensors of `source` with the weights of linear layers quantized (see core/quantization.py),
    and returns its sha256. The rest is cast as by `cast_file`, from `found` to `wanted`.

    Integers come first, so that every row of them begins at a multiple of 16 bytes. Holds a piece of one tensor, and
    all scales. Raises StartupError (OutOfRange) naming the tensor that holds what cannot be quantized or cast.
    """
    quantized, scales, others = _layouts(header, wanted, found)
    made: dict[str, list[npt.NDArray[np.float32]]] = {}

    def pieces() -> Iterator[npt.NDArray[Any]]:
        done, total = 0, sum(info.size_bytes for info in header.tensors.values())
        fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for name in chain(quantized, scales, others):
                if name in scales:
                    yield from made.pop(name)
                    continue
                info = header.tensors[name]
                row_bytes = info.size_bytes // info.shape[0] if name in quantized else 1
                for raw in read_pieces(fd, source.name, info, row_bytes):
                    if name in quantized:
                        integers, scale = _quantize(name, raw, info)
                        made.setdefault(name + SCALE_SUFFIX, []).append(scale)
                        yield integers
                    else:
                        yield (
                            raw if others[name][0] == info.dtype else cast_values(name, raw, info.dtype, CASTS[wanted])
                        )
                    done += raw.nbytes
                    report(Progress("quantize", done, total))
        finally:
            os.close(fd)

    with DigestWriter(target) as out:
        write_tensors(out, {**quantized, **scales, **others}, pieces())
        return out.sha256


def _layouts(header: Header, wanted: str, found: str) -> tuple[Layout, Layout, Layout]:
    """Quantized weights, their scales, and the other tensors, in the order of the file to write."""
    quantized: Layout = {}
    scales: Layout = {}
    others: Layout = {}
    for name, info in sorted(header.tensors.items(), key=lambda item: item[1].offset):
        if becomes_int8(name, info.dtype, info.shape):
            quantized[name] = ("I8", info.shape)
            scales[name + SCALE_SUFFIX] = ("F32", info.shape[:1])
        else:
            cast = found in CASTS and wanted in CASTS and is_cast(name, info, CASTS[found], CASTS[wanted])
            others[name] = (CASTS[wanted] if cast else info.dtype, info.shape)
    # The wide ones first: then each lies at a multiple of its own size.
    ordered = sorted(others.items(), key=lambda item: -DTYPE_BYTES[item[1][0]])
    return quantized, scales, dict(ordered)


def _quantize(
    name: str, raw: npt.NDArray[np.uint8], info: TensorInfo
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    try:
        return quantize_rows(widened(raw, info.dtype).reshape(-1, info.shape[1]))
    except ValueError as error:
        raise StartupError(f"{name!r} cannot be quantized: {error}", code="OutOfRange") from error
