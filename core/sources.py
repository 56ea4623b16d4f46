"""Where weights come from: what a source says about a model's files, and how it hands them over.

A source knows how to name and read files; it knows nothing of the store, which verifies what came and publishes it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from msgspec import Struct

from tickertape.core.ports import Progress

__all__ = ["CHUNK_BYTES", "AnySource", "FileEntry", "FileSink", "Manifest", "Origin", "RangedSource", "WeightSource"]

CHUNK_BYTES: Final = 16 << 20
"""What a large file is fetched, accounted for and offered to peers by."""


class FileEntry(Struct, frozen=True, omit_defaults=True):
    """A file of a model. `path` is relative, with forward slashes. None stands for what is not known before the file
    has come (a file inside an archive has no size of its own).

    `git_sha1` is the digest of the git blob, for origins that know no other; `chunk_sha256` are the digests of its
    pieces of CHUNK_BYTES, in order, where the manifest carries them; `etag` is the validator that pins the file at its
    origin, as If-Match wants it.
    """

    path: str
    size_bytes: int | None = None
    sha256: str | None = None
    git_sha1: str | None = None
    chunk_sha256: tuple[str, ...] = ()
    etag: str | None = None


class Manifest(Struct, frozen=True):
    """The files behind a URI at one immutable `revision` (a commit, a version, an etag; "" where there is none).

    With `directory`, the files lie there already and are used in place: nothing is fetched or copied.
    """

    uri: str
    revision: str
    files: tuple[FileEntry, ...]
    directory: str | None = None


class FileSink(Protocol):
    """Takes in the bytes of the files of one manifest. Thread-safe across different files; pieces of one file may come
    in any order."""

    @property
    def scratch(self) -> Path:
        """An empty directory on the store's file system, for what must lie whole before it can be read (an archive).
        It is gone when the fetch ends, however it ends."""
        ...

    def missing(self, entry: FileEntry) -> Sequence[tuple[int, int | None]]:
        """The byte ranges [start, end) still to come, in order; none when the file is held already. An end of None
        means to the end of the file."""
        ...

    def write(self, entry: FileEntry, offset: int, data: bytes | memoryview) -> None: ...

    def finish(self, entry: FileEntry) -> None:
        """Says that the file is whole. `entry` may know more by now than the manifest's did. Raises StartupError with
        code CorruptDownload when size or digest differ from what it says; nothing is published then."""
        ...


class Origin(Protocol):
    """The bytes behind one manifest, to be read from any offset. Any number of threads read at once."""

    def read(self, entry: FileEntry, start: int, end: int | None) -> Generator[memoryview, None, None]:
        """The bytes [start, end) of a file, in order, in pieces of any length; an end of None means to its end. A piece
        is valid until the next one is asked for. Closing the generator ends the transfer.

        Raises OriginBusy, OriginChanged (also when a range was asked for and something else came), OriginError for
        what may pass, and StartupError with a reason (Unauthorized, Gated, NotFound, ...) for what will not.
        """
        ...

    def close(self) -> None:
        """Ends what connections are left. May be called twice."""
        ...


@runtime_checkable
class RangedSource(Protocol):
    """A way to get weights whose files can be read from any offset. The store then does the fetching itself: in
    chunks, resumable, from peers before the origin, within the cluster's slots."""

    @property
    def name(self) -> str: ...

    @property
    def schemes(self) -> tuple[str, ...]:
        """As of a `WeightSource`."""
        ...

    def prepare(self) -> None:
        """Imports what the other methods need, and asks nobody. Called before a slot is taken: who holds one is to ask
        at once. Raises nothing; what is missing is for the others to say."""
        ...

    def pinned(self, uri: str) -> bool:
        """Whether `uri` itself names the same bytes for ever (a commit, not a branch): a store that has them then asks
        nobody."""
        ...

    def resolve(self, uri: str) -> Manifest:
        """Pins what `uri` means now. Raises StartupError in one line; OriginError (OriginBusy) when it may work later,
        so that a store which has an older answer can go on with that."""
        ...

    def open(self, manifest: Manifest) -> Origin:
        """Asks nobody yet."""
        ...


class WeightSource(Protocol):
    """A way to get weights, chosen by the scheme of the model's URI. Called in the fetcher process, from one thread.

    Both methods raise StartupError in one line when they cannot (PathNotFound, PackageNotFound, FetchFailed, ...).
    """

    @property
    def name(self) -> str: ...

    @property
    def schemes(self) -> tuple[str, ...]:
        """The URI schemes it takes ("wheel", "hf", "s3"), without "://". A bare path goes to the one with "file"."""
        ...

    def resolve(self, uri: str) -> Manifest:
        """Pins what `uri` means now. May ask its origin, but must not where the URI is immutable by itself, so that a
        store that is complete works offline."""
        ...

    def fetch(self, manifest: Manifest, sink: FileSink) -> Generator[Progress, None, None]:
        """Brings every file that `sink` misses, yielding progress; done when the generator ends. Closing it early
        cancels and leaves no process or connection behind."""
        ...


AnySource = WeightSource | RangedSource
"""What plugins register."""
