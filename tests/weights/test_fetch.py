"""A fetch against origins, peers and slots that fail in every way: what is published is right, little is repeated."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import math
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.weights.fetch_kit import MIB, PIECE_BYTES, Action, Rig, ScriptedPeers, content, manifest_of, shard
from tickertape.core.errors import OriginChanged, StartupError
from tickertape.core.messages import FetchOptions
from tickertape.core.ports import Progress
from tickertape.core.sources import CHUNK_BYTES, FileEntry, Manifest
from tickertape.weights.fetch.fetch import Fetch
from tickertape.weights.objects import Objects
from tickertape.weights.partial import Partial

MODEL = {
    "config.json": b"{}" * 100,
    "a.safetensors": shard(3 * MIB + 7, 1),
    "b.safetensors": shard(2 * MIB, 2, header_bytes=MIB + 100),
    "tokenizer.json": content(70_000, 3),
    "empty.txt": b"",
}
TOTAL = sum(map(len, MODEL.values()))


@pytest.fixture
def root() -> Iterator[Path]:
    """In memory where that is to be had: much is written and synced."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as name:
        yield Path(name)


def failure(rig: Rig) -> StartupError:
    with pytest.raises(StartupError) as caught:
        rig.run()
    assert "\n" not in caught.value.message
    return caught.value


def test_brings_everything_once(root: Path) -> None:
    rig = Rig(root, MODEL)
    rig.run()
    assert rig.origin.sent_bytes == TOTAL
    assert not list((root / "partial").iterdir())
    counts = rig.fetching.ledger.counts()
    assert counts.num_bytes == {"origin": TOTAL}
    assert counts.num_hashed_bytes == TOTAL  # each byte read once
    assert counts.num_origin_requests == len(rig.origin.requests)
    assert rig.stages[-1].total == TOTAL
    assert {stage.stage for stage in rig.stages} <= {"slot", "download", "verify"}


def hold_bodies(rig: Rig, until: Callable[[], bool]) -> None:
    """What comes after the headers waits."""

    def before(number: int) -> None:
        path, start, _, _ = rig.origin.requests[number]
        deadline = time.monotonic() + 20
        while path.endswith(".safetensors") and start > 0 and start != 32 << 10 and not until():
            assert time.monotonic() < deadline
            time.sleep(0.001)

    rig.origin.before = before


def test_small_files_then_headers_then_bodies(root: Path) -> None:
    places: list[Mapping[str, Path]] = []
    rig = Rig(root, MODEL, options=FetchOptions(origin_connections=1), arriving=places.append)
    hold_bodies(rig, lambda: bool(places))
    rig.run()
    asked = [(path, start, end) for path, start, end, _ in rig.origin.requests]
    small = {path for path, _, _ in asked[:2]}
    assert small == {"config.json", "tokenizer.json"}
    headers = asked[2:5]  # one of them is longer than the first look
    assert {path for path, _, _ in headers} == {"a.safetensors", "b.safetensors"}
    assert max(end for path, _, end in headers if path == "b.safetensors") == MIB + 100
    assert all(start > 0 for _, start, _ in asked[5:])
    assert [places[0][path].read_bytes() for path in ("config.json", "empty.txt")] == [MODEL["config.json"], b""]
    assert set(places[0]) == set(MODEL)
    assert len(places) == 1


def test_what_is_told_early_has_its_size_and_header_and_becomes_the_object(root: Path) -> None:
    seen: dict[str, Any] = {}

    def arriving(places: Mapping[str, Path]) -> None:
        for path in ("a.safetensors", "b.safetensors"):
            stat = places[path].stat()
            header = int.from_bytes(MODEL[path][:8], "little") + 8
            seen[path] = (stat.st_size, stat.st_ino, places[path].read_bytes()[:header] == MODEL[path][:header])

    rig = Rig(root, MODEL, arriving=arriving)
    hold_bodies(rig, lambda: len(seen) == 2)
    for path, sha256 in rig.run().items():
        if path in seen:
            assert seen[path] == (len(MODEL[path]), rig.store.objects.path(sha256).stat().st_ino, True)
    assert len(seen) == 2


