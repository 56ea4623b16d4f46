"""Writing safetensors one piece at a time: no tensor need fit in memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tickertape.weights.header import DTYPE_BYTES
from tickertape.weights.objects import DigestWriter

__all__ = ["to_bfloat16", "write_tensors"]

_ALIGNMENT = 64  # of the first tensor: a cache line


def write_tensors(
    out: DigestWriter,
    layout: Mapping[str, tuple[str, tuple[int, ...]]],
    pieces: Iterable[npt.NDArray[Any]],
) -> None:
    """Writes a whole safetensors file: `layout` maps names to (dtype as safetensors spells it, shape), and `pieces` are
    the values of all tensors in that order, cut wherever the caller likes. The caller answers for their dtypes.

    Raises ValueError when the pieces do not add up to the layout.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in layout.items():
        start, end = end, end + math.prod(shape) * DTYPE_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": (start, end)}
    raw = msgspec.json.encode(header)
    raw += b" " * (-(8 + len(raw)) % _ALIGNMENT)
    out.write(len(raw).to_bytes(8, "little") + raw)
    written = 0
    for piece in pieces:
        out.write(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data)
        written += piece.nbytes
    if written != end:
        raise ValueError(f"{written} bytes of tensors were given, the layout has {end}")


def to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Rounds to the nearest bfloat16, ties to even; NaN stays NaN. The result holds the bits."""
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    rounded: npt.NDArray[np.uint16] = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2")
    rounded[np.isnan(values)] = 0x7FC0
    return rounded
