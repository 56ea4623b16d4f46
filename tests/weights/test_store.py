"""The store: what is in it is whole, stays as it was written, and is found again without a write."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tickertape.core.errors import StartupError
from tickertape.core.ports import Progress
from tickertape.core.sources import FileEntry
from tickertape.weights.files import unwritable, write_atomically
from tickertape.weights.ledger import Ledger
from tickertape.weights.objects import DigestWriter, Objects
from tickertape.weights.sink import StoreSink
from tickertape.weights.store import Recipe, Snapshot, Store

RECIPE = Recipe("test", {"of": "what", "and": "that"})


def fill(store: Store, files: dict[str, bytes], recipe: Recipe = RECIPE) -> Snapshot:
    digests = {}
    with store.lock(recipe), store.workspace(recipe) as work:
        for name, content in files.items():
            with DigestWriter(work / "draft") as out:
                out.write(content)
            store.objects.adopt(work / "draft", out.sha256)
            digests[name] = out.sha256
        return store.publish(recipe, digests)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def no_links(*_: object, **__: object) -> None:
    raise OSError(1, "Operation not permitted")


def test_publishes_relative_links_to_read_only_objects(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    assert store.find(RECIPE) is None
    assert not store.root.exists()  # looking writes nothing
    snapshot = fill(store, {"a.txt": b"one", "deep/b.txt": b"two"})
    assert store.find(RECIPE) == snapshot
    assert (snapshot.path / "deep/b.txt").read_bytes() == b"two"
    link = os.readlink(snapshot.path / "deep/b.txt")
    assert not os.path.isabs(link)
    for content in (b"one", b"two"):
        path = store.root / "objects" / digest(content)[:2] / digest(content)
        assert path.read_bytes() == content
        assert stat.S_IMODE(path.stat().st_mode) == 0o444
    assert [entry.path for entry in snapshot.files] == ["a.txt", "deep/b.txt"]
    assert not list((store.root / "tmp").iterdir())


def test_the_store_may_be_moved(tmp_path: Path) -> None:
    fill(Store(tmp_path / "store"), {"a": b"one"})
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    found = Store(tmp_path / "elsewhere").find(RECIPE)
    assert found is not None
    assert (found.path / "a").read_bytes() == b"one"


def test_a_relative_root_is_fixed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # case 105
    monkeypatch.chdir(tmp_path)
    store = Store(Path("store"))
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    snapshot = fill(store, {"a": b"one"})
    assert snapshot.path.is_relative_to(tmp_path / "store")
    assert (snapshot.path / "a").read_bytes() == b"one"


@pytest.mark.parametrize("hard_links", [True, False])
def test_without_symbolic_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hard_links: bool) -> None:  # case 105
    monkeypatch.setattr(os, "symlink", no_links)
    if not hard_links:
        monkeypatch.setattr(os, "link", no_links)
    ledger = Ledger()
    store = Store(tmp_path, ledger)
    snapshot = fill(store, {"a": b"one"})
    assert not (snapshot.path / "a").is_symlink()
    assert (snapshot.path / "a").read_bytes() == b"one"
    assert (snapshot.path / "a").samefile(store.objects.path(digest(b"one"))) is hard_links
    assert store.find(RECIPE) == snapshot
    assert ledger.counts().num_hashed_bytes == 0  # a new link is no reason to hash again


def test_equal_files_are_one_object(tmp_path: Path) -> None:
    store = Store(tmp_path)
    fill(store, {"a": b"same", "b": b"same"})
    first = store.objects.path(digest(b"same")).stat()
    fill(store, {"c": b"same"}, Recipe("other", {}))
    assert store.objects.path(digest(b"same")).stat().st_ino == first.st_ino  # an intact object is never replaced


def test_a_snapshot_that_two_recipes_give_is_left_alone(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first = fill(store, {"a": b"same"})
    inode = first.path.stat().st_ino
    assert fill(store, {"a": b"same"}, Recipe("other", {})) == first
    assert first.path.stat().st_ino == inode  # somebody may be opening its files


def test_recipes_are_told_apart_and_order_does_not_count() -> None:
    assert RECIPE.digest == Recipe("test", {"and": "that", "of": "what"}).digest
    assert len({RECIPE.digest, Recipe("test", {"of": "what"}).digest, Recipe("x", RECIPE.inputs).digest}) == 3


@pytest.mark.parametrize("path", ["../out", "/abs", "a/../../b", "", "nul\0", "\ud800.json", "é" * 128])
def test_a_snapshot_stays_in_its_directory(tmp_path: Path, path: str) -> None:
    with pytest.raises(ValueError, match=r"not a path inside|not a name|256 bytes"):
        fill(Store(tmp_path), {path: b"one"})


def test_a_link_that_leads_elsewhere_is_made_anew(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    link = fill(store, {"file": b"one", "other": b"two"}).path / "file"
    for wrong in (b"bad", b"another"):
        (tmp_path / "wrong").write_bytes(wrong)
        link.unlink()
        link.symlink_to(tmp_path / "wrong")
        assert Store(store.root).find(RECIPE) is None
        assert (fill(Store(store.root), {"file": b"one", "other": b"two"}).path / "file").read_bytes() == b"one"


def full(path: Path, data: bytes) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_store_that_was_copied_onto_a_full_disk_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files have other inodes than were noted: they are hashed, and that cannot be noted. Once is enough for a
    process all the same, and for what it gives to peers."""
    fill(Store(tmp_path / "store"), {"file": b"one"})
    shutil.copytree(tmp_path / "store", tmp_path / "copy", symlinks=True)
    monkeypatch.setattr("tickertape.weights.objects.write_atomically", full)
    ledger = Ledger()
    store = Store(tmp_path / "copy", ledger)
    assert store.objects.open_verified(digest(b"one")) is None
    assert dict(store.objects.verified()) == {}
    snapshot = store.find(RECIPE)
    assert snapshot is not None
    assert (snapshot.path / "file").read_bytes() == b"one"
    assert store.find(RECIPE) == snapshot
    assert ledger.counts().num_hashed_bytes == 3
    assert dict(store.objects.verified()) == {digest(b"one"): 3}
    fd = store.objects.open_verified(digest(b"one"))
    assert fd is not None
    os.close(fd)
    touch(store.objects.path(digest(b"one")))
    assert dict(store.objects.verified()) == {}
    assert store.find(RECIPE) == snapshot
    assert ledger.counts().num_hashed_bytes == 6