def test_a_weight_file_may_become_an_object_while_its_header_is_asked_for(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that ended left all of it: the next one verifies it at once, before the small files let it be looked at."""
    files = {"config.json": b"{}", "w.safetensors": MODEL["a.safetensors"]}
    small, large = (hashlib.sha256(data).hexdigest() for data in files.values())
    left = Partial.take(root / "partial" / large, len(files["w.safetensors"]))
    assert left is not None
    while (claim := left.claim(CHUNK_BYTES)) is not None:
        with claim:
            claim.write(files["w.safetensors"][claim.start : claim.end])
    left.close()
    renamed, looked_at = threading.Event(), threading.Event()
    adopt = Objects.adopt

    def adopt_slowly(objects: Objects, file: Path, sha256: str) -> None:
        adopt(objects, file, sha256)
        if sha256 == large:
            renamed.set()
            assert looked_at.wait(20)

    def report(progress: Progress) -> None:
        if progress.done == progress.total and not (root / "partial" / small).exists():
            looked_at.set()  # the step that reports looked first

    monkeypatch.setattr(Objects, "adopt", adopt_slowly)
    rig = Rig(root, files, arriving=lambda _: None, report=report)
    rig.origin.before = lambda _: None if renamed.wait(20) else pytest.fail("it was not published")
    rig.run()
    assert rig.origin.sent_bytes == len(files["config.json"])


def test_ranges_and_connections_are_bounded(root: Path) -> None:
    rig = Rig(root, {"w.safetensors": shard(5 * CHUNK_BYTES + 5, 1)}, options=FetchOptions(origin_connections=3))
    rig.run()
    assert max(end - start for _, start, end, _ in rig.origin.requests) <= CHUNK_BYTES
    assert len(rig.origin.requests) == 6
    assert 1 <= rig.origin.most_open <= 3


def test_a_rate_limit_holds(root: Path) -> None:
    rig = Rig(root, {"w": content(8 * MIB, 1)}, options=FetchOptions(max_origin_mbps=8.0))
    started = rig.clock.now()
    rig.run()
    assert rig.clock.now() - started >= 8 * MIB / 1e6 - 0.5


FAULTS = st.one_of(
    st.tuples(st.just("cut"), st.integers(0, 2 * MIB)),
    st.tuples(st.just("stall"), st.floats(1, 100), st.integers(0, MIB)),
    st.tuples(st.just("busy"), st.one_of(st.none(), st.floats(0, 50))),
    st.tuples(st.just("corrupt"), st.integers(0, 5 * MIB)),
    st.sampled_from([("error",), ("changed",), ("short",), ("more",), ("ok",), ("refuse", "Gated")]),
)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(FAULTS, max_size=8), min_size=1, max_size=3),
    st.sets(st.integers(1, 60), max_size=4),
    st.integers(0, 10),
    st.sets(st.sampled_from(sorted(MODEL)), max_size=3),
    st.lists(
        st.one_of(
            st.tuples(st.just("corrupt"), st.integers(0, MIB)),
            st.tuples(st.just("cut"), st.integers(0, MIB)),
            st.tuples(st.just("fault"), st.sampled_from([None, 3.0])),
        ),
        max_size=3,
    ),
)
def test_any_faults_in_any_order(
    runs: list[list[Action]], lose_at: set[int], seed: int, offered: set[str], peer_script: list[Action]
) -> None:
    """However often it fails, nothing wrong is published (the rig checks), and an undisturbed run completes."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as name:
        peers = ScriptedPeers(MODEL, dict.fromkeys(offered, 2), script=peer_script)
        rig = Rig(Path(name), MODEL, seed=seed, lose_at=lose_at, peers=peers)
        for script in runs:
            try:
                rig.again(script).run()
            except StartupError as error:
                if error.code not in {"RevisionMoved", "Gated", "CorruptDownload"}:
                    raise
        rig.lose_at = ()
        rig.again().run()


def test_a_run_goes_on_where_the_last_one_was_broken_off(root: Path) -> None:
    size = 12 * MIB
    rig = Rig(root, {"w.safetensors": shard(size, 1)}, script=[("cut", 7 * MIB + 300_000), ("refuse", "Unauthorized")])
    assert failure(rig).code == "Unauthorized"
    first = rig.origin.sent_bytes
    assert first >= 7 * MIB
    rig.again().run()
    assert rig.origin.sent_bytes <= size - 7 * MIB
    assert rig.fetching.ledger.counts().num_hashed_bytes == size  # what was there is read once, to verify and to hash


def test_within_a_run_a_broken_connection_costs_nothing(root: Path) -> None:
    rig = Rig(root, {"w": content(9 * MIB, 1)}, script=[("cut", 100_001), ("cut", 3), ("cut", 2 * MIB + 1), ("short",)])
    rig.run()
    assert rig.origin.sent_bytes == 9 * MIB


def test_what_changed_on_the_disk_between_runs_is_fetched_again(root: Path) -> None:
    rig = Rig(root, {"w": content(6 * MIB, 1)}, script=[("cut", 5 * MIB), ("refuse", "Gated")])
    failure(rig)
    (data,) = root.glob("partial/*/data")
    fd = os.open(data, os.O_RDWR)
    os.pwrite(fd, b"lost in a power cut", 2 * MIB + 5)
    os.close(fd)
    rig.again().run()
    assert rig.origin.sent_bytes == 2 * MIB  # the unit that is not what its record says, and the last


def test_a_429_is_obeyed_by_the_letter(root: Path) -> None:
    rig = Rig(root, MODEL, script=[("busy", 30.0), ("busy", 7.0)])
    rig.run()
    times = [at for _, _, _, at in rig.origin.requests]
    assert times[1] >= times[0] + 30
    assert times[2] >= times[1] + 7
    assert rig.slots.throttles == [30.0, 7.0]
    assert rig.fetching.ledger.counts().num_origin_429 == 2
    left_s = [stage.eta_s or 0.0 for stage in rig.stages if stage.stage == "cooldown"]
    assert 30 <= max(left_s) <= 33
    assert {stage.has_slot for stage in rig.stages if stage.stage == "download"} == {True}


def test_a_storm_of_429_gets_one_request_per_window(root: Path) -> None:
    """One connection asks first; the others come when it was answered."""
    files = {f"{n}.safetensors": shard(MIB, n) for n in range(20)}
    rig = Rig(root, files, script=[("busy", 20.0)] * 5, options=FetchOptions(origin_connections=8))
    rig.run()
    times = [at for _, _, _, at in rig.origin.requests[:6]]
    assert all(later - earlier >= 20 for earlier, later in pairwise(times))


def test_the_clusters_pause_is_ours(root: Path) -> None:
    rig = Rig(root, MODEL)
    rig.slots.cooling_until = rig.clock.now() + 45
    started = rig.clock.now()
    rig.run()
    assert rig.origin.requests[0][3] >= started + 45


def test_a_lost_slot_closes_what_is_open_and_the_fetch_goes_on_under_another(root: Path) -> None:
    rig = Rig(root, {"w": content(8 * MIB, 1)}, lose_at={9})
    rig.run()
    assert rig.origin.num_closed >= 2  # when it was lost, and in the end
    assert len(rig.slots.asked) == 2
    # The buffer that was being received when it was lost is not written: that is all that came twice.
    assert rig.origin.sent_bytes <= 8 * MIB + PIECE_BYTES


def test_waiting_for_a_slot_is_no_reason_to_give_up(root: Path) -> None:
    rig = Rig(root, MODEL, options=FetchOptions(fetch_patience_s=20.0), free_at=1000.0 + 500)
    waited_s: list[float] = []
    rig.report = lambda _: waited_s.append(rig.fetching.ledger.counts().slot_wait_s)
    rig.run()
    assert rig.origin.requests[0][3] >= 1500
    assert any(200 < seconds < 300 for seconds in waited_s)  # it is told while it lasts
    assert "slot" in {stage.stage for stage in rig.stages}
    assert all(later - earlier >= rig.slots.retry_s * 0.99 for earlier, later in zip(
        rig.slots.asked, rig.slots.asked[1:], strict=False))  # fmt: skip
    assert rig.fetching.ledger.counts().slot_wait_s >= 499


def test_slots_that_do_not_work_are_not_waited_for_for_ever(root: Path) -> None:
    rig = Rig(root, MODEL, options=FetchOptions(fetch_patience_s=20.0), free_at=math.inf)
    rig.slots.trouble = "there is no Lease"
    error = failure(rig)
    assert error.code == "NoSlots"
    assert "there is no Lease" in error.message
    assert ("slot", "there is no Lease") in {(stage.stage, stage.detail) for stage in rig.stages}


def test_patience_ends_with_the_last_reason(root: Path) -> None:
    rig = Rig(root, MODEL, script=[("error",)] * 1000, options=FetchOptions(fetch_patience_s=120.0))
    started = rig.clock.now()
    error = failure(rig)
    assert error.code == "FetchFailed"
    assert "cannot be reached" in error.message
    assert 120 <= rig.clock.now() - started < 140
    assert 4 < len(rig.origin.requests) < 60  # with pauses that grow


def test_peers_come_first_and_need_no_slot(root: Path) -> None:
    peers = ScriptedPeers(MODEL, dict.fromkeys(MODEL, 1))
    rig = Rig(root, MODEL, peers=peers)
    rig.run()
    assert not rig.origin.requests
    assert not rig.slots.asked
    assert rig.num_bytes == {"peer": TOTAL}


def test_a_peer_with_wrong_bytes_is_not_asked_again(root: Path) -> None:
    peers = ScriptedPeers(MODEL, {"a.safetensors": 1}, script=[("corrupt", 5)])
    rig = Rig(root, MODEL, peers=peers)
    found = rig.run()
    assert peers.rejected == [found["a.safetensors"]]
    assert sum(end - start for path, start, end, _ in rig.origin.requests if path == "a.safetensors") == len(
        MODEL["a.safetensors"]
    )


def test_a_busy_peer_is_waited_for_a_failing_one_is_not(root: Path) -> None:
    files = {"w": content(3 * MIB, 1)}
    rig = Rig(root, files, peers=ScriptedPeers(files, {"w": 1}, script=[("fault", 6.0), ("fault", 6.0)]))
    started = rig.clock.now()
    rig.run()
    assert not rig.origin.requests
    assert rig.clock.now() - started >= 12
    other = Rig(
        root / "other", files, peers=ScriptedPeers(files, {"w": 1}, script=[("cut", MIB)] + [("fault", None)] * 99)
    )
    other.run()
    assert other.num_bytes == {"peer": MIB, "origin": 2 * MIB}


def test_what_another_holder_is_fetching_comes_last_but_not_never(root: Path) -> None:
    files = {f"{n}.safetensors": shard(MIB, n) for n in range(4)}
    peers = ScriptedPeers(files, partial={"2.safetensors": 1})
    rig = Rig(root, files, peers=peers)
    rig.run()
    (last, *_), times = rig.origin.requests[-1], [at for _, _, _, at in rig.origin.requests]
    assert last == "2.safetensors"
    assert times[-1] - times[-2] >= 10
    assert {stage.num_peers for stage in rig.stages} == {1}


def test_two_holders_bring_different_files(root: Path) -> None:
    files = {f"{n}.safetensors": shard(MIB, n) for n in range(12)}
    orders = []
    for seed in (1, 2):
        rig = Rig(root / str(seed), files, seed=seed, peers=ScriptedPeers(files))
        rig.run()
        orders.append([path for path, _, _, _ in rig.origin.requests])
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])


