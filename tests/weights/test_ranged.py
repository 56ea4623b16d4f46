"""From the URI of a ranged source to a model: resolved, fetched, published, opened early; what is known is enough."""

from __future__ import annotations

import dataclasses
import errno
import json
import logging
import os
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from tests.weights.conftest import CONFIG, Models, safetensors_bytes
from tests.weights.fetch_kit import MIB, MemorySource, ScriptedSlots
from tickertape.core.backend import ModelSpec
from tickertape.core.errors import OriginBusy, OriginChanged, OriginError, StartupError
from tickertape.core.messages import FetchOptions
from tickertape.core.ports import Progress
from tickertape.core.sources import FileEntry, Manifest
from tickertape.testing.tokenizers import byte_level_tokenizer
from tickertape.weights.fetch.fetching import Fetching
from tickertape.weights.gc import Collector
from tickertape.weights.ledger import Ledger
from tickertape.weights.mapping import MappedWeights
from tickertape.weights.materialize import materialize
from tickertape.weights.store import Store
from tickertape.weights.usage import survey

TENSORS = {"a": np.arange(600_000, dtype=np.float32), "b": np.arange(40_000, dtype=np.float32)}


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as name:
        yield Path(name)


def model(**more: bytes) -> dict[str, bytes]:
    return {
        "config.json": json.dumps(CONFIG).encode(),
        "model-00001-of-00002.safetensors": safetensors_bytes({"a": TENSORS["a"]}),
        "model-00002-of-00002.safetensors": safetensors_bytes({"b": TENSORS["b"]}),
        "tokenizer.json": byte_level_tokenizer().to_str().encode(),
        **more,
    }


class Site:
    """A source, a store and what a fetch works with."""

    def __init__(
        self, root: Path, files: dict[str, bytes] | None = None, source: MemorySource | None = None, **options: Any
    ) -> None:
        self.source = source or MemorySource(files if files is not None else model())
        ledger = Ledger()
        self.store = Store(root, ledger)
        self.slots = ScriptedSlots(self.source.clock)
        self.fetching = Fetching(
            slots=self.slots,
            ledger=ledger,
            make_room=lambda _: None,
            options=FetchOptions(**options),
            clock=self.source.clock,
            rng=random.Random(1).random,
        )

    def get(self, uri: str = "mem://org/tiny", **more: Any) -> ModelSpec:
        sources = {"mem": self.source}
        more.setdefault("report", lambda _: None)
        return materialize(uri, store=self.store, sources=sources, fetching=self.fetching, **more)

    def refusal(self, **more: Any) -> StartupError:
        with pytest.raises(StartupError) as caught:
            self.get(**more)
        assert "\n" not in caught.value.message
        return caught.value


def check(spec: ModelSpec) -> None:
    weights = MappedWeights(Path(spec.path))
    for name, values in TENSORS.items():
        assert np.array_equal(weights.open(name), values)
    weights.close()


def test_is_fetched_once(root: Path) -> None:
    site = Site(root)
    spec = site.get()
    assert spec.name == "tiny"
    check(spec)
    sent = site.source.sent_bytes
    assert sent == sum(map(len, site.source.contents.values()))
    assert site.get() == spec
    counts = site.fetching.ledger.counts()
    assert counts.num_cache_hits == len(site.source.contents)
    assert counts.num_hashed_bytes == sent  # as it came; not again
    assert site.source.sent_bytes == sent
    assert len(site.source.resolved_at) == 2  # a branch may have moved
    site.source.is_pinned = True
    assert site.get() == spec
    assert len(site.source.resolved_at) == 2  # a commit cannot


def test_a_revision_makes_room_for_the_one_that_follows_it(root: Path) -> None:
    """On a disk that cannot have both, and by a server that found the old one first."""
    shards = [name for name in model() if name.endswith(".safetensors")]
    old = {name: safetensors_bytes({key: TENSORS[key] + 1}) for name, key in zip(shards, TENSORS, strict=True)}
    first = Site(root, model(**old))
    first.get()
    first.store.close()
    site, freed = Site(root), list[int]()
    site.source.manifest = structs.replace(site.source.manifest, revision="r2")
    site.fetching = dataclasses.replace(
        site.fetching, make_room=lambda _: freed.append(Collector(Store(root)).collect(lambda _: False))
    )
    check(site.get())
    assert freed[0] == sum(map(len, old.values()))
    assert [found.revision for found in survey(site.store).models()] == ["r2"]
    site.source.answers = [StartupError("nobody is there", code="FetchFailed")]
    check(site.get())
    assert Collector(Store(root)).collect(lambda _: False) == 0  # what is served is held as ever


