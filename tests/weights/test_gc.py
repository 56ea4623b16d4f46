"""Collection: what goes, in which order, what never does; and a store that is whole wherever a collector is killed."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tickertape.core.errors import StartupError
from tickertape.weights.gc import Collector, evictable, garbage
from tickertape.weights.holds import Holds, is_held
from tickertape.weights.objects import DigestWriter
from tickertape.weights.pins import Pins
from tickertape.weights.store import Recipe, Snapshot, Store
from tickertape.weights.usage import survey

NEVER = float("inf")


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def fetched(uri: str) -> Recipe:
    return Recipe("fetch", {"uri": uri, "revision": "1"})


def adopt(store: Store, recipe: Recipe, content: bytes) -> str:
    with store.workspace(recipe) as work:
        with DigestWriter(work / "draft") as out:
            out.write(content)
        store.objects.adopt(work / "draft", out.sha256)
    return out.sha256


def publish(store: Store, recipe: Recipe, files: dict[str, bytes]) -> Snapshot:
    with store.lock(recipe):
        return store.publish(recipe, {name: adopt(store, recipe, content) for name, content in files.items()})


def aged(root: Path, snapshot: Snapshot, days: float) -> None:
    then = time.time() - days * 86400
    os.utime(root / "used" / snapshot.path.name, (then, then))


def fill(root: Path, uri: str, files: dict[str, bytes], days: float = 0.0) -> Snapshot:
    """A snapshot that nobody uses any more."""
    store = Store(root)
    snapshot = publish(store, fetched(uri), files)
    store.close()
    aged(root, snapshot, days)
    return snapshot


def collect(root: Path, num_bytes: float = NEVER) -> int:
    return Collector(Store(root)).collect(lambda freed: freed >= num_bytes)


def uris(root: Path) -> set[str]:
    return {model.uri for model in survey(Store(root)).models()}


def objects(root: Path) -> set[bytes]:
    return {path.read_bytes() for path in root.glob("objects/??/*")}


def test_the_least_recently_used_goes_first_and_no_more_than_needed(tmp_path: Path) -> None:
    for name, days in (("new", 1), ("oldest", 9), ("old", 5)):
        fill(tmp_path, name, {"f": name.encode() * 10}, days)
    assert collect(tmp_path, 1) == 60
    assert uris(tmp_path) == {"new", "old"}
    assert collect(tmp_path, 31) == 60
    assert uris(tmp_path) == set()
    for folder in ("objects/??", "meta", "derived", "snapshots", "used", "tmp"):
        assert not list(tmp_path.glob(f"{folder}/*")), folder


def test_an_object_stays_while_any_snapshot_names_it(tmp_path: Path) -> None:
    fill(tmp_path, "one", {"a": b"shared", "b": b"own"}, 9)
    fill(tmp_path, "two", {"a": b"shared"}, 5)
    assert collect(tmp_path, 1) == 3
    assert objects(tmp_path) == {b"shared"}
    assert Store(tmp_path).find(fetched("two"))
    assert Store(tmp_path).find(fetched("one")) is None


def test_the_list_says_what_each_frees_after_those_before_it(tmp_path: Path) -> None:
    fill(tmp_path, "one", {"a": b"shared", "b": b"own"}, 9)
    fill(tmp_path, "two", {"a": b"shared"}, 5)
    assert [victim.size_bytes for victim in evictable(survey(Store(tmp_path)))] == [3, 6]


def test_what_was_made_of_a_model_goes_before_the_model_and_keeps_it_young(tmp_path: Path) -> None:
    source = fill(tmp_path, "source", {"m.gguf": b"quantised"}, 30)
    fill(tmp_path, "other", {"f": b"other"}, 20)
    store = Store(tmp_path)
    recipe = Recipe("gguf", {"converter": "1", "sha256": digest(b"quantised")})
    made = publish(store, recipe, {"model.safetensors": b"expanded"})
    store.close()
    aged(tmp_path, made, 10)
    order = [victim.name for victim in evictable(survey(Store(tmp_path)))]
    assert order[1:] == [made.path.name, source.path.name]


@pytest.mark.parametrize("by", ["found", "published", "mapped", "pinned"])
def test_what_is_in_use_or_pinned_stays(tmp_path: Path, by: str) -> None:
    snapshot = fill(tmp_path, "uri", {"m.safetensors": b"content"}, 99)
    user, mapping = Store(tmp_path), None
    if by == "found":
        assert user.find(fetched("uri"))
    elif by == "published":
        publish(user, fetched("uri"), {"m.safetensors": b"content"})
    elif by == "mapped":
        mapping = (snapshot.path / "m.safetensors").open("rb")
        fcntl.flock(mapping, fcntl.LOCK_SH)
    else:
        Pins(tmp_path).add(snapshot.path.name, "uri", "1")
    aged(tmp_path, snapshot, 99)
    assert not evictable(survey(Store(tmp_path)))
    assert collect(tmp_path) == 0
    user.close()
    if mapping is not None:
        mapping.close()
    Pins(tmp_path).remove(snapshot.path.name)
    assert collect(tmp_path) == len(b"content")


def test_a_model_is_in_use_while_what_was_made_of_it_is(tmp_path: Path) -> None:
    fill(tmp_path, "source", {"m.gguf": b"quantised"}, 30)
    user = Store(tmp_path)
    publish(user, Recipe("gguf", {"sha256": digest(b"quantised")}), {"model.safetensors": b"expanded"})
    assert collect(tmp_path) == 0
    user.close()
    assert collect(tmp_path) == len(b"quantised" + b"expanded")


def test_a_pin_covers_what_is_made_of_the_model(tmp_path: Path) -> None:
    source = fill(tmp_path, "source", {"m.gguf": b"quantised"})
    store = Store(tmp_path)
    publish(store, Recipe("gguf", {"sha256": digest(b"quantised")}), {"model.safetensors": b"expanded"})
    store.close()
    Pins(tmp_path).add(source.path.name, "source", "1")
    assert collect(tmp_path) == 0
    assert objects(tmp_path) == {b"quantised", b"expanded"}


def test_mapped_copies_count_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object, **__: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "symlink", no_links)
    monkeypatch.setattr(os, "link", no_links)
    snapshot = fill(tmp_path, "uri", {"m.safetensors": b"content"})
    with (snapshot.path / "m.safetensors").open("rb") as mapping:
        fcntl.flock(mapping, fcntl.LOCK_SH)
        assert collect(tmp_path) == 0
        assert snapshot.path.exists()
    assert collect(tmp_path) == len(b"content")
    assert not snapshot.path.exists()


def test_what_a_fetch_has_so_far_stays_until_it_ends_and_then_waits_its_turn(tmp_path: Path) -> None:
    fill(tmp_path, "old", {"f": b"old"}, 5)
    going = Store(tmp_path)
    adopt(going, fetched("going"), b"half")
    assert collect(tmp_path, 4) == 3
    assert objects(tmp_path) == {b"half"}
    going.close()  # broken off just now: what was used before that goes first
    fill(tmp_path, "old", {"f": b"old"}, 5)
    assert collect(tmp_path, 1) == 3
    assert objects(tmp_path) == {b"half"}
    assert collect(tmp_path, 1) == 4


def test_a_lookup_holds_what_it_found(tmp_path: Path) -> None:
    fill(tmp_path, "old", {"f": b"same"}, 5)
    going = Store(tmp_path)
    assert going.objects.hold(digest(b"same"))  # another model has it already: not fetched again
    assert collect(tmp_path) == 0
    assert objects(tmp_path) == {b"same"}
    going.close()
    assert collect(tmp_path) == 4


def test_a_fetch_takes_what_it_has_in_common_from_the_revision_that_makes_room_for_it(tmp_path: Path) -> None:
    fill(tmp_path, "old", {"tokenizer.json": b"same", "model.safetensors": b"old weights"}, 5)
    going = Store(tmp_path)
    assert going.objects.hold(digest(b"same"))
    assert not survey(Store(tmp_path)).models()[0].in_use
    assert collect(tmp_path) == 11
    assert objects(tmp_path) == {b"same"}
    publish(going, fetched("new"), {"tokenizer.json": b"same", "model.safetensors": b"new weights"})
    assert going.find(fetched("new"))
    assert objects(tmp_path) == {b"same", b"new weights"}


def partial(root: Path, key: str, days: float) -> Path:
    path = root / "partial" / key
    path.mkdir(parents=True)
    (path / "data").write_bytes(b"x" * 8192)
    (path / "lock").touch()
    then = time.time() - days * 86400
    for file in (path / "data", path / "lock", path):
        os.utime(file, (then, then))
    return path


@pytest.mark.parametrize("locked", ["lock", "data", None])
def test_partial_downloads_wait_their_turn_and_are_spared_while_locked(tmp_path: Path, locked: str | None) -> None:
    fill(tmp_path, "older", {"f": b"older"}, 9)
    fill(tmp_path, "newer", {"f": b"newer"}, 1)
    path = partial(tmp_path, "a" * 64, 5)
    holder = None if locked is None else (path / locked).open("rb")
    if holder is not None:
        fcntl.flock(holder, fcntl.LOCK_EX if locked == "lock" else fcntl.LOCK_SH)
    kinds = [victim.kind for victim in evictable(survey(Store(tmp_path)))]
    assert kinds == (["snapshot", "snapshot"] if holder else ["snapshot", "partial", "snapshot"])
    collect(tmp_path)
    assert path.exists() is (holder is not None)
    if holder is not None:
        holder.close()


def test_workspaces_of_the_dead_are_garbage_those_of_the_living_are_not(tmp_path: Path) -> None:
    store, recipe = Store(tmp_path), fetched("uri")
    dead = tmp_path / "tmp" / "0.dead"
    dead.mkdir(parents=True)
    (dead / "half").write_bytes(b"half")
    starting = tmp_path / "tmp" / f"{recipe.digest}.12345678"  # made, and not yet locked itself
    with store.lock(recipe):
        starting.mkdir()
        with store.workspace(fetched("other")) as at_work:
            assert [victim.name for victim in garbage(survey(store))] == ["0.dead"]
            collect(tmp_path)
            assert (dead.exists(), starting.exists(), at_work.exists()) == (False, True, True)


def test_a_place_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    assert collect(tmp_path / "none") == 0
    assert not (tmp_path / "none").exists()


def test_what_has_no_digest_for_a_name_is_left_alone(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "store", tmp_path / "va"
    (root / "objects").mkdir(parents=True)
    elsewhere.mkdir()
    (elsewhere / "valuable").write_text("x")
    (root / "objects" / "va").symlink_to(elsewhere)
    (root / "snapshots" / "s").mkdir(parents=True)
    listing = [{"path": "f", "size_bytes": 1, "sha256": "../../va/valuable"}]
    (root / "snapshots" / "s.json").write_text(json.dumps(listing))
    assert survey(Store(root)).size_bytes == 0
    collect(root)
    assert (elsewhere / "valuable").read_text() == "x"
    assert not (root / "snapshots" / "s.json").exists()


def test_links_out_of_the_store_are_removed_and_not_followed(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_bytes(b"mine")
    store, recipe = Store(tmp_path / "store"), Recipe("overlay", {"file:f": f"{mine}:1:2:3:4"})
    store.publish(recipe, {"made": adopt(store, recipe, b"made")}, {"f": mine})
    store.close()
    assert uris(tmp_path / "store") == {str(tmp_path)}
    assert collect(tmp_path / "store") == 4
    assert mine.read_bytes() == b"mine"


def test_who_comes_between_the_look_and_the_removal_is_spared(tmp_path: Path) -> None:
    fill(tmp_path, "uri", {"f": b"content"}, 9)
    user = Store(tmp_path)

    def choose(usage: Any) -> Any:
        victims = evictable(usage)
        assert len(victims) == 1
        assert user.find(fetched("uri"))
        return victims

    assert Collector(Store(tmp_path)).collect(lambda _: False, choose) == 0
    user.close()
    assert Collector(Store(tmp_path)).collect(lambda _: False, lambda usage: evictable(usage)) == 7


def test_who_used_it_between_and_left_has_made_it_young(tmp_path: Path) -> None:
    fill(tmp_path, "uri", {"f": b"content"}, 9)

    def choose(usage: Any) -> Any:
        user = Store(tmp_path)
        user.find(fetched("uri"))
        user.close()
        return evictable(usage)

    assert Collector(Store(tmp_path)).collect(lambda _: False, choose) == 0


def test_publishing_happens_while_the_gate_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector can be at work neither between an object's arrival and its hold, nor around its naming."""
    gate, seen = tmp_path / "locks" / "gc", []
    rename, keep_used = Path.rename, Holds.keep_used

    def watched_rename(path: Path, target: Path) -> Path:
        if target.parent.parent.name == "objects" or target.parent.name == "derived":
            seen.append((target.parent.name if target.parent.name == "derived" else "object", is_held(gate)))
        return rename(path, target)

    def watched_keep(holds: Holds, snapshot: str) -> None:
        seen.append(("used", is_held(gate)))
        keep_used(holds, snapshot)

    monkeypatch.setattr(Path, "rename", watched_rename)
    monkeypatch.setattr(Holds, "keep_used", watched_keep)
    store = Store(tmp_path)
    publish(store, fetched("uri"), {"f": b"content"})
    assert seen == [("object", True), ("used", True), ("derived", True)]
    seen.clear()
    assert store.find(fetched("uri"))
    assert seen == [("used", True)]