def test_partly_from_peers_where_chunks_can_be_checked(root: Path) -> None:
    files = {"w.safetensors": shard(CHUNK_BYTES + 5 * MIB, 1)}
    raw = files["w.safetensors"]
    entry = FileEntry("w.safetensors", len(raw), hashlib.sha256(raw).hexdigest(), chunk_sha256=tuple(
        hashlib.sha256(raw[at : at + CHUNK_BYTES]).hexdigest() for at in range(0, len(raw), CHUNK_BYTES)))  # fmt: skip
    peers = ScriptedPeers(files, partial={"w.safetensors": 1}, script=[("corrupt", 99)])
    rig = Rig(root, files, manifest=Manifest("mem://model", "r1", (entry,)), peers=peers)
    rig.run()
    assert rig.num_bytes.keys() == {"peer", "origin"}  # who sent it wrong is not asked again
    assert sum(rig.num_bytes.values()) == len(raw) + min(CHUNK_BYTES, peers.reads[0][2])  # only that chunk came twice
    assert len(peers.rejected) == 1


def test_a_chunk_that_is_wrong_costs_a_chunk_and_whats_right_is_shown_to_peers(root: Path) -> None:
    raw = shard(3 * CHUNK_BYTES, 1)
    chunks = tuple(hashlib.sha256(raw[at : at + CHUNK_BYTES]).hexdigest() for at in range(0, len(raw), CHUNK_BYTES))
    entry = FileEntry("w.safetensors", len(raw), hashlib.sha256(raw).hexdigest(), chunk_sha256=chunks)
    rig = Rig(root, {"w.safetensors": raw}, manifest=Manifest("mem://m", "1", (entry,)),
              script=[("ok",), ("corrupt", 1000)], options=FetchOptions(origin_connections=1))  # fmt: skip
    shown: list[int] = []

    def look(_: int) -> None:
        for partial in rig.fetching.underway.partials():
            shown.extend(end for _, end in partial.ranges)
            if (opened := rig.fetching.underway.open(partial.sha256)) is not None:
                end = opened[1].ranges[0][1]
                assert os.pread(opened[0], end, 0) == raw[:end]
                os.close(opened[0])

    rig.origin.before = look
    rig.run()
    assert rig.origin.sent_bytes == 4 * CHUNK_BYTES
    assert set(shown) <= {CHUNK_BYTES, 2 * CHUNK_BYTES}
    assert not rig.fetching.underway.partials()


