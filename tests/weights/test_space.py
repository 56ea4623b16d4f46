"""Room before bytes are written: counted, made, or refused with the sum."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from tickertape.core.errors import StartupError
from tickertape.weights.space import Budget, Room, free_bytes, human
from tickertape.weights.store import Recipe, Store
from tickertape.weights.usage import survey

KIB = 1024


class Disk:
    """A file system of a certain size that holds nothing but the store."""

    def __init__(self, root: Path, size_bytes: int) -> None:
        self.root = root
        self.size_bytes = size_bytes

    def free(self, path: Path) -> int:
        assert path == self.root
        return self.size_bytes - sum(file.stat().st_size for file in path.glob("objects/??/*"))


def fill(root: Path, name: str, size_bytes: int, days: float) -> Store:
    """A model, held by the store that is returned."""
    store, recipe = Store(root), Recipe("fetch", {"uri": name, "revision": ""})
    with store.workspace(recipe) as work:
        (work / "draft").write_bytes((name * size_bytes)[:size_bytes].encode())
        digest = hashlib.sha256((work / "draft").read_bytes()).hexdigest()
        store.objects.adopt(work / "draft", digest)
    snapshot = store.publish(recipe, {"f": digest})
    then = (root / "used" / snapshot.path.name).stat().st_mtime - days * 86400
    os.utime(root / "used" / snapshot.path.name, (then, then))
    return store


def room(root: Path, disk: Disk, **budget: int) -> Room:
    return Room(Store(root), Budget(**{"reserve_bytes": 0} | budget), free=disk.free)


def names(root: Path) -> set[str]:
    return {model.uri for model in survey(Store(root)).models()}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, days in (("a", 9), ("b", 5), ("c", 1)):
        fill(tmp_path, name, 10 * KIB, days).close()
    return tmp_path


@pytest.mark.parametrize(
    ("wanted", "reserve", "left"),
    [(10, 0, "abc"), (11, 0, "bc"), (10, 1, "bc"), (0, 10, "abc"), (25, 5, "c"), (40, 0, "")],
)
def test_as_much_is_removed_as_is_needed(root: Path, wanted: int, reserve: int, left: str) -> None:
    room(root, Disk(root, 40 * KIB), reserve_bytes=reserve * KIB).make_room(wanted * KIB)
    assert names(root) == set(left)


def test_a_refusal_shows_the_sum(root: Path) -> None:
    user = fill(root, "d", 20 * KIB, 0)
    with pytest.raises(StartupError) as caught:
        room(root, Disk(root, 60 * KIB), reserve_bytes=2 * KIB).make_room(50 * KIB)
    assert caught.value.code == "NoSpace"
    assert caught.value.message == (
        "no space in the weights store: 50.0 KiB are needed and 2.0 KiB kept in reserve, 40.0 KiB are free and 0 B"
        " could be removed"
    )
    user.close()
    room(root, Disk(root, 60 * KIB), reserve_bytes=2 * KIB).make_room(50 * KIB)
    assert names(root) == set()


def test_what_may_not_be_removed_is_said(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tickertape.weights.holds.is_local", lambda _: False)
    with pytest.raises(StartupError) as caught:
        room(root, Disk(root, 40 * KIB)).make_room(20 * KIB)
    assert caught.value.code == "NoSpace"
    assert "shared with other computers" in caught.value.message
    assert "\n" not in caught.value.message
    assert names(root) == set("abc")


@pytest.mark.parametrize(
    ("coming", "high", "low", "left"),
    [
        (0, 30, None, "abc"),
        (0, 29, None, "bc"),
        (10, 40, 30, "abc"),
        (11, 40, 31, "bc"),
        (1, 30, 11, "c"),
        (9, 5, 1, ""),
    ],
)
def test_from_the_high_mark_on_the_store_is_brought_to_the_low_one(
    root: Path, coming: int, high: int, low: int | None, left: str
) -> None:
    budget = {"high_bytes": high * KIB} | ({} if low is None else {"low_bytes": low * KIB})
    room(root, Disk(root, 1 << 30), **budget).make_room(coming * KIB)
    assert names(root) == set(left)


def test_the_low_mark_is_nine_tenths_when_not_told() -> None:
    assert Budget(high_bytes=100).goal_bytes == 90
    assert Budget().goal_bytes is None


def test_tending_keeps_the_bound_and_what_is_in_use(root: Path) -> None:
    user = Store(root)
    assert user.find(Recipe("fetch", {"uri": "a", "revision": ""}))
    room(root, Disk(root, 1 << 30), high_bytes=15 * KIB).tend()
    assert names(root) == {"a"}
    user.close()


def test_free_space_is_that_of_the_disk_of_a_store_that_does_not_exist_yet(tmp_path: Path) -> None:
    found = os.statvfs(tmp_path)
    assert free_bytes(tmp_path / "not" / "yet") == pytest.approx(found.f_bavail * found.f_frsize, rel=0.2)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1048575, "1.0 MiB"),
        (40 << 30, "40.0 GiB"),
        (3 << 50, "3072.0 TiB"),
    ],
)
def test_bytes_for_people(num_bytes: int, text: str) -> None:
    assert human(num_bytes) == text
