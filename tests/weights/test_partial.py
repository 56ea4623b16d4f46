"""A file on its way: in whatever order it comes, whatever is killed or torn, only what was written counts as held."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tickertape.core.sources import CHUNK_BYTES
from tickertape.weights.bitmap import Bitmap, Record
from tickertape.weights.mounts import is_local
from tickertape.weights.partial import UNIT_BYTES, Partial

SIZE = 3 * UNIT_BYTES + 12_345
CONTENT = random.Random(1).randbytes(SIZE)
BUFFER = bytearray(UNIT_BYTES)


def taken(directory: Path, size_bytes: int = SIZE) -> Partial:
    partial = Partial.take(directory, size_bytes)
    assert partial is not None
    return partial


def fill(partial: Partial, content: bytes = CONTENT, piece_bytes: int = UNIT_BYTES) -> None:
    while (claim := partial.claim(CHUNK_BYTES)) is not None:
        with claim:
            while claim.position < claim.end:
                claim.write(content[claim.position : min(claim.position + piece_bytes, claim.end)])


def held(partial: Partial) -> dict[int, bytes]:
    """What counts, as it is read; doubtful units that are not what they were are given up by the reading."""
    found = {}
    for unit in range(-(-partial.size_bytes // UNIT_BYTES)):
        if partial.is_held(unit) and (view := partial.read(unit, BUFFER)) is not None:
            found[unit] = bytes(view)
    return found


def truth(unit: int) -> bytes:
    return CONTENT[unit * UNIT_BYTES : (unit + 1) * UNIT_BYTES]


def test_comes_to_its_full_size_at_once_and_is_whole_in_the_end(tmp_path: Path) -> None:
    partial = taken(tmp_path / "k")
    stat = partial.data.stat()
    assert stat.st_size == SIZE
    assert stat.st_blocks * 512 >= SIZE  # the space is taken, not promised
    assert partial.held_bytes == 0
    fill(partial, piece_bytes=100_000)
    assert partial.is_complete
    assert partial.prefix_bytes == SIZE
    inode = stat.st_ino
    partial.seal()
    assert partial.data.read_bytes() == CONTENT
    assert partial.data.stat().st_ino == inode
    partial.remove()
    assert not (tmp_path / "k").exists()


def test_one_taker_at_a_time(tmp_path: Path) -> None:
    partial = taken(tmp_path / "k")
    assert partial.exclusive == is_local(tmp_path)
    assert Partial.take(tmp_path / "k", SIZE) is None
    partial.close()
    partial.close()
    taken(tmp_path / "k").close()


def test_an_empty_file(tmp_path: Path) -> None:
    partial = taken(tmp_path / "k", 0)
    assert partial.is_complete
    assert partial.claim(1) is None
    partial.seal()
    assert partial.data.read_bytes() == b""
    partial.close()


def test_claims_are_apart_stay_within_a_chunk_and_come_back(tmp_path: Path) -> None:
    partial = taken(tmp_path / "k", CHUNK_BYTES + UNIT_BYTES)
    first, second = partial.claim(2 * CHUNK_BYTES), partial.claim(CHUNK_BYTES)
    assert first is not None
    assert second is not None
    assert (first.start, first.end) == (0, CHUNK_BYTES)
    assert (second.start, second.end) == (CHUNK_BYTES, CHUNK_BYTES + UNIT_BYTES)
    assert partial.claim(1) is None
    assert not partial.has_missing()
    with pytest.raises(ValueError, match="more bytes"), second:
        second.write(bytes(UNIT_BYTES + 1))
    again = partial.claim(1 << 30)
    assert again is not None
    assert (again.start, again.end) == (second.start, second.end)
    partial.close()


def test_a_unit_goes_on_where_it_was_left(tmp_path: Path) -> None:
    """A header is asked for alone, and a broken connection costs nothing."""
    partial = taken(tmp_path / "k")
    with partial.claim(5000) as claim:  # type: ignore[union-attr]
        assert (claim.start, claim.end) == (0, 5000)
        claim.write(CONTENT[:3000])
    assert partial.prefix_bytes == 3000
    assert partial.held_bytes == 0
    with partial.claim(SIZE) as claim:  # type: ignore[union-attr]
        assert (claim.start, claim.end) == (3000, SIZE)
        claim.write(CONTENT[3000:SIZE])
    assert held(partial) == {unit: truth(unit) for unit in range(4)}
    partial.close()
    again = taken(tmp_path / "k")
    assert held(again) == {unit: truth(unit) for unit in range(4)}
    again.close()


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_order_any_end_any_damage(data: st.DataObject) -> None:
    """Claims of any length, filled to any point, in any order; then the process is gone (its page cache is not), then
    records are torn, repeated or garbled and data flipped: what still counts as held is what was written."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name) / "k"
        written: set[int] = set()
        for _ in range(data.draw(st.integers(1, 3), "runs")):
            partial = taken(directory)
            assert set(held(partial)) <= written
            for most in data.draw(st.lists(st.integers(1, 3 * UNIT_BYTES), max_size=4), "claims"):
                claim = partial.claim(most)
                if claim is None:
                    break
                with claim:
                    stop = data.draw(st.integers(claim.start, claim.end), "stop")
                    while claim.position < stop:
                        step = data.draw(st.integers(1, UNIT_BYTES * 2), "piece")
                        claim.write(CONTENT[claim.position : min(stop, claim.position + step)])
            written |= {unit for unit in range(4) if partial.is_held(unit)}
            assert all(content == truth(unit) for unit, content in held(partial).items())
            partial.close()
            bitmap = directory / "bitmap"
            raw = bytearray(bitmap.read_bytes())
            if raw and data.draw(st.booleans(), "harm records"):
                at = data.draw(st.integers(0, len(raw) - 1), "where")
                del raw[at : at + data.draw(st.integers(1, 20), "how much")]
                bitmap.write_bytes(raw)
            if data.draw(st.booleans(), "harm data"):
                at = data.draw(st.integers(0, SIZE - 1), "which byte")
                fd = os.open(directory / "data", os.O_RDWR)
                os.pwrite(fd, bytes([os.pread(fd, 1, at)[0] ^ 0x10]), at)
                os.close(fd)
        partial = taken(directory)
        assert all(content == truth(unit) for unit, content in held(partial).items())
        fill(partial)
        assert held(partial) == {unit: truth(unit) for unit in range(4)}
        partial.close()


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2**32 - 1)), min_size=1, max_size=6),
    st.integers(0, 5),
    st.binary(max_size=40),
)
def test_a_torn_record_costs_itself(records: list[tuple[int, int]], where: int, torn: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "bitmap"
        expected = {}
        for number, (unit, crc) in enumerate(records):
            if number == where:
                path.write_bytes((path.read_bytes() if path.exists() else b"") + torn)
            bitmap = Bitmap(path)
            bitmap.open()
            bitmap.append(unit, Record(UNIT_BYTES, crc))
            bitmap.close()
            expected[unit] = Record(UNIT_BYTES, crc)
        assert Bitmap(path).read() == expected


def test_threads_fill_one_file(tmp_path: Path) -> None:
    partial = taken(tmp_path / "k")
    threads = [threading.Thread(target=fill, args=(partial, CONTENT, 77_777)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert held(partial) == {unit: truth(unit) for unit in range(4)}
    partial.close()


FILL = """
import sys
from pathlib import Path
from tickertape.weights.partial import Partial, UNIT_BYTES
partial = Partial.take(Path(sys.argv[1]), int(sys.argv[2]))
content = Path(sys.argv[3]).read_bytes()
claim = partial.claim(1 << 30)
with claim:
    while claim.position < claim.end:
        claim.write(content[claim.position : claim.position + 60_000][: claim.end - claim.position])
        print(claim.position, flush=True)
"""


def test_sigkill_takes_what_was_being_filled_and_no_more(tmp_path: Path) -> None:
    (tmp_path / "content").write_bytes(CONTENT)
    command = [sys.executable, "-c", FILL, str(tmp_path / "k"), str(SIZE), str(tmp_path / "content")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        position = 0
        while position < 2 * UNIT_BYTES + 100_000:
            position = int(process.stdout.readline())
        assert Partial.take(tmp_path / "k", SIZE) is None
        os.kill(process.pid, signal.SIGKILL)
    partial = taken(tmp_path / "k")
    assert {unit: truth(unit) for unit in range(2)}.items() <= held(partial).items()
    partial.close()


def test_giving_up_is_in_place(tmp_path: Path) -> None:
    partial = taken(tmp_path / "k")
    inode = partial.data.stat().st_ino
    fill(partial, bytes(SIZE))
    partial.lose(1, 2)
    assert partial.held_bytes == SIZE - UNIT_BYTES
    partial.restart()
    assert partial.held_bytes == 0
    assert Bitmap(partial.data.with_name("bitmap")).read() == {}
    fill(partial)
    partial.seal()
    assert partial.data.read_bytes() == CONTENT
    assert partial.data.stat().st_ino == inode
    partial.close()


def test_another_size_is_another_file(tmp_path: Path) -> None:
    partial = taken(tmp_path / "k")
    fill(partial)
    partial.close()
    partial = taken(tmp_path / "k", SIZE + 1)
    assert partial.held_bytes == 0
    partial.close()


def refuse(number: int) -> Callable[..., None]:
    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return refused


def test_a_full_disk_says_so_before_anything_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_fallocate", refuse(errno.ENOSPC))
    with pytest.raises(OSError, match="No space"):
        Partial.take(tmp_path / "k", SIZE)
    monkeypatch.undo()
    taken(tmp_path / "k").close()  # nothing was kept locked


def test_without_fallocate_the_size_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_fallocate", refuse(errno.EOPNOTSUPP))
    partial = taken(tmp_path / "k")
    assert partial.data.stat().st_size == SIZE
    partial.close()


@pytest.mark.parametrize("lie", [lambda *_: None, refuse(errno.ENOLCK)])
def test_a_lock_that_keeps_nobody_out_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: Callable[..., None]
) -> None:
    monkeypatch.setattr(fcntl, "flock", lie)
    one, two = taken(tmp_path / "k"), taken(tmp_path / "k")
    assert not one.exclusive
    assert not two.exclusive
    fill(one)
    one.close()
    again = taken(tmp_path / "k")
    assert held(again) == {unit: truth(unit) for unit in range(4)}
    again.close()
    two.close()


MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:21 / /models rw - nfs4 server:/export rw
24 23 0:22 / /models/scratch rw shared:7 - tmpfs tmpfs rw
25 22 0:23 / /a\\040b rw - fuse.sshfs host: rw
26 22 0:24 / /over rw - ext4 /dev/vdb rw
27 22 0:25 / /over rw - virtiofs share rw
"""


@pytest.mark.parametrize(
    ("path", "local"),
    [("/", True), ("/modelsx", True), ("/models/a", False), ("/models/scratch/a", True), ("/a b/c", False),
     ("/over/x", False)],
)  # fmt: skip
def test_what_other_computers_may_share(tmp_path: Path, path: str, local: bool) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS)
    assert is_local(Path(path), tmp_path / "mountinfo") is local
    assert not is_local(Path(path), tmp_path / "none")