def test_without_pieces_it_takes_what_one_node_needs(root: Path) -> None:
    source = MemorySource(model())
    check(materialize("mem://org/tiny", store=Store(root), sources={"mem": source}, report=lambda _: None))


def test_a_disk_that_fills_up_before_the_snapshot_is_published(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(root, fetch_patience_s=60.0)
    stages: list[Progress] = []
    publish, is_full = Store.publish, [True, True]

    def full(*args: Any) -> Any:
        if is_full:
            is_full.pop()
            raise OSError(errno.ENOSPC, "No space left on device")
        return publish(*args)

    monkeypatch.setattr(Store, "publish", full)
    spec = materialize("mem://org/tiny", store=site.store, sources={"mem": site.source}, report=stages.append,
                       fetching=site.fetching)  # fmt: skip
    check(spec)
    assert "no space left" in next(stage.detail for stage in stages if stage.stage == "space")
    is_full.extend([True] * 1000)
    site.source.manifest = structs.replace(site.source.manifest, revision="r2")
    started = site.source.clock.now()
    assert site.refusal().code == "NoSpace"
    assert 60 <= site.source.clock.now() - started < 70


@pytest.mark.parametrize("wanted", [{}, {"dtype": "float16"}, {"quantization": "int8"}])
def test_a_model_that_is_not_wanted_is_not_fetched(root: Path, wanted: dict[str, str]) -> None:
    heard: list[tuple[str, str, bool]] = []

    def check(spec: ModelSpec) -> None:
        heard.append((spec.architecture, spec.dtype, (Path(spec.path) / "config.json").is_file()))
        raise StartupError("backend 'mine' does not do it", code="UnsupportedOption")

    large = {"model-00001-of-00002.safetensors": safetensors_bytes({"a": np.zeros(9 << 20, np.float32)})}
    site = Site(root, model(**large), origin_connections=1)

    def hold_bodies(number: int) -> None:
        """However fast they are, it is asked once the headers are here."""
        path, start, _, _ = site.source.origins[-1].requests[number]
        deadline = time.monotonic() + 20
        while path.endswith(".safetensors") and start > 0 and not heard:
            assert time.monotonic() < deadline
            time.sleep(0.001)

    site.source.on_request = hold_bodies
    assert site.refusal(check=check, **wanted).message == "backend 'mine' does not do it"
    site.source.on_request = lambda _: None
    assert heard == [("LlamaForCausalLM", "float32", True)]
    assert site.source.sent_bytes < 20 * MIB
    assert not list(root.glob("tmp/*"))
    assert not list(root.glob("derived/*"))
    heard.clear()
    site.get()
    assert site.refusal(check=check, **wanted).code == "UnsupportedOption"  # also of what is here
    assert len(heard) == 1


def test_a_new_revision_costs_what_changed(root: Path) -> None:
    site = Site(root)
    old = site.get()
    sent = site.source.sent_bytes
    files = model(**{"generation_config.json": b"{}"})
    site.source.contents = files
    site.source.manifest = structs.replace(MemorySource(files).manifest, revision="r2")
    assert site.get() != old
    assert site.source.sent_bytes - sent == 2
    check(old)  # whoever serves it goes on


REFUSALS = [
    OriginBusy("too many requests", retry_after_s=1e6),
    OriginError("the network is unreachable"),
    StartupError("the token is not accepted", code="Unauthorized"),
    StartupError("the model is gated", code="Gated"),
    StartupError("no such model", code="NotFound"),
]


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: error.code)
def test_what_is_whole_starts_whatever_the_origin_says(
    root: Path, caplog: pytest.LogCaptureFixture, error: StartupError
) -> None:  # cases 106, 114
    site = Site(root)
    spec = site.get()
    site.source.answers = [error]
    with caplog.at_level(logging.WARNING):
        assert site.get() == spec
    assert error.message in caplog.text
    assert site.slots.throttles == ([1e6] if isinstance(error, OriginBusy) else [])


def test_a_cool_down_is_no_reason_to_wait_for_what_is_there(root: Path) -> None:
    site = Site(root)
    spec = site.get()
    site.slots.cooling_until = site.source.clock.now() + 1000
    assert site.get() == spec
    assert len(site.source.resolved_at) == 1


@pytest.mark.parametrize("error", REFUSALS[2:], ids=lambda error: error.code)
def test_with_nothing_a_refusal_is_final(root: Path, error: StartupError) -> None:  # case 114
    site = Site(root)
    site.source.answers = [error] * 9
    assert site.refusal() is error
    assert len(site.source.resolved_at) == 1
    assert not list(root.glob("objects/*"))