def test_an_origin_that_is_always_wrong_is_given_up(root: Path) -> None:
    rig = Rig(root, {"w": content(2 * MIB, 1)}, script=[("corrupt", 3)] * 99)
    assert failure(rig).code == "CorruptDownload"
    assert len(rig.origin.requests) == 4
    assert not list(root.glob("objects/*/*"))


def test_a_changed_origin_ends_the_run_and_keeps_what_came(root: Path) -> None:
    rig = Rig(root, {"w": content(4 * MIB, 1)}, script=[("cut", 2 * MIB), ("changed",)])
    with pytest.raises(OriginChanged):
        rig.run()
    rig.again().run()
    assert rig.origin.sent_bytes == 2 * MIB


def test_no_space_is_waited_for_then_said(root: Path) -> None:
    asked: list[int] = []

    def make_room(num_bytes: int) -> None:
        asked.append(num_bytes)
        if len(asked) < 4:
            raise StartupError("no space", code="NoSpace")

    rig = Rig(root / "a", MODEL, make_room=make_room)
    rig.run()
    assert asked[0] == TOTAL
    assert "space" in {stage.stage for stage in rig.stages}

    def never(_: int) -> None:
        raise StartupError("no space at all", code="NoSpace")

    full = Rig(root / "b", MODEL, make_room=never, options=FetchOptions(fetch_patience_s=60.0))
    assert failure(full).code == "NoSpace"
    assert not full.origin.requests


