"""Writes what a source reads beside the files of a published model: their sizes and digests, as `manifest.json`."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from tickertape.core.errors import StartupError
from tickertape.core.sources import CHUNK_BYTES
from tickertape.weights.store import check_relative

__all__ = ["MANIFEST", "make_manifest"]

MANIFEST: Final = "manifest.json"
_VERSION: Final = 1
_LEFT_OUT: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


class _File(Struct, frozen=True, omit_defaults=True):
    path: str
    size: int
    sha256: str
    chunk_sha256: tuple[str, ...] = ()


class _Manifest(Struct, frozen=True):
    version: int
    chunk_bytes: int
    files: tuple[_File, ...]


def make_manifest(directory: Path) -> bytes:
    """The content of a manifest.json for the model in `directory`: every file in it and below, hidden ones and pickles
    left out. Files of more than one chunk carry the digest of each. The same files always give the same bytes. Reads
    every file; raises StartupError: PathNotFound, Unreadable."""
    if not directory.is_dir():
        raise StartupError(f"no directory {directory}", code="PathNotFound")
    found = sorted(path for path in directory.rglob("*") if path.is_file())
    paths = {path.relative_to(directory).as_posix(): path for path in found}
    wanted = {
        name: path
        for name, path in paths.items()
        if name != MANIFEST and not name.endswith(_LEFT_OUT) and not any(part[0] == "." for part in name.split("/"))
    }
    files = tuple(_listed(name, path) for name, path in wanted.items())
    return msgspec.json.format(msgspec.json.encode(_Manifest(_VERSION, CHUNK_BYTES, files)), indent=1) + b"\n"


def _listed(name: str, path: Path) -> _File:
    try:
        check_relative(name)
    except ValueError as error:
        raise StartupError(str(error), code="Unreadable") from error
    whole, chunks, size = hashlib.sha256(), [], 0
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                whole.update(chunk)
                chunks.append(hashlib.sha256(chunk).hexdigest())
                size += len(chunk)
    except OSError as error:
        raise StartupError(f"{name}: cannot be read: {error.strerror}", code="Unreadable") from error
    return _File(name, size, whole.hexdigest(), tuple(chunks) if len(chunks) > 1 else ())