def test_with_nothing_a_429_is_waited_out(root: Path) -> None:  # case 106
    site = Site(root)
    site.source.answers = [OriginBusy("too many requests", retry_after_s=40.0)] * 3
    told: list[Progress] = []
    check(site.get(report=told.append))
    times = site.source.resolved_at
    assert all(later - earlier >= 40 for earlier, later in pairwise(times))
    assert len(times) == 4
    assert not site.slots.held
    left_s = [progress.eta_s or 0.0 for progress in told if progress.stage == "cooldown"]
    assert max(left_s) >= 40
    assert 0 < min(left_s) < 1
    counts = site.fetching.ledger.counts()
    num_reads = sum(len(origin.requests) for origin in site.source.origins)
    assert (counts.num_origin_429, counts.num_origin_requests) == (3, 4 + num_reads)


@pytest.mark.parametrize(("is_throttled", "asked_s"), [(False, 5.0), (True, 300.0)])
def test_a_name_is_asked_for_without_a_slot_only_while_the_origin_is_content(
    root: Path, is_throttled: bool, asked_s: float
) -> None:
    site = Site(root)
    began = site.source.clock.now()
    site.slots.free_at = began + 300.0
    site.slots.is_throttled = is_throttled
    check(site.get())
    assert asked_s <= site.source.resolved_at[0] - began <= asked_s + 10.0
    assert not site.slots.held
    assert site.fetching.ledger.counts().slot_wait_s >= asked_s


class Dripping(MemorySource):
    """Does not come to the end of its answer for the first `num_drips` times."""

    num_drips = 0

    def resolve(self, uri: str) -> Manifest:
        if len(self.resolved_at) >= self.num_drips:
            return super().resolve(uri)
        self.resolved_at.append(self.clock.now())
        self.clock.advance_to(self.clock.now() + 120.0)
        self.hung_up.wait(20)
        raise OriginError("its process ended")

    def __init__(self) -> None:
        super().__init__(model())
        self.hung_up = threading.Event()


@pytest.fixture
def dripping() -> Iterator[Dripping]:
    source = Dripping()
    yield source
    source.hung_up.set()


def test_an_answer_that_does_not_end_is_not_waited_for(root: Path, dripping: Dripping) -> None:
    site = Site(root, source=dripping)
    dripping.num_drips = 1
    check(site.get())
    first, second = dripping.resolved_at
    assert 120.0 <= second - first < 130.0
    dripping.num_drips = 99
    check(site.get())  # what is here will do
    assert len(dripping.resolved_at) == 3
    told: list[Progress] = []
    message = site.refusal(uri="mem://org/other", report=told.append).message
    assert message == "mem://org/other: no whole answer in 120 s"
    assert {stage.stage for stage in told} >= {"plan"}
    assert not site.slots.held


def test_with_nothing_patience_ends_in_the_reason(root: Path) -> None:  # case 106
    site = Site(root, fetch_patience_s=100.0)
    site.source.answers = [OriginBusy("too many requests", retry_after_s=40.0)] * 99
    started = site.source.clock.now()
    assert site.refusal().code == "TooManyRequests"
    assert site.source.clock.now() - started <= 100
    assert len(site.source.resolved_at) == 3


def test_offline_with_nothing_is_said_soon(root: Path) -> None:
    site = Site(root)
    site.source.answers = [OriginError("the network is unreachable")] * 99
    assert site.refusal().code == "FetchFailed"
    assert 1 < len(site.source.resolved_at) <= 6


def test_a_model_that_moves_while_it_comes_is_planned_anew(root: Path) -> None:
    files = model(**{"extra.txt": b"old"})
    site = Site(root, files, origin_connections=1)
    new = model(**{"extra.txt": b"new text"})

    def move(number: int) -> None:
        if number == 3 and site.source.manifest.revision == "r1":
            site.source.contents = new
            site.source.manifest = structs.replace(MemorySource(new).manifest, revision="r2")
            raise OriginChanged("412: the file is another one now")

    site.source.on_request = move
    spec = site.get()
    check(spec)
    assert (Path(spec.path) / "extra.txt").read_bytes() == b"new text"
    assert site.source.sent_bytes <= sum(map(len, new.values())) + 3  # what kept its digest came once
    assert len(list(root.glob("snapshots/*.json"))) == 1


