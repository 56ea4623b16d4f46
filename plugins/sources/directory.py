"""Models that lie on this machine: a directory in Hugging Face layout, a safetensors file with what is read beside it,
or a GGUF file. Used in place, never copied."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tickertape.plugins import FileEntry, FileSink, Manifest, Progress, StartupError, WeightSource, hookimpl
from tickertape.plugins.sources.model_files import PICKLES, choose_files

__all__ = ["API", "DirectorySource", "register_weight_sources"]

API = (1, 0)


class DirectorySource:
    """Takes `file://` URIs; a bare path comes as one."""

    name = "directory"
    schemes = ("file",)

    def resolve(self, uri: str) -> Manifest:
        """Lists the files of the directory. A GGUF file is a directory with one file in it, a safetensors file one with
        no other weights. Raises StartupError: PathNotFound, UnsupportedFormat (part of a split file), PickleOnly,
        NotAModel, Unreadable."""
        parts = urlsplit(uri)
        if parts.netloc not in ("", "localhost"):
            raise StartupError(
                f"file:// names files of this machine, not of {parts.netloc!r}", code="UnsupportedSource"
            )
        path = Path(unquote(parts.path))
        if not path.exists():
            raise StartupError(f"path not found: {path}", code="PathNotFound")
        if path.is_dir():
            return Manifest(uri, "", _listing(path), str(path))
        if path.suffix in (".safetensors", ".gguf"):
            beside = {entry.path: entry for entry in _listing(path.parent)}
            chosen = choose_files(beside, path.parent.name, path.name)
            return Manifest(uri, "", tuple(beside[name] for name in chosen), str(path.parent))
        if path.suffix in PICKLES:
            raise StartupError(
                f"{path.name}: pickled weights are never read; convert to safetensors", code="PickleOnly"
            )
        raise StartupError(f"{path.name}: neither a model directory nor a safetensors or GGUF file", code="NotAModel")

    def fetch(self, manifest: Manifest, sink: FileSink) -> Generator[Progress, None, None]:
        """Nothing to do: the files are where they belong."""
        yield from ()


def _listing(directory: Path) -> tuple[FileEntry, ...]:
    try:
        files = sorted(path for path in directory.iterdir() if path.is_file())
        return tuple(FileEntry(path.name, path.stat().st_size) for path in files)
    except OSError as error:
        raise StartupError(f"{directory}: cannot be read: {error.strerror}", code="Unreadable") from error


@hookimpl
def register_weight_sources(register: Callable[[WeightSource], None]) -> None:
    register(DirectorySource())
