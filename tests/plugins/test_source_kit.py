"""The kit of ranged sources: a good one passes, each rule has one that breaks it."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest
from msgspec import structs

from tickertape.plugins import FileEntry, Manifest, OriginChanged, OriginError, StartupError
from tickertape.testing.ranged_source import RangedSourceConformance, RangedSubject

Rule = Callable[..., None]

FILES = {"config.json": b'{"a": 1}', "model.safetensors": bytes(range(256)) * 40}


class MemoryOrigin:
    """A good one: files from a dictionary, in pieces of one buffer."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = files

    def read(self, entry: FileEntry, start: int, end: int | None) -> Generator[memoryview, None, None]:
        if entry.path not in self.files:
            raise StartupError(f"{entry.path}: not found", code="NotFound")
        data = self.files[entry.path]
        if entry.etag not in (None, f'"{len(data)}"'):
            raise OriginChanged(f"{entry.path}: replaced")
        end = len(data) if end is None else end
        if end > len(data):
            raise OriginChanged(f"{entry.path}: too short")
        buffer = bytearray(1000)
        for at in range(start, end, len(buffer)):
            size = min(len(buffer), end - at)
            buffer[:size] = data[at : at + size]
            yield memoryview(buffer)[:size]

    def close(self) -> None: ...


class Memory:
    name = "memory"
    schemes: tuple[str, ...] = ("memory",)
    origin: type[MemoryOrigin] = MemoryOrigin

    def prepare(self) -> None: ...

    def pinned(self, uri: str) -> bool:
        return uri.endswith("@1")

    def resolve(self, uri: str) -> Manifest:
        if not uri.startswith("memory://model"):
            raise StartupError(f"no such model: {uri}", code="NotFound")
        return Manifest(uri, "1", tuple(self.entry(path, data) for path, data in FILES.items()))

    def entry(self, path: str, data: bytes) -> FileEntry:
        return FileEntry(path, len(data), hashlib.sha256(data).hexdigest(), etag=f'"{len(data)}"')

    def open(self, manifest: Manifest) -> MemoryOrigin:
        return self.origin(FILES)


def in_memory(source: Memory) -> RangedSubject:
    return RangedSubject(source, "memory://model", "memory://nothing", FILES, pinned="memory://model@1")


