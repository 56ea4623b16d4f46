"""Weights mapped while they are still being fetched: a tensor is to be had once its file is verified."""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tickertape.core.errors import StartupError
from tickertape.weights.arriving import arrivals
from tickertape.weights.mapping import MappedWeights

A = np.arange(4096, dtype=np.float32)
B = np.full((2048,), 7, np.float32)


class Fetch:
    """A store with the weight files of a model half-way: partial data of full size, with headers and nothing else, and
    a staging directory of links to them."""

    def __init__(self, store: Path, finished: Path) -> None:
        self.store = store
        self.staging = store / "tmp" / "staging"
        self.staging.mkdir(parents=True)
        self.content = {path.name: path.read_bytes() for path in sorted(finished.glob("*.safetensors"))}
        for name, content in self.content.items():
            partial = self.partial(name)
            partial.parent.mkdir(parents=True)
            header = content[: 8 + int.from_bytes(content[:8], "little")]
            partial.write_bytes(header + bytes(len(content) - len(header)))
            (self.staging / name).symlink_to(os.path.relpath(partial, self.staging))

    def partial(self, name: str) -> Path:
        return self.store / "partial" / hashlib.sha256(self.content[name]).hexdigest() / "data"

    def object(self, name: str) -> Path:
        digest = hashlib.sha256(self.content[name]).hexdigest()
        return self.store / "objects" / digest[:2] / digest

    def write(self, name: str) -> None:
        """The bytes come; nobody has verified them."""
        with self.partial(name).open("r+b") as file:
            file.write(self.content[name])

    def publish(self, name: str) -> None:
        self.object(name).parent.mkdir(parents=True, exist_ok=True)
        self.partial(name).rename(self.object(name))

    def come(self, name: str, _: float = 0.0) -> None:
        """All of it, as soon as somebody waits."""
        self.write(name)
        self.publish(name)

    def publish_another(self, name: str) -> None:
        """The same file, by way of another process."""
        self.object(name).parent.mkdir(parents=True, exist_ok=True)
        self.object(name).write_bytes(self.content[name])
        self.partial(name).unlink()


@pytest.fixture
def fetch(models: Any, tmp_path: Path) -> Fetch:
    files = {"model-00001-of-00002.safetensors": {"a": A}, "model-00002-of-00002.safetensors": {"b": B}}
    return Fetch(tmp_path / "store", models.directory("m", files))


ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def when_waited(times: int, act: Callable[[], None]) -> Callable[[str, float], None]:
    """Acts when somebody has waited that often."""
    num_naps = 0

    def waiting(name: str, _: float) -> None:
        nonlocal num_naps
        num_naps += 1
        if num_naps == times:
            act()
        assert num_naps < 100, f"{name} never came"

    return waiting


def refuse(name: str, _: float) -> None:
    raise InterruptedError(name)


def test_tensors_come_with_their_files(fetch: Fetch) -> None:
    waited: list[str] = []

    def arrive(name: str, _: float) -> None:
        waited.append(name)
        fetch.write(name)  # written is not verified
        if waited.count(name) == 2:
            fetch.publish(name)

    weights = MappedWeights(fetch.staging, arrive)
    assert list(weights.names()) == ["a", "b"]
    assert (weights.shape("b"), weights.dtype("b")) == ((2048,), "F32")
    assert waited == []
    np.testing.assert_array_equal(weights.open("a"), A)
    assert waited == [ONE, ONE]
    np.testing.assert_array_equal(weights.open("a"), A)
    assert waited == [ONE, ONE]
    np.testing.assert_array_equal(weights.open("b"), B)
    assert waited == [ONE, ONE, TWO, TWO]
    weights.close()


def test_the_mapping_of_the_partial_file_is_that_of_the_object(fetch: Fetch) -> None:
    """The same inode: nothing is mapped, read or held twice."""
    weights = MappedWeights(fetch.staging, fetch.come)
    weights.open("a")
    mapped = Path("/proc/self/maps").read_text()
    assert mapped.count(str(fetch.object(ONE))) == 1
    assert str(fetch.partial(ONE)) not in mapped
    weights.close()


def test_bytes_that_are_not_verified_are_never_seen(fetch: Fetch) -> None:
    fetch.write(ONE)
    with pytest.raises(InterruptedError, match=ONE):
        MappedWeights(fetch.staging, refuse).open("a")


def test_another_file_that_took_its_place_is_mapped_instead(fetch: Fetch) -> None:
    weights = MappedWeights(fetch.staging, when_waited(2, lambda: fetch.publish_another(ONE)))
    np.testing.assert_array_equal(weights.open("a"), A)  # the partial one holds zeros
    weights.close()


def test_files_that_came_before_anybody_looked(fetch: Fetch) -> None:
    """The links are dangling then."""
    fetch.come(ONE)
    weights = MappedWeights(fetch.staging, when_waited(1, lambda: fetch.come(TWO)))
    np.testing.assert_array_equal(weights.open("a"), A)
    np.testing.assert_array_equal(weights.open("b"), B)
    weights.close()


def test_a_fetch_that_is_gone_is_named(fetch: Fetch) -> None:
    fetch.partial(TWO).unlink()
    with pytest.raises(StartupError, match=f"{TWO}: its download is gone") as refused:
        MappedWeights(fetch.staging, refuse)
    assert refused.value.code == "MissingShard"


def test_an_ordinary_directory_has_nothing_to_wait_for(models: Any) -> None:
    directory = models.directory("plain", {"model.safetensors": {"a": A}})
    assert arrivals(directory) == {}
    weights = MappedWeights(directory, refuse)
    np.testing.assert_array_equal(weights.open("a"), A)
    weights.close()


def test_only_whole_files_are_offered_for_reading_in_advance(fetch: Fetch) -> None:
    weights = MappedWeights(fetch.staging, fetch.come)
    assert list(weights.mappings) == []
    weights.open("b")
    assert [path.name for path in weights.mappings] == [TWO]
    weights.close()


def test_threads_wait_for_one_file_together(fetch: Fetch) -> None:
    publish = when_waited(3, lambda: fetch.come(ONE))
    weights = MappedWeights(fetch.staging, publish)
    found: list[bool] = []
    threads = [threading.Thread(target=lambda: found.append(bool((weights.open("a") == A).all()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 4
    weights.close()


def in_use(path: Path) -> bool:
    """As a collector of garbage asks."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def test_what_is_mapped_is_in_use_until_the_last_view_is_gone(fetch: Fetch) -> None:
    weights = MappedWeights(fetch.staging, fetch.come)
    assert in_use(fetch.partial(ONE))
    view = weights.open("a")
    assert in_use(fetch.object(ONE))
    weights.close()
    assert in_use(fetch.object(ONE))
    del view
    assert not in_use(fetch.object(ONE))


def test_no_descriptor_is_left(fetch: Fetch) -> None:
    before = len(os.listdir("/proc/self/fd"))
    weights = MappedWeights(fetch.staging, fetch.come)
    weights.open("a")
    weights.close()
    assert len(os.listdir("/proc/self/fd")) == before