def test_without_locks_nothing_goes_unless_forced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, "uri", {"f": b"content"})
    monkeypatch.setattr("tickertape.weights.holds.fcntl.flock", lambda *_: None)
    with pytest.raises(StartupError) as caught:
        collect(tmp_path)
    assert caught.value.code == "NotCollectable"
    assert "locks do not work" in caught.value.message
    assert Collector(Store(tmp_path), force=True).collect(lambda _: False) == 7


def test_a_store_that_cannot_be_written_to_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, "uri", {"f": b"content"})

    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(StartupError) as caught:
        collect(tmp_path)
    assert caught.value.code == "ReadOnlyStore"
    monkeypatch.undo()
    assert Store(tmp_path).find(fetched("uri"))


W = "0.safetensors"  # the only one that is mapped
CONTENTS = {
    name: {f"{i}" if i else W: name[i].encode() * 3 for i in range(len(name))}
    for name in ("ab", "bc", "c", "cd", "abd")
}


class Actors(RuleBasedStateMachine):
    """Servers that find, publish, map and end, an operator who pins, and collectors, on one real store. Locks belong
    to open files, so several `Store` objects in one process meet as several processes do."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
        self.root = Path(self.folder.name)
        self.actors = [Store(self.root) for _ in range(3)]
        self.held: list[set[str]] = [set() for _ in range(3)]  # snapshots by URI
        self.adopted: list[dict[str, set[str]]] = [{} for _ in range(3)]  # digests by URI, not published
        self.mapped: dict[str, Any] = {}
        self.pinned: set[str] = set()
        self.published: set[str] = set()

    def teardown(self) -> None:
        for file in self.mapped.values():
            file.close()
        for actor in self.actors:
            actor.close()
        self.folder.cleanup()

    @rule(who=st.integers(0, 2), name=st.sampled_from(list(CONTENTS)), num_files=st.integers(1, 3))
    def fetch(self, who: int, name: str, num_files: int) -> None:
        """Some files of a model come; with the last one it is published."""
        store, recipe = self.actors[who], fetched(name)
        have = self.adopted[who].setdefault(name, set())
        for content in list(CONTENTS[name].values())[len(have) :][:num_files]:
            have.add(adopt(store, recipe, content))
        if len(have) == len(CONTENTS[name]):
            store.publish(recipe, {file: digest(content) for file, content in CONTENTS[name].items()})
            del self.adopted[who][name]
            self.held[who].add(name)
            self.published.add(name)

    @rule(who=st.integers(0, 2), name=st.sampled_from(list(CONTENTS)))
    def find(self, who: int, name: str) -> None:
        found = self.actors[who].find(fetched(name))
        assert (found is not None) == (name in self.published)
        if found is not None:
            self.held[who].add(name)

    @rule(who=st.integers(0, 2))
    def end(self, who: int) -> None:
        self.actors[who].close()
        self.actors[who] = Store(self.root)
        self.held[who], self.adopted[who] = set(), {}

    @rule(name=st.sampled_from(list(CONTENTS)))
    def map(self, name: str) -> None:
        if name in self.published and name not in self.mapped:
            found = Store(self.root).find(fetched(name))
            assert found is not None
            self.mapped[name] = (found.path / W).open("rb")
            fcntl.flock(self.mapped[name], fcntl.LOCK_SH)

    @precondition(lambda self: self.mapped)
    @rule(data=st.data())
    def unmap(self, data: st.DataObject) -> None:
        self.mapped.pop(data.draw(st.sampled_from(sorted(self.mapped)))).close()

    @rule(name=st.sampled_from(list(CONTENTS)))
    def pin_or_unpin(self, name: str) -> None:
        model = next((model for model in survey(Store(self.root)).models() if model.uri == name), None)
        assert (model is not None) == (name in self.published)
        if model is None:
            return
        if name in self.pinned:
            assert Pins(self.root).remove(model.key)
        else:
            Pins(self.root).add(model.key, model.uri, model.revision)
        self.pinned ^= {name}

    @rule(num_bytes=st.one_of(st.integers(1, 9), st.just(NEVER)))
    def collect(self, num_bytes: float) -> None:
        before = len(objects(self.root))
        freed = collect(self.root, num_bytes)
        assert freed == 3 * (before - len(objects(self.root)))
        now = uris(self.root)
        kept = {name for name in self.published if name in now}
        if num_bytes == NEVER:  # what is left is what must be, and what has a file that somebody holds
            in_use = set.union(self.pinned, set(self.mapped), *self.held)
            held = {digest(CONTENTS[name][W]) for name in self.mapped}
            held = held.union(*(have for actor in self.adopted for have in actor.values()))
            may_be = {name for name in self.published if held & set(map(digest, CONTENTS[name].values()))}
            assert in_use <= kept <= in_use | may_be
        self.published = kept

    @invariant()
    def what_somebody_counts_on_is_there(self) -> None:
        assert set.union(self.pinned, set(self.mapped), *self.held) <= self.published
        there = {digest(content) for content in objects(self.root)}
        assert there.issuperset(part for actor in self.adopted for have in actor.values() for part in have)
        for name in self.published:
            found = Store(self.root).find(fetched(name))
            assert found is not None
            assert {path.name: path.read_bytes() for path in found.path.iterdir()} == CONTENTS[name]


Actors.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestActors = Actors.TestCase


KILLED = """
import os, shutil, signal, sys, time
from pathlib import Path
from tickertape.weights.gc import Collector
from tickertape.weights.objects import DigestWriter
from tickertape.weights.store import Recipe, Store

