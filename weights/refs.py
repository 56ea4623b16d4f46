"""What is remembered of origins, for when they do not answer: small files in `refs/` that may be lost at any time."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import structs

from tickertape.core.sources import Manifest
from tickertape.weights.files import write_atomically
from tickertape.weights.uris import public

__all__ = ["Refs"]


class Refs:
    """Reading answers None for what is not known or cannot be read, writing does nothing where nothing can be written.
    Thread-safe."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "refs"

    def resolved(self, uri: str) -> Manifest | None:
        """What a URI resolved to last, of what then came whole."""
        with suppress(OSError, msgspec.DecodeError):
            kept = msgspec.json.decode(self._of_uri(uri).read_bytes(), type=Manifest)
            return structs.replace(kept, uri=uri)
        return None

    def note_resolved(self, manifest: Manifest) -> None:
        if self.resolved(manifest.uri) != manifest:
            with suppress(OSError):
                write_atomically(
                    self._of_uri(manifest.uri), msgspec.json.encode(structs.replace(manifest, uri=public(manifest.uri)))
                )

    def content(self, key: str) -> str | None:
        """The sha256 of a file for which the origin gave none; `key` is that of its partial."""
        with suppress(OSError, UnicodeDecodeError):
            sha256 = self._of_content(key).read_text("ascii")
            return sha256 if len(sha256) == 64 else None
        return None

    def note_content(self, key: str, sha256: str) -> None:
        with suppress(OSError):
            write_atomically(self._of_content(key), sha256.encode("ascii"))

    def _of_uri(self, uri: str) -> Path:
        return self._folder / "uris" / f"{hashlib.sha256(uri.encode()).hexdigest()}.json"

    def _of_content(self, key: str) -> Path:
        return self._folder / "contents" / key
