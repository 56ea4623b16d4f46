"""What may still be taken: the machine's memory and what control groups leave of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tickertape.free_memory import free_memory

GIB = 1 << 30


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: {16 << 20} kB\nMemAvailable:   {8 << 20} kB\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/pod/container\n")
    return tmp_path


def limit(root: Path, group: str, *, most: str, current: int, inactive_file: int = 0) -> None:
    directory = root / "sys/fs/cgroup" / group
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "memory.max").write_text(f"{most}\n")
    (directory / "memory.current").write_text(f"{current}\n")
    (directory / "memory.stat").write_text(f"anon 5\ninactive_file {inactive_file}\n")


def test_without_limits_it_is_what_is_available(root: Path) -> None:
    assert free_memory(root) == (8 * GIB, "8192 MiB available")
    limit(root, "pod/container", most="max", current=GIB)
    assert free_memory(root).num_bytes == 8 * GIB


def test_the_tightest_group_counts(root: Path) -> None:
    limit(root, "pod/container", most=str(6 * GIB), current=GIB)
    limit(root, "pod", most=str(4 * GIB), current=GIB)
    found = free_memory(root)
    assert found.num_bytes == 3 * GIB
    assert found.explanation == "4096 MiB control group limit - 1024 MiB in use = 3072 MiB"


def test_page_cache_that_can_go_is_not_in_use(root: Path) -> None:
    limit(root, "pod/container", most=str(4 * GIB), current=3 * GIB, inactive_file=2 * GIB)
    assert free_memory(root).num_bytes == 3 * GIB


def test_a_group_over_its_limit_leaves_nothing(root: Path) -> None:
    limit(root, "pod/container", most=str(GIB), current=2 * GIB)
    assert free_memory(root).num_bytes == 0


def test_this_machine_has_some() -> None:
    assert 0 < free_memory().num_bytes < 1 << 50