def test_a_disk_that_fills_up_meanwhile(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite, left = os.pwrite, [3]

    def full(fd: int, data: Any, offset: int) -> int:
        left[0] -= 1
        if left[0] == 0:
            raise OSError(28, "No space left on device")
        return pwrite(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    rig = Rig(root, {"w": content(4 * MIB, 1)})
    rig.run()
    assert "space" in {stage.stage for stage in rig.stages}


def fill_disk(patch: pytest.MonkeyPatch, call: str, fails: Callable[[int], bool]) -> None:
    """The n-th fsync, rename or sync of data finds no room, for each n from 1 on that `fails`."""
    where: Any = Path if call == "rename" else os
    original, num_calls = getattr(where, call), [0]

    def full(*args: Any) -> Any:
        num_calls[0] += 1
        if fails(num_calls[0]):
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(*args)

    patch.setattr(where, call, full)


@pytest.mark.parametrize("locks", ["work", "keep nobody out"])
@pytest.mark.parametrize(
    ("call", "number"), [*(("fsync", n) for n in range(1, 7)), ("rename", 1), ("rename", 2), ("fdatasync", 1)]
)
def test_a_disk_that_fills_up_while_a_file_is_published(
    root: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, locks: str
) -> None:
    if locks != "work":
        monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    if call == "fdatasync":
        monkeypatch.setattr("tickertape.weights.fetch.hashing._SYNC_BYTES", MIB)
    fill_disk(monkeypatch, call, lambda n: n == number)
    rig = Rig(root, {"w": content(4 * MIB, 1)})
    rig.run()
    (told,) = {stage.detail for stage in rig.stages if stage.stage == "space"}
    assert told.startswith("no space left in the weights store")
    assert rig.origin.sent_bytes == 4 * MIB
    assert not list((root / "partial").iterdir())


def test_a_file_whose_sync_failed_is_compared_with_what_came(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a file system could not write it may forget: here a page of zeros takes its place."""
    fsync, has_failed = os.fsync, [False]

    def full(fd: int) -> None:
        if not has_failed[0]:
            has_failed[0] = True
            (data,) = root.glob("partial/*/data")
            with data.open("r+b") as file:
                file.seek(MIB + 8192)
                file.write(bytes(4096))
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(fd)

    monkeypatch.setattr(os, "fsync", full)
    rig = Rig(root, {"w": content(4 * MIB, 1)})
    rig.run()
    assert rig.origin.sent_bytes == 5 * MIB  # the unit that lost it, and no more


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_room_that_never_comes_is_not_waited_for_for_ever(
    root: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Though there seems to be some, again and again."""
    fill_disk(monkeypatch, call, lambda _: True)
    rig = Rig(root, {"w": content(2 * MIB, 1)}, options=FetchOptions(fetch_patience_s=60.0))
    started = rig.clock.now()
    assert failure(rig).code == "NoSpace"
    assert 60 <= rig.clock.now() - started < 90
    monkeypatch.undo()
    rig.again().run()
    assert rig.origin.sent_bytes == 0


@pytest.mark.parametrize("pin", ["git", "etag", "revision", "none"])
def test_files_without_a_sha256(root: Path, pin: str) -> None:
    raw = content(3 * MIB, 1)
    git = hashlib.sha1(b"blob %d\0" % len(raw) + raw).hexdigest()
    entry = FileEntry("w", len(raw), git_sha1=git if pin == "git" else None, etag='"1"' if pin == "etag" else None)
    manifest = Manifest("mem://m", "r1" if pin == "revision" else "", (entry,))
    rig = Rig(root, {"w": raw}, manifest=manifest, script=[("cut", 2 * MIB), ("refuse", "Gated")])
    failure(rig)
    rig.again().run()
    assert rig.origin.sent_bytes == (MIB if pin != "none" else 3 * MIB)  # what is not pinned is not resumed
    rig.again().run()
    assert rig.origin.sent_bytes == (0 if pin != "none" else 3 * MIB)
    assert not list((root / "partial").iterdir())


def test_a_git_blob_that_is_wrong_is_noticed(root: Path) -> None:
    raw = content(100, 1)
    entry = FileEntry("w", 100, git_sha1=hashlib.sha1(b"blob 100\0" + raw).hexdigest())
    rig = Rig(root, {"w": raw}, manifest=Manifest("mem://m", "r", (entry,)), script=[("corrupt", 3)])
    rig.run()
    assert len(rig.origin.requests) == 2


def test_one_content_under_two_names_comes_once(root: Path) -> None:
    rig = Rig(root, {"a": content(MIB, 1), "b": content(MIB, 1)})
    assert len(set(rig.run().values())) == 1
    assert rig.origin.sent_bytes == MIB


def test_what_the_store_has_is_not_fetched(root: Path) -> None:
    Rig(root, {"x": MODEL["a.safetensors"]}).run()
    rig = Rig(root, MODEL)
    rig.run()
    assert rig.origin.sent_bytes == TOTAL - len(MODEL["a.safetensors"])
    assert rig.fetching.ledger.counts().num_cache_hits == 1
    again = rig.again()
    again.stages.clear()
    again.run()
    assert {stage.stage for stage in again.stages} == {"verify"}  # and nobody else is said to be at it


def test_a_size_that_is_not_known_is_refused(root: Path) -> None:
    with pytest.raises(StartupError, match="how long"):
        Rig(root, {"w": b""}, manifest=Manifest("mem://m", "", (FileEntry("w"),))).run()


def test_another_process_at_the_same_file_is_waited_for(root: Path) -> None:
    rig = Rig(root, {"w": content(MIB, 1)})
    (entry,) = manifest_of(rig.contents).files
    other = Partial.take(root / "partial" / (entry.sha256 or ""), MIB)
    assert other is not None

    def let_go(_: object) -> None:
        if len(rig.stages) == 3:
            other.close()

    rig.report = let_go
    rig.run()
    assert rig.stages[0].stage == "wait"


@pytest.mark.parametrize("seed", range(6))
def test_where_locks_keep_nobody_out_two_may_fetch_at_once(
    root: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Both write one partial file, and what one gets is wrong now and then: neither publishes what is wrong."""
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    rng = random.Random(seed)
    files = {"w": content(6 * MIB + 5, 1), "v": content(MIB, 2)}
    errors: list[BaseException] = []

    def run(rig: Rig) -> None:
        for _ in range(6):
            try:
                fetch_bare(rig)
                return
            except StartupError as error:
                if error.code != "CorruptDownload":
                    errors.append(error)
                rig.again()
        errors.append(AssertionError("never whole"))

    rigs = []
    for n in range(2):
        script: list[Action] = [
            rng.choice([("ok",), ("corrupt", rng.randrange(MIB)), ("cut", rng.randrange(2 * MIB))]) for _ in range(6)
        ]
        rig = Rig(root, files, script=script, seed=n)
        rigs.append(rig)
    threads = [threading.Thread(target=run, args=(rig,)) for rig in rigs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    rigs[0].check_objects()
    for raw in files.values():
        assert rigs[0].store.objects.path(hashlib.sha256(raw).hexdigest()).read_bytes() == raw


def fetch_bare(rig: Rig) -> None:
    Fetch(manifest_of(rig.contents), lambda: rig.origin, rig.store, rig.fetching, lambda _: None).run()


def test_what_report_raises_ends_it(root: Path) -> None:
    class Gone(Exception):
        pass

    def gone(_: object) -> None:
        raise Gone

    with pytest.raises(Gone):
        Rig(root, MODEL, report=gone).run()


def test_manifests_are_kept_apart(root: Path) -> None:
    """Without a digest a file is what its manifest pins, and no other."""
    one = Manifest("mem://m", "r1", (FileEntry("w", 100, etag="1"),))
    rig = Rig(root, {"w": content(100, 1)}, manifest=one)
    first = rig.run()
    rig.contents = {"w": content(100, 2)}
    rig.manifest = structs.replace(one, revision="r2")
    assert rig.again().run() != first
