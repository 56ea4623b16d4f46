"""WeightSourceConformance: what every WeightSource must do, written once.

class TestMine(WeightSourceConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls):
        return SourceSubject(MySource(), good="mine://a/model", bad="mine://nothing", files={"config.json": b"{}"})
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

import pytest

from tickertape.plugins import FileEntry, Manifest, Progress, StartupError, WeightSource

__all__ = ["SourceSubject", "WeightSourceConformance"]


@dataclass(frozen=True)
class SourceSubject:
    """A source under test: a URI of a small model, one of none, and what the model's files hold."""

    source: WeightSource
    good: str
    bad: str
    files: Mapping[str, bytes]


@dataclass
class _Sink:
    """A FileSink in memory. `held` says how many bytes of each file are there from the start."""

    scratch: Path
    held: Mapping[str, bytes] = field(default_factory=dict)
    content: dict[str, bytearray] = field(default_factory=dict)
    finished: dict[str, FileEntry] = field(default_factory=dict)
    written: list[tuple[str, int, int]] = field(default_factory=list)

    def missing(self, entry: FileEntry) -> Sequence[tuple[int, int | None]]:
        have = len(self.held.get(entry.path, b""))
        return () if entry.path in self.finished or have == entry.size_bytes else ((have, entry.size_bytes),)

    def write(self, entry: FileEntry, offset: int, data: bytes | memoryview) -> None:
        assert entry.path not in self.finished, f"{entry.path} is written to after its end"
        file = self.content.setdefault(entry.path, bytearray(self.held.get(entry.path, b"")))
        if len(file) < offset:
            file.extend(bytes(offset - len(file)))
        file[offset : offset + len(data)] = data
        self.written.append((entry.path, offset, offset + len(data)))

    def finish(self, entry: FileEntry) -> None:
        self.finished[entry.path] = entry


@contextmanager
def _sink(held: Mapping[str, bytes] | None = None) -> Iterator[_Sink]:
    with TemporaryDirectory() as scratch:
        yield _Sink(Path(scratch), held or {})


class WeightSourceConformance:
    """Override `subject`."""

    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> SourceSubject:
        raise pytest.UsageError("a subclass of WeightSourceConformance overrides the fixture `subject`")

    def test_schemes_are_words(self, subject: SourceSubject) -> None:
        assert isinstance(subject.source.schemes, tuple)
        assert subject.source.schemes
        assert all(
            scheme == scheme.lower() and "/" not in scheme and ":" not in scheme for scheme in subject.source.schemes
        )
        assert subject.source.name

    def test_a_uri_means_the_same_again(self, subject: SourceSubject) -> None:
        manifest = subject.source.resolve(subject.good)
        assert manifest == subject.source.resolve(subject.good)
        assert manifest.uri == subject.good

    def test_paths_stay_inside_the_model(self, subject: SourceSubject) -> None:
        paths = [PurePosixPath(entry.path) for entry in subject.source.resolve(subject.good).files]
        assert len(set(paths)) == len(paths)
        assert not any(path.is_absolute() or ".." in path.parts for path in paths)
        assert {str(path) for path in paths} == set(subject.files)

    def test_what_is_not_there_is_said_in_one_line(self, subject: SourceSubject) -> None:
        with pytest.raises(StartupError) as refused:
            subject.source.resolve(subject.bad)
        assert refused.value.message
        assert "\n" not in refused.value.message

    def test_every_file_comes_whole(self, subject: SourceSubject) -> None:
        manifest = subject.source.resolve(subject.good)
        with _sink() as sink:
            steps = list(subject.source.fetch(manifest, sink))
            _check_files(subject, manifest, sink)
        assert all(0 <= step.done <= step.total for step in steps if step.total)

    def test_what_is_held_is_not_brought_again(self, subject: SourceSubject) -> None:
        """Half of the first file, and all of the others."""
        manifest = subject.source.resolve(subject.good)
        if manifest.directory is not None or any(entry.size_bytes is None for entry in manifest.files):
            pytest.skip("the source cannot go on in the middle")
        held = dict(subject.files)
        first = manifest.files[0].path
        half = len(held[first]) // 2
        held[first] = held[first][:half]
        with _sink(held) as sink:
            for _ in subject.source.fetch(manifest, sink):
                pass
            _check_files(subject, manifest, sink)
        assert all(path == first and start >= half for path, start, _ in sink.written)

    def test_closing_early_leaves_nothing_behind(self, subject: SourceSubject) -> None:
        manifest = subject.source.resolve(subject.good)
        threads, children = threading.active_count(), _children()
        with _sink() as sink:
            fetching = subject.source.fetch(manifest, sink)
            started = next(iter(fetching), None)
            fetching.close()
            assert started is None or isinstance(started, Progress)
            num_written = len(sink.written)
            assert (threading.active_count(), _children()) == (threads, children), "something still runs"
            assert len(sink.written) == num_written


def _check_files(subject: SourceSubject, manifest: Manifest, sink: _Sink) -> None:
    if manifest.directory is not None:
        assert not sink.written, "files that are used in place were copied"
        root = Path(manifest.directory)
        assert {path: (root / path).read_bytes() for path in subject.files} == dict(subject.files)
        return
    found = {path: bytes(sink.content.get(path, sink.held.get(path, b""))) for path in subject.files}
    assert found == dict(subject.files)
    complete = {path for path, data in sink.held.items() if data == subject.files[path]}
    assert set(sink.finished) | complete == set(subject.files), "a file was not finished"


def _children() -> int:
    return sum(
        len((thread / "children").read_text().split())
        for thread in Path("/proc/self/task").iterdir()
        if thread.exists()
    )