def test_hashing_what_is_there_is_told_and_may_be_broken_off(tmp_path: Path) -> None:
    content = bytes(9 << 20)
    fill(Store(tmp_path), {"file": content})
    path = Store(tmp_path).objects.path(digest(content))
    touch(path)

    def gone(_: Progress) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):  # an OSError that does not say that the file is bad
        Store(tmp_path, report=gone).find(RECIPE)
    told: list[Progress] = []
    assert Store(tmp_path, report=told.append).find(RECIPE)
    assert {(step.stage, step.total) for step in told} == {("verify", 9 << 20)}
    assert [step.done for step in told] == [0, 4 << 20, 8 << 20, 9 << 20]
    told.clear()
    assert Store(tmp_path, report=told.append).find(RECIPE)
    assert not told


def overwrite(path: Path) -> None:
    path.chmod(0o644)
    path.write_bytes(b"ONE")


def touch(path: Path) -> None:
    os.utime(path, (1, 1))


@pytest.mark.parametrize("harm", [overwrite, Path.unlink, lambda path: os.truncate(path, 1)])
def test_a_damaged_object_is_not_served_and_is_replaced(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    store = Store(tmp_path)
    snapshot = fill(store, {"a": b"one"})
    path = store.objects.path(digest(b"one"))
    mapped = path.open("rb")
    harm(path)
    assert store.find(RECIPE) is None
    assert fill(store, {"a": b"one"}) == snapshot
    assert (snapshot.path / "a").read_bytes() == b"one"
    assert store.find(RECIPE) == snapshot
    assert os.fstat(mapped.fileno()).st_ino != path.stat().st_ino  # whoever has the old one keeps the old one
    mapped.close()


def test_an_object_is_hashed_again_only_when_it_looks_different(tmp_path: Path) -> None:
    fill(Store(tmp_path), {"a": b"one"})

    def num_hashed() -> int:
        """By a process that starts now."""
        ledger = Ledger()
        assert Store(tmp_path, ledger).find(RECIPE)
        return ledger.counts().num_hashed_bytes

    assert num_hashed() == 0
    touch(tmp_path / "objects" / digest(b"one")[:2] / digest(b"one"))
    assert num_hashed() == 3
    assert num_hashed() == 0
    (tmp_path / "meta" / f"{digest(b'one')}.json").write_bytes(b"{")
    assert num_hashed() == 3
    assert num_hashed() == 0


@pytest.mark.parametrize("name", ["derived", "snapshots"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"snapshot": "x"}', b'"x"'])
def test_a_damaged_listing_is_as_good_as_none(tmp_path: Path, name: str, content: bytes) -> None:
    store = Store(tmp_path)
    snapshot = fill(store, {"a": b"one"})
    for path in (store.root / name).glob("*.json"):
        path.write_bytes(content)
    assert store.find(RECIPE) is None
    assert fill(store, {"a": b"one"}) == snapshot
    assert store.find(RECIPE) == snapshot


def test_a_snapshot_that_lost_a_file_is_made_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    snapshot = fill(store, {"a": b"one", "b": b"two"})
    (snapshot.path / "b").unlink()
    assert store.find(RECIPE) is None
    assert fill(store, {"a": b"one", "b": b"two"}) == snapshot
    assert store.find(RECIPE) == snapshot


def test_workspaces_clear_what_the_dead_left_and_spare_the_living(tmp_path: Path) -> None:
    store = Store(tmp_path)
    dead = store.root / "tmp" / f"{RECIPE.digest}.dead"
    other = store.root / "tmp" / "other.dead"
    dead.mkdir(parents=True)
    other.mkdir()
    (dead / "half").write_bytes(b"half")
    with store.workspace(RECIPE) as one:
        assert not dead.exists()
        with store.workspace(RECIPE) as two:
            assert one.exists()
            assert one != two
    assert not one.exists()
    assert other.exists()


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomically(tmp_path / "f", b"old")
    monkeypatch.setattr(os, "fsync", no_links)
    with pytest.raises(OSError, match="not permitted"):
        write_atomically(tmp_path / "f", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_bytes() == b"old"


@pytest.mark.parametrize(
    ("number", "code"), [(28, "NoSpace"), (30, "ReadOnlyStore"), (13, "ReadOnlyStore"), (5, "StoreFailed")]
)
def test_why_a_store_could_not_be_written(number: int, code: str) -> None:
    error = unwritable(OSError(number, os.strerror(number)), "fetching")
    assert error.code == code
    assert "fetching" in error.message


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EIO])
def test_what_could_not_be_written_is_named(number: int) -> None:
    error = unwritable(OSError(number, os.strerror(number), "/store/partial/x/lock"), "fetching")
    assert os.strerror(number).lower() in error.message.lower()
    assert "/store/partial/x/lock" in error.message


def sink_of(tmp_path: Path) -> StoreSink:
    (tmp_path / "work").mkdir(exist_ok=True)
    return StoreSink(Objects(tmp_path), tmp_path / "work")


@pytest.mark.parametrize(
    "pieces", [[(0, b"ab"), (2, b"cd")], [(2, b"cd"), (0, b"ab")], [(0, b"xx"), (2, b"cd"), (0, b"ab")]]
)
def test_pieces_may_come_in_any_order(tmp_path: Path, pieces: list[tuple[int, bytes]]) -> None:
    sink, entry = sink_of(tmp_path), FileEntry("f", 4, digest(b"abcd"))
    assert sink.missing(entry) == ((0, 4),)
    for offset, data in pieces:
        sink.write(entry, offset, data)
    sink.finish(entry)
    assert sink.missing(entry) == ()
    assert Objects(tmp_path).path(digest(b"abcd")).read_bytes() == b"abcd"
    sink.close()


@pytest.mark.parametrize(
    "entry", [FileEntry("f", 5), FileEntry("f", None, digest(b"other")), FileEntry("f", 4, "0" * 64)]
)
def test_what_is_not_as_promised_is_not_published(tmp_path: Path, entry: FileEntry) -> None:
    sink = sink_of(tmp_path)
    sink.write(entry, 0, b"abcd")
    with pytest.raises(StartupError) as caught:
        sink.finish(entry)
    assert caught.value.code == "CorruptDownload"
    assert not (tmp_path / "objects").exists()
    assert "f" not in sink.digests


def test_a_file_that_another_model_brought_is_not_missing(tmp_path: Path) -> None:
    fill(Store(tmp_path), {"a": b"one"})
    sink = sink_of(tmp_path)
    assert sink.missing(FileEntry("b", 3, digest(b"one"))) == ()
    assert sink.digests == {"b": digest(b"one")}
