"""Records in a shared directory: one writer wins, whoever slept loses, and nothing is left lying about."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from msgspec import Struct

from tickertape.core.errors import StartupError
from tickertape.core.messages import FetchOptions
from tickertape.weights.slots.choose import choose_slots
from tickertape.weights.slots.files import FileRegister
from tickertape.weights.slots.leased import LeasedSlots
from tickertape.weights.slots.register import RegisterDenied, RegisterFault


class Number(Struct, frozen=True):
    value: int = 0


def register(directory: Path) -> FileRegister[Number]:
    return FileRegister(directory, "number", empty=Number(), unreadable=Number(-1))


def slots(directory: Path, count: int = 1) -> LeasedSlots:
    made = choose_slots(FetchOptions(origin_slots=str(directory), num_origin_slots=count), directory / "store")
    assert isinstance(made, LeasedSlots)
    return made


def swap(file: FileRegister[Number], value: int, version: str) -> str:
    written = file.compare_and_swap(Number(value), version)
    assert written is not None
    return written


def test_a_record_is_what_was_written_last(tmp_path: Path) -> None:
    mine, theirs = register(tmp_path), register(tmp_path)
    assert mine.read() == (Number(), "0")
    version = swap(mine, 1, "0")
    assert theirs.read() == (Number(1), version)
    assert theirs.compare_and_swap(Number(9), "0") is None
    version = swap(theirs, 2, version)
    assert mine.read() == (Number(2), version)


def test_of_many_writers_each_version_has_one(tmp_path: Path) -> None:
    won: list[int] = []

    def count() -> None:
        mine = register(tmp_path)
        for _ in range(50):
            record, version = mine.read()
            if mine.compare_and_swap(Number(record.value + 1), version) is not None:
                won.append(record.value + 1)

    threads = [threading.Thread(target=count) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == len(set(won)), "two were told that they wrote the same version"
    record, version = register(tmp_path).read()
    assert record.value == int(version) >= max(won)


def test_a_writer_who_slept_loses_though_his_number_is_free_again(tmp_path: Path) -> None:
    file = register(tmp_path)
    slept = swap(file, 1, "0")
    version = slept
    for value in range(2, 8):
        version = swap(file, value, version)
    assert not (tmp_path / f"number.{int(slept) + 1}").exists(), "else this shows nothing"
    assert file.compare_and_swap(Number(99), slept) is None
    assert file.read() == (Number(7), version)


def test_a_link_whose_answer_got_lost_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def link_twice(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)  # as an NFS client does when it heard nothing

    monkeypatch.setattr(os, "link", link_twice)
    file = register(tmp_path)
    assert file.compare_and_swap(Number(1), "0") == "1"
    assert file.compare_and_swap(Number(2), "0") is None


def test_old_versions_and_abandoned_drafts_go(tmp_path: Path) -> None:
    (abandoned := tmp_path / ".number.dead").touch()
    os.utime(abandoned, (1, 1))
    (fresh := tmp_path / ".number.alive").touch()
    file, version = register(tmp_path), "0"
    for value in range(10):
        version = swap(file, value, version)
    assert sorted(path.name for path in tmp_path.iterdir()) == [fresh.name, "number.10", "number.9"]


def test_a_version_without_content_is_not_nothing(tmp_path: Path) -> None:
    (tmp_path / "number.7").touch()
    assert register(tmp_path).read() == (Number(-1), "7")
    assert swap(register(tmp_path), 1, "7") == "8"


@pytest.mark.parametrize(
    ("code", "kind"), [(errno.EPERM, RegisterDenied), (errno.ESTALE, RegisterFault), (errno.ENOSPC, RegisterFault)]
)
def test_a_file_system_that_cannot_says_so_without_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[RegisterFault]
) -> None:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code), str(tmp_path))

    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(RegisterFault) as caught:
        register(tmp_path).compare_and_swap(Number(1), "0")
    assert type(caught.value) is kind
    assert os.strerror(code) in str(caught.value)
    assert str(tmp_path) not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_slots_in_a_directory(tmp_path: Path) -> None:
    with closing(slots(tmp_path)) as a, closing(slots(tmp_path)) as b:
        slot = a.acquire()
        assert slot is not None
        assert slot.epoch == 1
        assert b.acquire() is None
        slot.release()
        slot.release()
        again = b.acquire()
        assert again is not None
        assert again.epoch == 2
        again.check()
        b.throttled(30.0)
        assert a.acquire() is None
        with closing(slots(tmp_path)) as late:
            assert 29 < late.cooldown_s() <= 33


def test_a_slot_file_that_holds_nothing_is_somebody_s_until_a_lease_has_passed(tmp_path: Path) -> None:
    (tmp_path / "slot-0.3").touch()
    with closing(slots(tmp_path)) as some:
        assert some.acquire() is None
        assert some.retry_s <= 2.0


def without_links(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)


@pytest.mark.parametrize("spoil", [lambda d, _: d.rmdir(), without_links], ids=["gone", "no links"])
def test_no_slot_and_one_line_where_the_directory_does_not_work(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    spoil: Callable[[Path, pytest.MonkeyPatch], None],
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    with closing(slots(shared)) as some:
        spoil(shared, monkeypatch)
        assert some.acquire() is None
        assert some.trouble is not None
        assert "the shared directory of slots failed" in some.trouble
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


def test_a_directory_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    """It may be a volume that was not mounted: one made in its place would be nobody else's."""
    with pytest.raises(StartupError, match="not there") as caught:
        slots(tmp_path / "volume")
    assert caught.value.code == "NoSlots"
    assert not (tmp_path / "volume").exists()
