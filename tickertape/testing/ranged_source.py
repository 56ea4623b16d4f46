"""RangedSourceConformance: what every RangedSource and its Origin must do, written once.

class TestMine(RangedSourceConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls):
        return RangedSubject(MySource(), good="mine://a/model", bad="mine://nothing", files={"config.json": b"{}"})
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath

import pytest
from msgspec import structs

from tickertape.plugins import (
    CHUNK_BYTES,
    FileEntry,
    Manifest,
    Origin,
    OriginChanged,
    OriginError,
    RangedSource,
    StartupError,
)

__all__ = ["RangedSourceConformance", "RangedSubject"]

_NUM_THREADS = 8
_MIN_BYTES = 4096
_MAX_WAIT_S = 5.0


@dataclass(frozen=True)
class RangedSubject:
    """A source under test: a URI of a small model, one of none, and what the model's files hold. One of them has 4 KiB
    or more. `pinned` is a URI of the same model that means the same for ever, if the source has such."""

    source: RangedSource
    good: str
    bad: str
    files: Mapping[str, bytes]
    pinned: str | None = None


class RangedSourceConformance:
    """Override `subject`."""

    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> RangedSubject:
        raise pytest.UsageError("a subclass of RangedSourceConformance overrides the fixture `subject`")

    def test_schemes_are_words(self, subject: RangedSubject) -> None:
        schemes = subject.source.schemes
        assert isinstance(subject.source, RangedSource)
        assert isinstance(schemes, tuple)
        assert schemes
        assert all(scheme == scheme.lower() and "/" not in scheme and ":" not in scheme for scheme in schemes)
        assert subject.source.name

    def test_a_uri_means_the_same_again(self, subject: RangedSubject) -> None:
        manifest = subject.source.resolve(subject.good)
        assert manifest == subject.source.resolve(subject.good)
        assert manifest.uri == subject.good
        assert manifest.directory is None, "files that lie here already need no ranges"

    def test_what_is_pinned_is_known_from_the_uri(self, subject: RangedSubject) -> None:
        subject.source.prepare()
        for uri in (subject.good, subject.bad, f"{subject.source.schemes[0]}://"):
            assert subject.source.pinned(uri) in (True, False)
        if subject.pinned is not None:
            assert subject.source.pinned(subject.pinned)
            assert subject.source.resolve(subject.pinned).files

    def test_paths_stay_inside_the_model(self, subject: RangedSubject) -> None:
        paths = [PurePosixPath(entry.path) for entry in subject.source.resolve(subject.good).files]
        assert len(set(paths)) == len(paths)
        assert not any(path.is_absolute() or ".." in path.parts for path in paths)
        assert {str(path) for path in paths} == set(subject.files)

    def test_what_is_not_there_is_said_in_one_line(self, subject: RangedSubject) -> None:
        with pytest.raises(StartupError) as refused:
            subject.source.resolve(subject.bad)
        assert refused.value.message
        assert "\n" not in refused.value.message
        assert not isinstance(refused.value, OriginError), "it will not be there later either"

    def test_sizes_and_digests_are_those_of_the_files(self, subject: RangedSubject) -> None:
        for entry in subject.source.resolve(subject.good).files:
            data = subject.files[entry.path]
            assert entry.size_bytes == len(data)
            assert entry.sha256 in (None, hashlib.sha256(data).hexdigest())
            assert entry.git_sha1 in (None, hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest())
            chunks = [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]
            assert entry.chunk_sha256 in ((), tuple(hashlib.sha256(chunk).hexdigest() for chunk in chunks))

    def test_every_file_comes_whole(self, subject: RangedSubject) -> None:
        with _opened(subject) as (manifest, origin):
            for entry in manifest.files:
                assert _read(origin, entry, 0, None) == subject.files[entry.path]
                assert _read(origin, entry, 0, entry.size_bytes) == subject.files[entry.path]

    def test_any_range_comes(self, subject: RangedSubject) -> None:
        with _opened(subject) as (manifest, origin):
            entry, data = _large(subject, manifest)
            for start, end in _ranges(len(data)):
                assert _read(origin, entry, start, end) == data[start:end]
            assert _read(origin, entry, len(data) - 7, None) == data[-7:]

    def test_readers_do_not_disturb_each_other(self, subject: RangedSubject) -> None:
        """In turns on one thread: a piece stays as it is while others are read."""
        with _opened(subject) as (manifest, origin):
            entry, data = _large(subject, manifest)
            readers = [origin.read(entry, number * 101, len(data)) for number in range(_NUM_THREADS)]
            pieces = [next(reader) for reader in readers]
            for number, (reader, piece) in enumerate(zip(readers, pieces, strict=True)):
                assert bytes(piece) == data[number * 101 :][: len(piece)]
                reader.close()

    def test_threads_read_at_once(self, subject: RangedSubject) -> None:
        """All have begun before one of them ends."""
        with _opened(subject) as (manifest, origin):
            entry, data = _large(subject, manifest)
            begun = threading.Barrier(_NUM_THREADS, timeout=60)

            def read(number: int) -> bool:
                start = number * 101
                try:
                    with closing(origin.read(entry, start, len(data) - number)) as pieces:
                        first = bytes(next(pieces))
                        begun.wait()
                        return first + b"".join(map(bytes, pieces)) == data[start : len(data) - number]
                except BaseException:
                    begun.abort()
                    raise

            with ThreadPoolExecutor(_NUM_THREADS) as pool:
                assert all(list(pool.map(read, range(_NUM_THREADS))))

    def test_a_reader_that_stops_disturbs_nobody(self, subject: RangedSubject) -> None:
        with _opened(subject) as (manifest, origin):
            entry, data = _large(subject, manifest)
            for _ in range(2 * _NUM_THREADS):
                pieces = origin.read(entry, 1, len(data))
                assert len(next(pieces)) > 0
                pieces.close()
            assert _read(origin, entry, 5, 99) == data[5:99]

    def test_what_lies_beyond_the_end_is_an_error(self, subject: RangedSubject) -> None:
        """Fewer bytes than were asked for are never passed off as all of them."""
        with _opened(subject) as (manifest, origin):
            entry, data = _large(subject, manifest)
            larger = structs.replace(entry, size_bytes=len(data) + 10)
            with pytest.raises(StartupError):
                _read(origin, larger, len(data) - 5, len(data) + 5)

    def test_a_file_that_was_replaced_is_told(self, subject: RangedSubject) -> None:
        with _opened(subject) as (manifest, origin):
            entry, data = _large(subject, manifest)
            if entry.etag is None:
                pytest.skip("its files are known by their digests, not by etags")
            other = structs.replace(entry, etag='"another"')
            for start, end in ((0, len(data)), (1, len(data))):
                with pytest.raises(OriginChanged):
                    _read(origin, other, start, end)

    def test_a_file_that_is_not_there_is_said_in_one_line(self, subject: RangedSubject) -> None:
        with _opened(subject) as (_, origin):
            with pytest.raises(StartupError) as refused:
                _read(origin, FileEntry("no-such-file.json", 10), 0, None)
            assert "\n" not in refused.value.message

    def test_closing_leaves_nothing_behind(self, subject: RangedSubject) -> None:
        """No thread, file or socket but what a library keeps for all of the process; the other end of a connection may
        take a moment to see that it is gone."""
        manifest = subject.source.resolve(subject.good)
        self._open_and_close(subject, manifest)
        before, limit = _kept(), time.monotonic() + _MAX_WAIT_S
        for _ in range(4):
            self._open_and_close(subject, manifest)
        while any(late > early for late, early in zip(_kept(), before, strict=True)):
            assert time.monotonic() < limit, f"threads and descriptors were {before}, and now are {_kept()}"
            time.sleep(0.01)

    def _open_and_close(self, subject: RangedSubject, manifest: Manifest) -> None:
        origin = subject.source.open(manifest)
        entry, data = _large(subject, manifest)
        stopped = origin.read(entry, 1, len(data))
        next(stopped)
        assert _read(origin, entry, 0, 10) == data[:10]
        stopped.close()
        origin.close()
        origin.close()


@contextmanager
def _opened(subject: RangedSubject) -> Iterator[tuple[Manifest, Origin]]:
    manifest = subject.source.resolve(subject.good)
    with closing(subject.source.open(manifest)) as origin:
        yield manifest, origin


def _read(origin: Origin, entry: FileEntry, start: int, end: int | None) -> bytes:
    found = bytearray()
    with closing(origin.read(entry, start, end)) as pieces:
        for piece in pieces:
            assert isinstance(piece, memoryview)
            found += piece
    return bytes(found)


def _kept() -> tuple[int, int]:
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


def _large(subject: RangedSubject, manifest: Manifest) -> tuple[FileEntry, bytes]:
    entry = max(manifest.files, key=lambda entry: len(subject.files[entry.path]))
    assert len(subject.files[entry.path]) >= _MIN_BYTES, "the subject needs a file of 4 KiB"
    return entry, subject.files[entry.path]


def _ranges(size: int) -> list[tuple[int, int]]:
    middle = size // 2
    return [(0, 1), (0, 100), (1, 2), (middle, middle + 1000), (size - 1, size), (1, size), (0, size - 1), (7, 7)]