WRITES = {"os.rename", "os.remove", "os.rmdir", "fcntl.flock"}
A, B = "a.safetensors", "deep/b.safetensors"
MODELS = {"one": {A: b"shared", B: b"own"}, "two": {A: b"shared"}, "alias": {A: b"shared"}}
root = Path(sys.argv[1])

def recipe(uri):
    return Recipe("fetch", {"uri": uri, "revision": "1"})

def fill():
    store = Store(root)
    for uri, files in MODELS.items():
        digests = {}
        for name, content in files.items():
            with store.workspace(recipe(uri)) as work:
                with DigestWriter(work / "draft") as out:
                    out.write(content)
                store.objects.adopt(work / "draft", out.sha256)
            digests[name] = out.sha256
        store.publish(recipe(uri), digests)
    store.close()
    (root / "tmp" / "0.dead" / "deep").mkdir(parents=True)
    (root / "tmp" / "0.dead" / "deep" / "half").write_bytes(b"half")

def collect():
    Collector(Store(root)).collect(lambda _: False)

def die_at(number):
    seen = 0
    def audit(event, arguments):
        nonlocal seen
        if event in WRITES:
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(audit)

kills = 0
while True:
    fill()
    child = os.fork()
    if child == 0:
        die_at(kills + 1)
        collect()
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
    kills += 1
    store = Store(root)
    for uri, files in MODELS.items():
        found = store.find(recipe(uri))
        if found is not None:
            there = {str(p.relative_to(found.path)): p.read_bytes() for p in found.path.rglob("*") if p.is_file()}
            assert there == files, kills
    store.close()
    if kills % 2:
        shutil.rmtree(root / "tmp", ignore_errors=True)
        fill()  # what is left is in nobody's way
    collect()
    left = [path for path in root.rglob("*") if path.is_file() and path.parent.name != "locks"]
    assert not left, (kills, left)