def test_an_origin_that_never_agrees_with_itself_is_given_up(root: Path) -> None:
    site = Site(root)
    site.source.script = [("changed",)] * 99
    assert site.refusal().code == "RevisionMoved"
    assert 2 <= len(site.source.resolved_at) <= 5


@pytest.mark.parametrize("path", ["../../etc/passwd", "/abs", "a/../../b"])
def test_a_manifest_cannot_leave_the_model(root: Path, path: str) -> None:
    site = Site(root)
    site.source.manifest = structs.replace(site.source.manifest, files=(FileEntry(path, 3, "0" * 64),))
    assert site.refusal().code == "BadManifest"
    assert not site.source.origins


@pytest.mark.parametrize(
    "wrong",
    [
        {"size_bytes": -1},
        {"size_bytes": 1 << 63},
        {"sha256": "../" * 20 + "etc"},
        {"sha256": "AB" * 32},
        {"chunk_sha256": ("00",)},
        {"sha256": None, "git_sha1": "no digest"},
        {"path": "a" * 300},
    ],
)
def test_sizes_and_digests_are_not_taken_on_the_word_of_an_origin(root: Path, wrong: dict[str, Any]) -> None:
    site = Site(root)
    first, *rest = site.source.manifest.files
    site.source.manifest = structs.replace(site.source.manifest, files=(structs.replace(first, **wrong), *rest))
    refusal = site.refusal(uri="mem://me:secret@org/tiny")
    assert refusal.code == "BadManifest"
    assert "secret" not in refusal.message
    assert not site.source.origins
    assert not list(root.glob("partial/*"))


def test_a_model_is_opened_while_its_weights_are_coming(root: Path) -> None:
    """What is told early can be mapped at once; a tensor is waited for, and comes from the file that was mapped."""
    site = Site(root, origin_connections=1)
    seen: dict[str, Any] = {}
    mapped, go_on = threading.Event(), threading.Event()

    def load(spec: ModelSpec) -> None:
        def waiting(name: str, _: float) -> None:
            seen["waited"] = name
            go_on.set()

        weights = MappedWeights(Path(spec.path), waiting)
        mapped.set()
        seen["values"] = {name: weights.open(name).copy() for name in weights.names()}
        weights.close()

    def early(spec: ModelSpec) -> None:
        seen["early"] = spec
        threading.Thread(target=load, args=(spec,), name="loader").start()
        assert mapped.wait(20)

    def hold_back(number: int) -> None:
        if site.source.origins[-1].requests[number][1] > 0:  # not a header
            assert go_on.wait(20)  # until somebody waits for what has not come

    site.source.on_request = hold_back
    spec = site.get(early=early)
    for thread in threading.enumerate():
        if thread.name == "loader":
            thread.join(20)
    check(spec)
    assert structs.replace(seen["early"], path=spec.path) == spec
    assert seen["waited"] in site.source.contents
    assert {name: values.tolist() for name, values in seen["values"].items()} == {
        name: values.tolist() for name, values in TENSORS.items()
    }
    assert Path(seen["early"].path).is_dir()  # for whoever is slow to start
    site.store.close()


@pytest.mark.parametrize("why", ["cast", "tokenizer", "gguf", "whole"])
def test_what_is_to_be_made_first_is_not_told_early(root: Path, models: Models, ggufs: Any, why: str) -> None:
    files = model()
    if why == "tokenizer":
        del files["tokenizer.json"]
        files["vocab.json"] = b'{"a": 0, "b": 1, "ab": 2}'
        files["merges.txt"] = b"a b\n"
        files["tokenizer_config.json"] = b'{"tokenizer_class": "GPT2Tokenizer"}'
    if why == "gguf":
        files = {"tiny.Q8_0.gguf": ggufs.write().read_bytes()}
    site = Site(root, files)
    if why == "whole":
        site.get()
    told: list[ModelSpec] = []
    spec = site.get(early=told.append, dtype="bfloat16" if why == "cast" else "auto")
    assert not told
    assert len(MappedWeights(Path(spec.path)).names()) > 1
    assert why == "whole" or not list((root / "tmp").iterdir())


def test_two_servers_of_a_node_fetch_once(root: Path) -> None:
    sites = [Site(root, model(**{"pad.bin": bytes(3 * MIB)})) for _ in range(2)]
    specs: list[ModelSpec] = []
    threads = [threading.Thread(target=lambda site=site: specs.append(site.get())) for site in sites]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(specs) == 2
    assert specs[0] == specs[1]
    assert sum(site.source.sent_bytes for site in sites) == sum(map(len, sites[0].source.contents.values()))
