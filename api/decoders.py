"""The `decoder` of a tokenizer.json, rebuilt so that it works on one token at a time.

The library decodes whole lists of ids. Here the same chain is compiled into a `prepare` step, which looks at one token
alone and is cached per id, and small stages that carry what one token must remember for the next. Pushing the tokens
of a text through them one by one gives, joined, exactly what the library gives for the whole list.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from tokenizers import Regex, decoders

from tickertape.api.decoder_stages import ByteRuns, Mapped, Piece, Pipeline, Stage, Trimmed, Utf8

__all__ = ["Decoder", "UnsupportedDecoder", "compile_decoder"]

StageFactory = Callable[[], Stage]

_BYTE_PIECE = re.compile(r"<0x([0-9a-fA-F]{2})>")


class UnsupportedDecoder(ValueError):
    """The chain holds a decoder, or an order of decoders, that cannot be followed token by token."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """A compiled chain. `prepare` turns a token as the vocabulary spells it into a piece: text, or raw bytes that may
    be a part of a character. Immutable; every stream takes its own `pipeline()`."""

    prepare: Callable[[str], Piece]
    factories: tuple[StageFactory, ...]

    def pipeline(self) -> Pipeline:
        return Pipeline([make() for make in self.factories])

    def bytes_of(self, piece: Piece) -> bytes:
        """The bytes of a token that neither begins nor ends its text."""
        if isinstance(piece, bytes):
            return piece
        pipeline = self.pipeline()
        pipeline.push("-")  # a word's beginning, so that what is special about the first piece is behind us
        return pipeline.push(piece).encode()

    def closes(self, piece: Piece) -> bool:
        """Whether, behind this piece, a stream holds the same whatever came before it (the first piece aside)."""
        if isinstance(piece, str):
            return bool(piece.strip())
        return ByteRuns not in self.factories and bool(piece.strip()) and _is_text(piece)


def compile_decoder(spec: Mapping[str, Any] | None) -> Decoder:
    """Compiles the `decoder` entry of a tokenizer.json; None joins tokens with spaces, as the library does.
    Raises UnsupportedDecoder."""
    if spec is None:
        return Decoder(prepare=str, factories=(partial(Mapped, _spaced, str),))
    steps: list[Callable[[Any], Any]] = []  # each looks at a token alone, before any stage
    factories: list[StageFactory] = []
    fused = False
    for inner in _flat(spec):
        new_steps, new_factories = _of_text(inner) if fused else _of_pieces(inner)
        if factories:
            factories.extend(partial(Mapped, step) for step in new_steps)
        else:
            steps.extend(new_steps)
        factories.extend(new_factories)
        fused = fused or inner["type"] in ("Fuse", "ByteLevel")
    return Decoder(prepare=partial(_prepare, tuple(steps)), factories=tuple(factories))


def _prepare(steps: tuple[Callable[[Any], Any], ...], token: str) -> Piece:
    piece: Piece = token
    for step in steps:
        piece = step(piece)
    return piece


def _flat(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if spec["type"] == "Sequence":
        for inner in spec["decoders"]:
            yield from _flat(inner)
    else:
        yield spec


_Parts = tuple[list[Callable[[Any], Any]], list[StageFactory]]


def _of_pieces(spec: Mapping[str, Any]) -> _Parts:
    """One decoder that sees tokens, as steps on a token alone and the stages after them."""
    match spec:
        case {"type": "Fuse"}:
            return [], []
        case {"type": "Replace", "pattern": {"String": pattern}, "content": content}:
            return [partial(_decode_alone, decoders.Replace(pattern, content))], []
        case {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}:
            return [partial(_decode_alone, decoders.Replace(Regex(pattern), content))], []
        case {"type": "Strip", "content": content, "start": start, "stop": stop}:
            return [partial(_decode_alone, decoders.Strip(content, start, stop))], []
        case {"type": "ByteFallback"}:
            return [_byte_fallback], [ByteRuns]
        case {"type": "ByteLevel"}:
            return [partial(_byte_level, _byte_level_alphabet())], [Utf8]
        case {"type": "Metaspace", "replacement": mark, "prepend_scheme": "never"}:
            return [partial(_replaced, mark, " ")], []
        case {"type": "Metaspace", "replacement": mark}:
            return [], [partial(Mapped, partial(_replaced, mark, " "), partial(_replaced, mark, ""))]
        case {"type": "WordPiece", "prefix": prefix, "cleanup": cleanup}:
            words = partial(Mapped, partial(_continued, prefix), str)
            tidy = partial(_decode_alone, decoders.WordPiece(prefix="", cleanup=True))
            return [], [words, partial(Mapped, tidy)] if cleanup else [words]
    raise UnsupportedDecoder(f"decoder {spec['type']} is not supported")


def _of_text(spec: Mapping[str, Any]) -> _Parts:
    """One decoder behind Fuse or ByteLevel: it sees the whole text as one piece, so its stage sees a stream of it."""
    match spec:
        case {"type": "Fuse"}:
            return [], []
        case {"type": "Strip", "content": content, "start": start, "stop": stop}:
            return [], [partial(Trimmed, content, start, stop)]
        case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": content} if len(pattern) == 1:
            return [], [partial(Mapped, partial(_replaced, pattern, content))]
    raise UnsupportedDecoder(f"decoder {spec['type']} behind a fused text is not supported")


class _LibraryDecoder(Protocol):
    def decode(self, tokens: list[str]) -> str: ...


def _decode_alone(library: _LibraryDecoder, piece: str) -> str:
    """For decoders that treat every token alike wherever it stands: the library's own word on one token."""
    return library.decode([piece])


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _replaced(pattern: str, content: str, piece: str) -> str:
    return piece.replace(pattern, content)


def _spaced(piece: str) -> str:
    return " " + piece


def _continued(prefix: str, piece: str) -> str:
    return piece[len(prefix) :] if piece.startswith(prefix) else " " + piece


def _byte_fallback(token: str) -> Piece:
    found = _BYTE_PIECE.fullmatch(token)
    return bytes([int(found[1], 16)]) if found else token


def _byte_level_alphabet() -> dict[str, int]:
    """Which byte each character of a byte-level vocabulary stands for: printable Latin-1 for itself, the other 68
    bytes in order as the characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(0x100)) - set(printable))
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


def _byte_level(alphabet: Mapping[str, int], token: str) -> bytes:
    try:
        return bytes([alphabet[character] for character in token])
    except KeyError:  # an added token whose text is not in the alphabet stands for itself
        return token.encode()
