"""Tensors of one element in, tensors of one element per choice out."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

from tickertape.api.grpc.kserve.protocol import INPUTS
from tickertape.core.errors import InvalidRequest

__all__ = ["pack_texts", "pack_uint32", "read_inputs"]

_DATATYPES: Final = {spec.name: spec.datatype for spec in INPUTS}
_LENGTH: Final = struct.Struct("<I")


def read_inputs(request: Any) -> dict[str, bytes | bool]:
    """The inputs of a ModelInferRequest by name. Raises InvalidRequest naming the tensor."""
    inputs, raw = request.inputs, request.raw_input_contents
    if raw and len(raw) != len(inputs):
        raise InvalidRequest(
            f"Invalid value for 'raw_input_contents': {len(raw)} entries for {len(inputs)} inputs",
            param="raw_input_contents",
        )
    found: dict[str, bytes | bool] = {}
    for n, tensor in enumerate(inputs):
        name = tensor.name
        wanted = _DATATYPES.get(name)
        if wanted is None:
            raise InvalidRequest(f"Unknown input {name[:100]!r}", code="unknown_parameter", param=name[:100])
        if name in found:
            raise _wrong(name, "it comes twice")
        if tensor.datatype != wanted:
            raise InvalidRequest(
                f"Invalid type for {name!r}: {wanted} is wanted, {tensor.datatype[:20]!r} was given",
                code="invalid_type",
                param=name,
            )
        shape = list(tensor.shape)
        if shape not in ([1], [1, 1]):
            raise _wrong(name, f"its shape must be [1], not {shape[:8]}")
        if raw and tensor.HasField("contents"):
            raise _wrong(name, "contents and raw_input_contents exclude each other")
        found[name] = _raw(name, wanted, raw[n]) if raw else _typed(name, wanted, tensor.contents)
    return found


def pack_texts(texts: Sequence[bytes]) -> bytes:
    """BYTES: each with its length before it."""
    return b"".join([_LENGTH.pack(len(text)) + text for text in texts])


def pack_uint32(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def _raw(name: str, datatype: str, data: bytes) -> bytes | bool:
    if datatype == "BOOL":
        if len(data) != 1:
            raise _wrong(name, f"one BOOL is 1 byte, {len(data)} were sent")
        return data != b"\0"
    if len(data) < _LENGTH.size or _LENGTH.unpack_from(data)[0] != len(data) - _LENGTH.size:
        raise _wrong(name, "one element of BYTES is its length in 4 bytes and as many bytes, and nothing more")
    return data[_LENGTH.size :]


def _typed(name: str, datatype: str, contents: Any) -> bytes | bool:
    values = contents.bool_contents if datatype == "BOOL" else contents.bytes_contents
    if len(values) != 1:
        raise _wrong(name, f"1 element is wanted, {len(values)} were sent")
    value: bytes | bool = values[0]
    return value


def _wrong(name: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid value for {name!r}: {reason}", param=name)
