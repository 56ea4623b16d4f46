"""What lies behind the URL of a model: asked for file by file, or read from its manifest.json."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from msgspec import structs

from tickertape.plugins import CHUNK_BYTES, FileEntry, StartupError
from tickertape.plugins.sources.http_answers import refusal, shown, total_bytes, validator
from tickertape.plugins.sources.http_client import HttpClient
from tickertape.plugins.sources.listing import LISTING, MAX_LISTING_BYTES, read_listing
from tickertape.plugins.sources.model_files import OPTIONAL_COMPANIONS, choose_files
from tickertape.plugins.sources.revision import revision_of

if TYPE_CHECKING:
    from tickertape.plugins.sources.https import Address

__all__ = ["list_files"]

_ABSENT: Final = (403, 404, 410)
"""Object stores answer 403 for what is not there to those who may not list."""


def list_files(client: HttpClient, address: Address) -> tuple[str, tuple[FileEntry, ...]]:
    """The revision and the files of a model. Raises what `HttpsSource.resolve` raises."""
    if not address.file:
        return _listed(client, address)
    entries = [_probe(client, address, address.file, required=True)]
    if address.file.endswith(".safetensors"):
        entries.append(_probe(client, address, "config.json", required=True))
        entries += [_probe(client, address, path, required=False) for path in OPTIONAL_COMPANIONS]
    found = {entry.path: entry for entry in entries if entry is not None}
    if address.sha256 is not None:
        found[address.file] = structs.replace(found[address.file], sha256=address.sha256)
    chosen = choose_files(found, shown(address.url("")), address.file)
    files = tuple(found[path] for path in chosen)
    return revision_of(files), files


def _probe(client: HttpClient, address: Address, path: str, *, required: bool) -> FileEntry | None:
    url = address.url(path)
    answer, _ = client.get(url, {"Range": "bytes=0-0"}, address.private)
    try:
        if answer.status in _ABSENT and not required:
            return None
        total = 0 if answer.status == 416 else total_bytes(answer.status, answer.headers)
        if answer.status not in (200, 206, 416):
            raise refusal(answer.status, answer.headers, shown(url))
        if total is None:
            raise StartupError(f"{shown(url)}: its host does not say how large it is", code="NoRanges")
        if answer.status == 200 and total > CHUNK_BYTES:
            raise StartupError(
                f"{shown(url)}: its host does not serve ranges, which a file of {total} bytes needs", code="NoRanges"
            )
        return FileEntry(path, total, etag=validator(answer.headers))
    finally:
        client.done(answer, drain=answer.status == 206)


def _listed(client: HttpClient, address: Address) -> tuple[str, tuple[FileEntry, ...]]:
    url = address.url(LISTING)
    answer, _ = client.get(url, private=address.private)
    data = bytearray()
    try:
        if answer.status in _ABSENT:
            raise StartupError(
                f"{shown(url)}: not found; name a .safetensors or .gguf file, or a directory with a {LISTING}",
                code="NoManifest",
            )
        if answer.status != 200:
            raise refusal(answer.status, answer.headers, shown(url))
        while piece := client.read(answer, MAX_LISTING_BYTES, shown(url)):
            data += piece
            if len(data) > MAX_LISTING_BYTES:
                raise StartupError(f"{shown(url)}: is over {MAX_LISTING_BYTES} bytes", code="BadManifest")
    finally:
        client.done(answer)
    sha256 = hashlib.sha256(data).hexdigest()
    if address.sha256 not in (None, sha256):
        raise StartupError(f"{shown(url)}: its sha256 is not the one in the URL", code="CorruptDownload")
    listed = {entry.path: entry for entry in read_listing(bytes(data), shown(url))}
    return sha256, tuple(listed[path] for path in choose_files(listed, shown(url)))
