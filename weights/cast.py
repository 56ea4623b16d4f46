"""Weights of another type: cast once per store, tensor by tensor, then mapped by every worker."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tickertape.core.errors import StartupError
from tickertape.core.ports import Progress
from tickertape.weights.header import DTYPE_BYTES, Header, TensorInfo
from tickertape.weights.objects import DigestWriter
from tickertape.weights.writer import to_bfloat16, write_tensors

__all__ = ["CASTER_VERSION", "CASTS", "cast_bytes", "cast_file", "cast_values", "is_cast", "read_pieces", "widened"]

CASTER_VERSION: Final = "1"
"""Part of the recipe of what is made here: raise it whenever the output changes."""

CASTS: Final = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""The types that are cast to, and between, as settings and as safetensors spell them."""

_NUMPY: Final = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_ROUTER: Final = re.compile(r"(^|\.)(gate|router|weights_proj)\.")
_PIECE_BYTES: Final = 8 << 20


def cast_bytes(header: Header, wanted: str, found: str) -> int:
    """How many bytes of tensors `cast_file` writes."""
    old, new = CASTS[found], CASTS[wanted]
    narrowed = (
        info.size_bytes // DTYPE_BYTES[old] * DTYPE_BYTES[new] if is_cast(name, info, old, new) else info.size_bytes
        for name, info in header.tensors.items()
    )
    return sum(narrowed)


def cast_file(
    source: Path, header: Header, target: Path, wanted: str, found: str, report: Callable[[Progress], None]
) -> str:
    """Writes `target`, the tensors of `source` with those of type `found` cast to `wanted` (as settings spell them),
    and returns its sha256. Tensors of one dimension keep their type, and so do a mixture's routers when the new type
    is narrower: some models compute with these in float32, and whoever loads them converts what is so small.

    Rounds to nearest, ties to even. Raises StartupError (OutOfRange) naming the tensor whose finite values the new
    type cannot hold.
    """
    old, new = CASTS[found], CASTS[wanted]
    types = {name: new if is_cast(name, info, old, new) else info.dtype for name, info in header.tensors.items()}
    # The wide ones first: then each lies at a multiple of its own size.
    names = sorted(types, key=lambda name: (-DTYPE_BYTES[types[name]], header.tensors[name].offset))
    layout = {name: (types[name], header.tensors[name].shape) for name in names}

    def pieces() -> Iterator[npt.NDArray[Any]]:
        done, total = 0, sum(info.size_bytes for info in header.tensors.values())
        fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for name in names:
                info = header.tensors[name]
                for raw in read_pieces(fd, source.name, info):
                    yield raw if types[name] == info.dtype else cast_values(name, raw, old, new)
                    done += raw.nbytes
                    report(Progress("cast", done, total))
        finally:
            os.close(fd)

    with DigestWriter(target) as out:
        write_tensors(out, layout, pieces())
        return out.sha256


def is_cast(name: str, info: TensorInfo, old: str, new: str) -> bool:
    """Whether a tensor is one of those that change from type `old` to `new` (as safetensors spells them)."""
    kept = DTYPE_BYTES[new] <= DTYPE_BYTES[old] and _ROUTER.search(name)
    return info.dtype == old and len(info.shape) > 1 and not kept


def read_pieces(fd: int, file: str, info: TensorInfo, multiple_bytes: int = 1) -> Iterator[npt.NDArray[np.uint8]]:
    """The bytes of a tensor, in pieces of a few MiB and of a multiple of so many bytes. Raises StartupError
    (TruncatedFile)."""
    step = max(_PIECE_BYTES // multiple_bytes, 1) * multiple_bytes
    for start in range(0, info.size_bytes, step):
        size = min(step, info.size_bytes - start)
        data = os.pread(fd, size, info.offset + start)
        if len(data) != size:
            raise StartupError(f"{file}: became shorter while it was read", code="TruncatedFile")
        yield np.frombuffer(data, np.uint8)


def widened(raw: npt.NDArray[np.uint8], dtype: str) -> npt.NDArray[np.float32]:
    """Bytes of one of the types that are cast, as float32."""
    values: npt.NDArray[Any] = raw.view(_NUMPY[dtype])
    if dtype == "BF16":
        values = (values.astype("<u4") << 16).view("<f4")
    return values.astype("<f4", copy=False)


def cast_values(name: str, raw: npt.NDArray[np.uint8], old: str, new: str) -> npt.NDArray[Any]:
    """Bytes of one type in another (both as safetensors spells them). Raises StartupError (OutOfRange) with `name`."""
    wide = widened(raw, old)
    if new == "F32":
        return wide
    if new == "BF16":
        cast: npt.NDArray[Any] = to_bfloat16(wide)
        finite = (cast & 0x7F80) != 0x7F80
    else:
        with np.errstate(over="ignore"):
            cast = wide.astype("<f2")
        finite = np.isfinite(cast)
    if not np.array_equal(finite, np.isfinite(wide)):
        raise StartupError(f"{name!r} holds values that {new} cannot hold", code="OutOfRange")
    return cast