print(kills)
"""


@pytest.fixture
def quick_disk(tmp_path: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path) as path:
        yield Path(path)


def test_killed_before_every_single_removal(quick_disk: Path) -> None:
    """SIGKILL before the first lock or removal, the second, ... until a run gets through: each snapshot is whole or
    absent, it can be published again, and the next collector cleans up what is left."""
    command = [sys.executable, "-c", KILLED, str(quick_disk / "store")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 40


RACE = """
import random, sys
from pathlib import Path
from tickertape.weights.gc import Collector
from tickertape.weights.objects import DigestWriter
from tickertape.weights.store import Recipe, Store

MODELS = {name: {f"f{c}": c.encode() for c in name} for name in ("ab", "bc", "abc")}
root, stop, seed = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
draw = random.Random(seed)

def publish(store, recipe, files):
    digests = {}
    for name, content in files.items():
        with store.workspace(recipe) as work:
            with DigestWriter(work / "draft") as out:
                out.write(content)
            store.objects.adopt(work / "draft", out.sha256)
        digests[name] = out.sha256
    return store.publish(recipe, digests)

num_found = num_removed = 0
while seed == "collector" and not stop.exists():
    num_removed += Collector(Store(root)).collect(lambda _: False)
for _ in range(0 if seed == "collector" else 150):
    name, files = draw.choice(list(MODELS.items()))
    store, recipe = Store(root), Recipe("fetch", {"uri": name, "revision": "1"})
    snapshot = store.find(recipe)
    num_found += snapshot is not None
    if snapshot is None:
        with store.lock(recipe):
            snapshot = store.find(recipe) or publish(store, recipe, files)
    assert {path.name: path.read_bytes() for path in snapshot.path.iterdir()} == files
    store.close()
print(num_removed, num_found)
"""


def test_servers_and_collectors_of_other_processes(quick_disk: Path) -> None:
    command = [sys.executable, "-c", RACE, str(quick_disk / "store"), str(quick_disk / "stop")]
    one, two, collector = (
        subprocess.Popen([*command, seed], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for seed in ("1", "2", "collector")
    )
    results = [user.communicate(timeout=120) for user in (one, two)]
    (quick_disk / "stop").touch()
    results.append(collector.communicate(timeout=120))
    assert [process.returncode for process in (one, two, collector)] == [0, 0, 0], [error for _, error in results]
    removed, found = (sum(numbers) for numbers in zip(*(map(int, out.split()) for out, _ in results), strict=True))
    assert found > 0
    assert removed > 0
