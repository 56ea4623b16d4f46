"""A model directory with some of its files replaced by derived ones: the rest are links, nothing is copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tickertape.core.sources import FileEntry
from tickertape.weights.store import Recipe, Snapshot, Store

__all__ = ["ModelFiles"]


class ModelFiles:
    """The files of a model: of a snapshot of the store (with digests), or the operator's own (without)."""

    def __init__(self, directory: Path, files: Sequence[FileEntry]) -> None:
        self.directory = directory
        self._files = {entry.path: entry for entry in files}

    def identity(self, path: str) -> str:
        """What tells this file from any other: its digest, or else its inode. A file of the operator's own is not read
        through to know it."""
        entry = self._files.get(path)
        if entry is not None and entry.sha256 is not None:
            return entry.sha256
        file = self.directory / path
        stat = file.stat()
        return f"{file}:{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}:{stat.st_ino}"

    def overlaid(self, store: Store, made: Mapping[str, str]) -> Snapshot:
        """A snapshot of these files with the objects `made` (path -> sha256) over them. Raises OSError."""
        rest = [entry for path, entry in self._files.items() if path not in made]
        inputs = {f"file:{entry.path}": self.identity(entry.path) for entry in rest}
        recipe = Recipe("overlay", inputs | {f"made:{path}": sha256 for path, sha256 in made.items()})
        if (found := store.find(recipe)) is not None:
            return found
        objects = {entry.path: entry.sha256 for entry in rest if entry.sha256 is not None} | dict(made)
        own = {entry.path: self.directory / entry.path for entry in rest if entry.sha256 is None}
        with store.lock(recipe):
            return store.find(recipe) or store.publish(recipe, objects, own)
