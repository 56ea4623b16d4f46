"""What an origin knows of the files it serves: their sizes and digests, by commit."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

__all__ = ["Commit", "File", "Repository", "read_commit"]

_PIECE_BYTES: Final = 1 << 20


class File(Struct, frozen=True):
    """`git_sha1` is the digest of the git blob: of the content, or for large files of the pointer in its place."""

    path: Path
    size_bytes: int
    sha256: str
    git_sha1: str
    large: bool

    @property
    def etag(self) -> str:
        return f'"{self.sha256 if self.large else self.git_sha1}"'


class Commit(Struct, frozen=True):
    sha: str
    files: Mapping[str, File]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files.values())

    def tree(self) -> list[dict[str, Any]]:
        """As the hub lists it."""
        return [_listed(name, file) for name, file in self.files.items()]

    def siblings(self, *, with_digests: bool) -> list[dict[str, Any]]:
        """As the hub describes a commit."""
        return [_sibling(name, file) if with_digests else {"rfilename": name} for name, file in self.files.items()]


class Repository:
    """Commits, and what `main` stands for."""

    def __init__(self, commit: Commit) -> None:
        self._commits = {commit.sha: commit}
        self.main = commit

    def move(self, commit: Commit) -> None:
        """`main` stands for this from now on; older commits stay."""
        self._commits[commit.sha] = commit
        self.main = commit

    def at(self, revision: str) -> Commit | None:
        return self.main if revision == "main" else self._commits.get(revision)


def read_commit(directory: Path) -> Commit:
    """All files in it, digested."""
    files = {
        str(path.relative_to(directory)): _digested(path) for path in sorted(directory.rglob("*")) if path.is_file()
    }
    digest = hashlib.sha1("".join(f"{name}{file.sha256}" for name, file in files.items()).encode())
    return Commit(digest.hexdigest(), files)


def _digested(path: Path) -> File:
    size_bytes, large = path.stat().st_size, path.suffix in (".safetensors", ".gguf")
    sha256, sha1 = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size_bytes)
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            sha256.update(piece)
            if not large:
                sha1.update(piece)
    if large:
        pointer = _pointer(sha256.hexdigest(), size_bytes)
        sha1 = hashlib.sha1(b"blob %d\0" % len(pointer) + pointer)
    return File(path, size_bytes, sha256.hexdigest(), sha1.hexdigest(), large)


def _pointer(sha256: str, size_bytes: int) -> bytes:
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size_bytes}\n".encode()


def _listed(name: str, file: File) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": name, "size": file.size_bytes, "oid": file.git_sha1}
    if file.large:
        pointer = len(_pointer(file.sha256, file.size_bytes))
        entry["lfs"] = {"oid": file.sha256, "size": file.size_bytes, "pointerSize": pointer}
    return entry


def _sibling(name: str, file: File) -> dict[str, Any]:
    entry: dict[str, Any] = {"rfilename": name, "size": file.size_bytes, "blobId": file.git_sha1}
    if file.large:
        pointer = len(_pointer(file.sha256, file.size_bytes))
        entry["lfs"] = {"sha256": file.sha256, "size": file.size_bytes, "pointerSize": pointer}
    return entry
