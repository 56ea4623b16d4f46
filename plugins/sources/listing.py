"""manifest.json: what the files of a published model are, written beside them. See docs/weights.md for the format."""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Struct

from tickertape.plugins import CHUNK_BYTES, FileEntry, StartupError
from tickertape.plugins.sources.model_files import PICKLES

__all__ = ["LISTING", "MAX_LISTING_BYTES", "read_listing"]

LISTING: Final = "manifest.json"
MAX_LISTING_BYTES: Final = 16 << 20
_VERSION: Final = 1
_SHA256: Final = re.compile(r"^[0-9a-f]{64}$")


class _File(Struct, frozen=True):
    path: str
    size: int
    sha256: str
    chunk_sha256: tuple[str, ...] = ()


class _Listing(Struct, frozen=True):
    files: tuple[_File, ...]
    version: int = _VERSION
    chunk_bytes: int = CHUNK_BYTES


def read_listing(data: bytes, where: str) -> tuple[FileEntry, ...]:
    """The files that a manifest.json lists, pickles left out. Raises StartupError, code BadManifest."""
    try:
        listing = msgspec.json.decode(data, type=_Listing)
    except (msgspec.DecodeError, RecursionError) as error:
        raise StartupError(f"{where}: {error}", code="BadManifest") from None
    if listing.version != _VERSION:
        raise StartupError(f"{where}: version {listing.version} is not known here", code="BadManifest")
    chunked = listing.chunk_bytes == CHUNK_BYTES  # digests of other pieces are of no use here
    for file in listing.files:
        if (fault := _fault(file, chunked)) is not None:
            raise StartupError(f"{where}: {file.path!r}: {fault}", code="BadManifest")
    if len({file.path for file in listing.files}) != len(listing.files):
        raise StartupError(f"{where}: lists a file twice", code="BadManifest")
    entries = tuple(
        FileEntry(file.path, file.size, file.sha256, chunk_sha256=file.chunk_sha256 if chunked else ())
        for file in listing.files
        if not file.path.endswith(PICKLES)
    )
    if not entries:
        raise StartupError(f"{where}: lists no file", code="BadManifest")
    return entries


def _fault(file: _File, chunked: bool) -> str | None:
    if file.path.startswith("/") or "\0" in file.path or {"", ".", ".."} & set(file.path.split("/")):
        return "is not a path inside the model"
    if file.size < 0:
        return "has a size below zero"
    if not all(_SHA256.match(digest) for digest in (file.sha256, *file.chunk_sha256)):
        return "has a digest that is no sha256"
    if chunked and file.chunk_sha256 and len(file.chunk_sha256) != -(-file.size // CHUNK_BYTES):
        return "has as many digests of chunks as another size would have"
    return None