class TestMemory(RangedSourceConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> RangedSubject:
        return in_memory(Memory())


class Shouts(Memory):
    schemes = ("Memory://",)


class ChangesItsMind(Memory):
    num_asked = 0

    def resolve(self, uri: str) -> Manifest:
        self.num_asked += 1
        return structs.replace(super().resolve(uri), revision=str(self.num_asked))


class PinsNothing(Memory):
    def pinned(self, uri: str) -> bool:
        return False


class AsksWhetherItIsPinned(Memory):
    def pinned(self, uri: str) -> bool:
        return self.resolve(uri).revision == "1"


class Escapes(Memory):
    def entry(self, path: str, data: bytes) -> FileEntry:
        return structs.replace(super().entry(path, data), path=f"../{path}")


class FindsEverything(Memory):
    def resolve(self, uri: str) -> Manifest:
        return super().resolve("memory://model")


class Hopes(Memory):
    def resolve(self, uri: str) -> Manifest:
        try:
            return super().resolve(uri)
        except StartupError as error:
            raise OriginError(error.message) from error


class HasTheWrongDigest(Memory):
    def entry(self, path: str, data: bytes) -> FileEntry:
        return structs.replace(super().entry(path, data), git_sha1=hashlib.sha1(data).hexdigest())


class KnowsNoSize(Memory):
    def entry(self, path: str, data: bytes) -> FileEntry:
        return structs.replace(super().entry(path, data), size_bytes=None)


class LosesTheEnd(Memory):
    class origin(MemoryOrigin):
        def read(self, entry: FileEntry, start: int, end: int | None) -> Generator[memoryview, None, None]:
            return super().read(entry, start, len(self.files[entry.path]) - 1 if end is None else end)


class ReadsOneMore(Memory):
    class origin(MemoryOrigin):
        def read(self, entry: FileEntry, start: int, end: int | None) -> Generator[memoryview, None, None]:
            size = len(self.files.get(entry.path, b""))
            return super().read(entry, start, None if end is None or end >= size else end + 1)


class SharesABuffer(Memory):
    class origin(MemoryOrigin):
        def __init__(self, files: Mapping[str, bytes]) -> None:
            super().__init__(files)
            self.buffer = bytearray(1000)

        def read(self, entry: FileEntry, start: int, end: int | None) -> Generator[memoryview, None, None]:
            for piece in super().read(entry, start, end):
                self.buffer[: len(piece)] = piece
                yield memoryview(self.buffer)[: len(piece)]


class OneAtATime(Memory):
    class origin(MemoryOrigin):
        def __init__(self, files: Mapping[str, bytes]) -> None:
            super().__init__(files)
            self.lock = threading.Lock()

        def read(self, entry: FileEntry, start: int, end: int | None) -> Generator[memoryview, None, None]:
            if not self.lock.acquire(timeout=0.05):
                raise OriginError("busy")
            try:
                yield from super().read(entry, start, end)
            finally:
                self.lock.release()


class RunsOutOfReaders(Memory):
    class origin(MemoryOrigin):
        def __init__(self, files: Mapping[str, bytes]) -> None:
            super().__init__(files)
            self.num_left = 12

        def read(self, entry: FileEntry, start: int, end: int | None) -> Generator[memoryview, None, None]:
            self.num_left -= 1
            assert self.num_left >= 0, "no more connections"
            yield from super().read(entry, start, end)
            self.num_left += 1


class ComesShort(Memory):
    class origin(MemoryOrigin):
        def read(self, entry: FileEntry, start: int, end: int | None) -> Generator[memoryview, None, None]:
            size = len(self.files.get(entry.path, b""))
            return super().read(entry, start, None if end is None else min(end, size))


class SeesNoChange(Memory):
    class origin(MemoryOrigin):
        def read(self, entry: FileEntry, start: int, end: int | None) -> Generator[memoryview, None, None]:
            return super().read(structs.replace(entry, etag=None), start, end)


class RaisesItsOwn(Memory):
    class origin(MemoryOrigin):
        def read(self, entry: FileEntry, start: int, end: int | None) -> Generator[memoryview, None, None]:
            if entry.path not in self.files:
                raise LookupError("nothing there")
            return super().read(entry, start, end)


class LeavesFilesOpen(Memory):
    opened: list[IO[bytes]] = []  # noqa: RUF012

    class origin(MemoryOrigin):
        def __init__(self, files: Mapping[str, bytes]) -> None:
            super().__init__(files)
            LeavesFilesOpen.opened.append(Path("/proc/self/status").open("rb"))  # noqa: SIM115


KIT = RangedSourceConformance
SOURCES: list[tuple[type[Memory], Rule]] = [
    (Shouts, KIT.test_schemes_are_words),
    (ChangesItsMind, KIT.test_a_uri_means_the_same_again),
    (PinsNothing, KIT.test_what_is_pinned_is_known_from_the_uri),
    (AsksWhetherItIsPinned, KIT.test_what_is_pinned_is_known_from_the_uri),
    (Escapes, KIT.test_paths_stay_inside_the_model),
    (FindsEverything, KIT.test_what_is_not_there_is_said_in_one_line),
    (Hopes, KIT.test_what_is_not_there_is_said_in_one_line),
    (HasTheWrongDigest, KIT.test_sizes_and_digests_are_those_of_the_files),
    (KnowsNoSize, KIT.test_sizes_and_digests_are_those_of_the_files),
    (LosesTheEnd, KIT.test_every_file_comes_whole),
    (ReadsOneMore, KIT.test_any_range_comes),
    (SharesABuffer, KIT.test_readers_do_not_disturb_each_other),
    (OneAtATime, KIT.test_threads_read_at_once),
    (RunsOutOfReaders, KIT.test_a_reader_that_stops_disturbs_nobody),
    (ComesShort, KIT.test_what_lies_beyond_the_end_is_an_error),
    (SeesNoChange, KIT.test_a_file_that_was_replaced_is_told),
    (RaisesItsOwn, KIT.test_a_file_that_is_not_there_is_said_in_one_line),
    (LeavesFilesOpen, KIT.test_closing_leaves_nothing_behind),
]


@pytest.mark.parametrize(("broken", "rule"), SOURCES, ids=[f"{rule.__name__}-{b.__name__}" for b, rule in SOURCES])
def test_a_broken_source_is_caught(broken: type[Memory], rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tickertape.testing.ranged_source._MAX_WAIT_S", 0.0)
    subject: Any = replace(in_memory(Memory()), source=broken())
    try:
        with pytest.raises(
            (AssertionError, pytest.fail.Exception, LookupError, StartupError, threading.BrokenBarrierError)
        ):
            rule(KIT(), subject)
    finally:
        while LeavesFilesOpen.opened:
            LeavesFilesOpen.opened.pop().close()


def test_every_rule_has_something_that_breaks_it() -> None:
    assert {rule.__name__ for _, rule in SOURCES} == {name for name in vars(KIT) if name.startswith("test_")}
