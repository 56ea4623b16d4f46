"""The file of a SentencePiece model: a protocol buffer, of which a dozen fields matter."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

__all__ = ["BPE", "BYTE", "CONTROL", "NORMAL", "UNIGRAM", "UNKNOWN", "UNUSED", "USER_DEFINED", "Piece", "PieceModel"]

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
UNIGRAM, BPE = 1, 2

_VARINT: Final = 0
_DOUBLE: Final = 1
_BYTES: Final = 2
_FLOAT: Final = 5

Value = int | bytes


class Piece(Struct, frozen=True):
    text: str
    score: float
    kind: int


class PieceModel(Struct, frozen=True, kw_only=True):
    """Pieces in the order of their ids. `unknown`, `begin` and `end` are ids, None where there is no such piece;
    `charsmap` is the compiled table of the text normalisation, empty for none."""

    pieces: tuple[Piece, ...]
    algorithm: int
    byte_fallback: bool
    space_last: bool
    unknown: int | None
    begin: int | None
    end: int | None
    charsmap: bytes
    space_first: bool
    squeeze_spaces: bool
    escape_spaces: bool

    @classmethod
    def read(cls, data: bytes) -> PieceModel:
        """Raises ValueError for anything that is no such file."""
        pieces, trainer, normalizer = [], dict[int, Value](), dict[int, Value]()
        for number, value in _fields(data):
            if isinstance(value, bytes):
                match number:
                    case 1:
                        pieces.append(_piece(dict(_fields(value))))
                    case 2:
                        trainer = dict(_fields(value))
                    case 3:
                        normalizer = dict(_fields(value))
        if not pieces:
            raise ValueError("it holds no pieces")

        def named(field: int, default: int) -> int | None:
            token_id = _number(trainer, field, default)
            return token_id if 0 <= token_id < len(pieces) else None

        charsmap = normalizer.get(2, b"")
        return cls(
            pieces=tuple(pieces),
            algorithm=_number(trainer, 3, UNIGRAM),
            byte_fallback=bool(_number(trainer, 35, 0)),
            space_last=bool(_number(trainer, 24, 0)),
            unknown=named(40, 0),
            begin=named(41, 1),
            end=named(42, 2),
            charsmap=charsmap if isinstance(charsmap, bytes) else b"",
            space_first=bool(_number(normalizer, 3, 1)),
            squeeze_spaces=bool(_number(normalizer, 4, 1)),
            escape_spaces=bool(_number(normalizer, 5, 1)),
        )


def _piece(fields: Mapping[int, Value]) -> Piece:
    text, score = fields.get(1, b""), fields.get(2, b"\0\0\0\0")
    if not isinstance(text, bytes) or not isinstance(score, bytes) or len(score) != 4:
        raise ValueError("a piece is malformed")
    return Piece(text.decode(), struct.unpack("<f", score)[0], _number(fields, 3, NORMAL))


def _number(fields: Mapping[int, Value], number: int, default: int) -> int:
    value = fields.get(number, default)
    if not isinstance(value, int):
        raise ValueError(f"field {number} is no number")
    return value - (1 << 64) if value >= 1 << 63 else value


def _fields(data: bytes) -> Iterator[tuple[int, Value]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        value: Value
        if kind == _VARINT:
            value, at = _varint(data, at)
        elif kind in (_DOUBLE, _BYTES, _FLOAT):
            size = 8 if kind == _DOUBLE else 4
            if kind == _BYTES:
                size, at = _varint(data, at)
            value = data[at : at + size]
            if len(value) != size:
                raise ValueError("it is cut off")
            at += size
        else:
            raise ValueError(f"a field has the unknown kind {kind}")
        yield number, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise ValueError("it is cut off")
