"""What lies in a store: which snapshots make a model, what each takes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tickertape.core.sources import FileEntry
from tickertape.plugins.sources.directory import DirectorySource
from tickertape.testing.tokenizers import byte_level_tokenizer
from tickertape.weights.lineage import roots_of
from tickertape.weights.materialize import materialize
from tickertape.weights.pins import Pins
from tickertape.weights.store import Recipe, Store
from tickertape.weights.usage import survey


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def entries(*names: str) -> tuple[FileEntry, ...]:
    return tuple(FileEntry(name, 1, digest(name)) for name in names)


def fetched(uri: str) -> tuple[Recipe, ...]:
    return (Recipe("fetch", {"uri": uri, "revision": "1"}),)


def test_what_is_derived_belongs_to_the_models_that_have_all_of_its_inputs() -> None:
    """Two fine-tunes share the tokenizer; the cast and the overlay of each are its own."""
    snapshots = {
        "one": (entries("vocab", "w1"), fetched("hf://one")),
        "two": (entries("vocab", "w2"), fetched("hf://two")),
        "tokenizer": (entries("tokenizer.json"), (Recipe("tokenizer", {"vocab.json": digest("vocab")}),)),
        "cast1": (entries("w1-half"), (Recipe("cast", {"file": digest("w1"), "to": "float16"}),)),
        "over1": (
            entries("vocab", "w1-half", "tokenizer.json"),
            (Recipe("overlay", {"file:vocab": digest("vocab"), "made:w": digest("w1-half"),
                                "made:tokenizer.json": digest("tokenizer.json")}),),
        ),
        "orphan": (entries("x"), (Recipe("cast", {"file": digest("gone")}),)),
        "half": ((), ()),
    }  # fmt: skip
    lineage = roots_of(snapshots)
    assert {id: set(roots) for id, roots in lineage.roots.items()} == {
        "one": {"one"}, "two": {"two"}, "tokenizer": {"one", "two"}, "cast1": {"one"}, "over1": {"one"},
        "orphan": {"orphan"}, "half": {"half"},
    }  # fmt: skip
    assert lineage.origins["one"].uri == "hf://one"
    assert {lineage.origins[id].uri for id in ("orphan", "half")} == {"(cast)", "(incomplete)"}


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("https://user:secret@host/m.gguf?signature=secret", "https://host/m.gguf"),
        ("https://host/dir/#sha256=0123", "https://host/dir/#sha256=0123"),
        ("hf://org/name@refs/pr/7", "hf://org/name@refs/pr/7"),
        ("wheel://a==1.0/x/y.gguf", "wheel://a==1.0/x/y.gguf"),
    ],
)
def test_no_secret_of_a_uri_is_shown(uri: str, shown: str) -> None:
    assert roots_of({"s": (entries("w"), fetched(uri))}).origins["s"].uri == shown


def test_what_is_made_of_a_directory_is_listed_under_it(models: Any, tmp_path: Path) -> None:
    tensors = {"a.weight": np.ones((4, 4), np.float32)}
    directory = models.directory("m", {"model.safetensors": tensors}, **{"notes.txt": b"mine"})
    byte_level_tokenizer().save(str(directory / "tokenizer.json"))
    store = Store(tmp_path / "store")
    materialize(
        str(directory), store=store, sources={"file": DirectorySource()}, report=lambda _: None, dtype="float16"
    )
    (model,) = survey(store).models()
    assert (model.uri, model.revision, model.in_use, model.pinned) == (str(directory), "", True, False)
    assert {kept.kind for kept in model.snapshots} == {"cast", "overlay"}
    assert model.size_bytes == sum(path.stat().st_size for path in (tmp_path / "store").glob("objects/??/*"))


def test_a_converted_gguf_is_listed_under_its_file(ggufs: Any, tmp_path: Path) -> None:
    path, store = ggufs.write(), Store(tmp_path / "store")
    materialize(str(path), store=store, sources={"file": DirectorySource()}, report=lambda _: None)
    assert [model.uri for model in survey(store).models()] == [str(path)]


def test_an_empty_place_is_an_empty_store(tmp_path: Path) -> None:
    usage = survey(Store(tmp_path / "none"))
    assert (usage.models(), usage.size_bytes, usage.leftovers) == ((), 0, ())
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("folder", ["derived", "snapshots"])
def test_damaged_notes_do_not_stop_the_look(tmp_path: Path, folder: str) -> None:
    store = Store(tmp_path)
    with store.workspace(Recipe("x", {})) as work:
        (work / "d").write_bytes(b"one")
        store.objects.adopt(work / "d", hashlib.sha256(b"one").hexdigest())
    store.publish(Recipe("fetch", {"uri": "u", "revision": ""}), {"f": hashlib.sha256(b"one").hexdigest()})
    for path in (tmp_path / folder).glob("*.json"):
        path.write_bytes(b"{")
    assert survey(store).size_bytes == 3


def test_pins_are_kept_once_and_doubt_keeps_them(tmp_path: Path) -> None:
    pins = Pins(tmp_path)
    assert (pins.keys(), pins.get("k"), pins.remove("k")) == (frozenset(), None, False)
    pins.add("k", "hf://one", "1")
    first = pins.get("k")
    pins.add("k", "hf://one", "1")
    assert first is not None
    assert (first.uri, pins.get("k")) == ("hf://one", first)
    next((tmp_path / "pins").iterdir()).write_bytes(b"{")
    assert (set(pins.keys()), pins.get("k")) == ({"k"}, None)
    assert pins.remove("k")
    assert pins.keys() == frozenset()


def test_a_listing_of_another_time_is_read(tmp_path: Path) -> None:
    """Files that earlier versions wrote have fewer fields."""
    (tmp_path / "snapshots").mkdir()
    listing = [{"path": "f", "size_bytes": 3, "sha256": digest("f")}]
    (tmp_path / "snapshots" / "s.json").write_text(json.dumps(listing))
    assert [kept.id for kept in survey(Store(tmp_path)).snapshots] == ["s"]
