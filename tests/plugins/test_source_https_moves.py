"""A model behind a URL that is replaced while it is fetched: planned anew, and never published in parts of two."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.plugins.fake_origin import FakeOrigin, Fault, WebFile
from tests.weights.conftest import CONFIG, safetensors_bytes
from tests.weights.fetch_kit import ScriptedSlots, SimulatedClock
from tickertape.core.backend import ModelSpec
from tickertape.core.errors import StartupError
from tickertape.core.messages import FetchOptions
from tickertape.plugins.sources.https import HttpsSource
from tickertape.testing.tokenizers import byte_level_tokenizer
from tickertape.weights.fetch.fetching import Fetching
from tickertape.weights.materialize import materialize
from tickertape.weights.store import Store

NAME = "m/model.safetensors"
TOKENIZER = byte_level_tokenizer().to_str().encode()


def version(number: int, etag: str | None = "", last_modified: float | None = None) -> dict[str, WebFile]:
    """20 MiB, so that it comes in three ranges."""
    weights = safetensors_bytes({"a": np.full(5 << 20, number, np.float32)})
    config = json.dumps(CONFIG | {"version": number}).encode()
    later = None if last_modified is None else last_modified + number
    tag = etag and etag.format(number)
    files = {"config.json": config, "tokenizer.json": TOKENIZER, "model.safetensors": weights}
    return {f"m/{path}": WebFile(data, tag, later) for path, data in files.items()}


class Moving(dict[str, WebFile]):
    """What the web server has; `asked` is called before each answer about the weights, with the number of that."""

    def __init__(self, files: dict[str, WebFile], asked: Callable[[int], None]) -> None:
        super().__init__(files)
        self.num_asked = 0
        self._asked = asked

    def get(self, path: str, default: WebFile | None = None) -> WebFile | None:  # type: ignore[override]
        if path == NAME:
            self.num_asked += 1
            self._asked(self.num_asked)
        return super().get(path, default)


@pytest.fixture
def origin() -> Iterator[FakeOrigin]:
    with FakeOrigin() as origin:
        yield origin


class Site:
    def __init__(self, origin: FakeOrigin, root: Path) -> None:
        self.url = f"{origin.url}/{NAME}"
        self.store = Store(root)
        clock = SimulatedClock()
        self._fetching = Fetching(
            ScriptedSlots(clock),
            make_room=lambda _: None,
            options=FetchOptions(origin_connections=1),
            clock=clock,
            rng=random.Random(1).random,
        )

    def get(self) -> ModelSpec:
        sources = {"http": HttpsSource()}
        return materialize(self.url, store=self.store, sources=sources, report=lambda _: None, fetching=self._fetching)

    def objects(self) -> set[str]:
        found = {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in self.store.root.glob("objects/*/*")
        }
        assert all(name == digest for name, digest in found.items())
        return set(found)


def digests(files: dict[str, WebFile]) -> set[str]:
    return {hashlib.sha256(file.data).hexdigest() for file in files.values()}


@pytest.mark.parametrize("obeys", [True, False], ids=["412", "silent"])
@pytest.mark.parametrize("validators", [("",), ('W/"{}"',), (None, 1_700_000_000.0)], ids=["strong", "weak", "date"])
@pytest.mark.parametrize("at", [2, 3, 4], ids=["header", "body", "last"])
def test_a_model_that_is_replaced_between_ranges_comes_whole(
    origin: FakeOrigin, tmp_path: Path, at: int, validators: tuple[str | None, float], obeys: bool
) -> None:
    old, new = version(1, *validators), version(2, *validators)
    if not obeys:
        new = {path: WebFile(file.data, file.etag, file.last_modified, deaf=True) for path, file in new.items()}
    origin.web = moving = Moving(old, lambda number: moving.update(new) if number == at else None)
    site = Site(origin, tmp_path)
    spec = site.get()
    directory = Path(spec.path)
    assert {f"m/{path.name}": path.read_bytes() for path in directory.iterdir()} == {
        path: file.data for path, file in new.items()
    }
    assert moving.num_asked > at + 2
    assert len(list(tmp_path.glob("snapshots/*.json"))) == 1
    assert site.objects() <= digests(old) | digests(new)
    assert hashlib.sha256(old[NAME].data).hexdigest() not in site.objects()
    assert not list(tmp_path.glob("partial/*"))


def test_one_that_is_replaced_again_and_again_is_given_up(origin: FakeOrigin, tmp_path: Path) -> None:
    """However much of it comes in between: nothing of that is of use."""
    versions = {n: version(n) for n in range(12)}
    origin.web = moving = Moving(versions[0], lambda number: moving.update(versions[number // 4]))
    site = Site(origin, tmp_path)
    with pytest.raises(StartupError) as caught:
        site.get()
    assert caught.value.code == "RevisionMoved"
    assert "\n" not in caught.value.message
    assert moving.num_asked <= 20
    assert not list(tmp_path.glob("snapshots/*"))
    assert not {hashlib.sha256(files[NAME].data).hexdigest() for files in versions.values()} & site.objects()


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_restart_goes_on_with_the_same_version_and_no_other(
    origin: FakeOrigin, tmp_path: Path, is_replaced: bool
) -> None:
    files = version(1)
    origin.web = Moving(files, lambda number: origin.order(Fault(NAME, status=403)) if number == 3 else None)
    with pytest.raises(StartupError, match="denied"):
        Site(origin, tmp_path).get()
    if is_replaced:
        files = version(2)
    origin.web = files
    num_before = len(origin.requests)
    directory = Path(Site(origin, tmp_path).get().path)
    assert (directory / "model.safetensors").read_bytes() == files[NAME].data
    ranges = [seen.headers["range"] for seen in origin.requests[num_before:] if seen.path == f"/{NAME}"]
    assert ranges[:2] == [
        "bytes=0-0",
        "bytes=0-32767" if is_replaced else f"bytes={16 << 20}-{len(files[NAME].data) - 1}",
    ]
