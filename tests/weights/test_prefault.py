"""Prefaulting: what is cold is read once, what is warm is not read, and what does not fit is left alone."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tickertape.core.ports import Progress
from tickertape.weights.prefault import prefault

SIZE = (64 << 20) + 12345  # two pieces, the second not of whole pages


@pytest.fixture
def mapped(tmp_path: Path) -> Iterator[tuple[Path, mmap.mmap]]:
    """A file none of whose pages are in memory, and its mapping."""
    path = tmp_path / "weights"
    path.write_bytes(os.urandom(4096) * (SIZE // 4096 + 1))
    os.truncate(path, SIZE)
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        mapping = mmap.mmap(file.fileno(), SIZE, mmap.MAP_SHARED, mmap.PROT_READ)
    yield path, mapping
    mapping.close()


def resident_bytes(path: Path) -> int:
    """Of the mapping of `path` in this process."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    found = 0
    for line in lines:
        if line.endswith(f" {path}"):
            found += next(int(field.split()[1]) for field in lines if field.startswith("Rss:"))
    return found << 10


def test_what_is_cold_is_brought_in(mapped: tuple[Path, mmap.mmap]) -> None:
    path, mapping = mapped
    assert resident_bytes(path) == 0
    heard: list[Progress] = []
    num_read = prefault({path: mapping}, SIZE * 2, heard.append)
    if num_read == 0:
        pytest.skip("this file system keeps its files in memory")
    assert num_read >= SIZE
    assert resident_bytes(path) >= SIZE
    assert [(step.stage, step.done, step.total) for step in heard] == [
        ("prefault", 64 << 20, SIZE),
        ("prefault", SIZE, SIZE),
    ]
    assert prefault({path: mapping}, 0, heard.append) == 0  # warm: needs no memory and reads nothing


def test_what_does_not_fit_is_left(mapped: tuple[Path, mmap.mmap], caplog: pytest.LogCaptureFixture) -> None:
    path, mapping = mapped
    heard: list[Progress] = []
    prefault({path: mapping}, SIZE // 2, heard.append)
    if heard:
        pytest.skip("this file system keeps its files in memory")
    assert resident_bytes(path) == 0
    assert "not read in advance: 64 MiB of them are not in memory, and 32 MiB are free" in caplog.text


def test_it_can_be_broken_off(mapped: tuple[Path, mmap.mmap]) -> None:
    path, mapping = mapped

    def stop(_: Progress) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        prefault({path: mapping}, SIZE * 2, stop)
    assert resident_bytes(path) <= 64 << 20


def test_nothing_to_map() -> None:
    assert prefault({}, 0, lambda _: None) == 0
