"""Files that are read again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tickertape import reloading
from tickertape.reloading import Reloader


class Watching:
    def __init__(self, file: Path) -> None:
        self.file = file
        self.read: list[str] = []
        self.reloader = Reloader()
        self.reloader.watch("the file", (file,), self._load)

    async def _load(self) -> None:
        text = self.file.read_text()
        if text == "bad":
            raise ValueError("it is bad")
        self.read.append(text)

    async def until(self, *texts: str) -> None:
        for _ in range(500):
            if self.read == list(texts):
                return
            await asyncio.sleep(0.01)
        raise AssertionError(self.read)


@pytest.fixture
async def watching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watching]:
    monkeypatch.setattr(reloading, "_POLL_S", 0.02)
    (tmp_path / "a").write_text("first")
    made = Watching(tmp_path / "a")
    running = asyncio.ensure_future(made.reloader.run())
    yield made
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


Change = Callable[[Path], object]


def rewritten(file: Path) -> None:
    file.write_text("second")


def replaced(file: Path) -> None:
    (file.parent / "new").write_text("second")
    (file.parent / "new").rename(file)


@pytest.mark.parametrize("change", [rewritten, replaced])
async def test_a_change_is_seen(watching: Watching, change: Change) -> None:
    await asyncio.sleep(0.1)
    assert watching.read == []
    change(watching.file)
    await watching.until("second")


async def test_a_link_that_points_elsewhere_is_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Kubernetes renews a mounted secret."""
    monkeypatch.setattr(reloading, "_POLL_S", 0.02)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "key").write_text(name)
    (tmp_path / "data").symlink_to("one")
    watching = Watching(tmp_path / "data" / "key")
    running = asyncio.ensure_future(watching.reloader.run())
    (tmp_path / "next").symlink_to("two")
    (tmp_path / "next").rename(tmp_path / "data")
    await watching.until("two")
    running.cancel()
    await asyncio.wait({running})


async def test_what_cannot_be_read_is_logged_once_and_read_when_it_is_good(
    watching: Watching, caplog: pytest.LogCaptureFixture
) -> None:
    watching.file.write_text("bad")
    for _ in range(500):
        if caplog.records:
            break
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert [(record.levelno, record.getMessage().partition(":")[2]) for record in caplog.records] == [
        (logging.ERROR, " it is bad")
    ]
    watching.file.unlink()
    await asyncio.sleep(0.1)
    watching.file.write_text("good")
    await watching.until("good")


async def test_it_looks_when_told(watching: Watching) -> None:
    watching.reloader.look()
    await watching.until("first")


def test_a_reloader_without_files_says_so() -> None:
    load: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0)  # noqa: E731
    reloader = Reloader()
    assert not reloader
    reloader.watch("a", (), load)
    assert reloader
