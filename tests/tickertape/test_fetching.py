"""Fetching with real fetcher processes that behave badly: what is missing is asked for again, and told once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.tickertape.conftest import Children
from tickertape.children import Child
from tickertape.core.errors import StartupError
from tickertape.core.messages import Fetch, FetchOptions, Resolved, WarmupCounts
from tickertape.core.ports import Progress
from tickertape.fetching import Fetching

PREAMBLE = """
import os, pathlib, signal, sys, time
from tickertape.children import adopt_socket
from tickertape.core.backend import ModelSpec
from tickertape.core.messages import Failure, Loading, Resolved, StoppedEarly, ToFetcher, WarmupCounts
from tickertape.core.ports import Progress
from tickertape.link import Link
link = Link(adopt_socket(int(sys.argv[1])), ToFetcher)
fetch = link.receive()[0]
log = pathlib.Path(__file__).with_name("lives")
log.open("a").write(" ".join(name for name, _ in fetch.models) + "\\n")
life = len(log.read_text().splitlines())
def counts(num_bytes, num_hits): link.send(WarmupCounts(num_bytes={"origin": num_bytes}, num_cache_hits=num_hits))
def here(name, complete=True): link.send(Resolved(ModelSpec(
    name=name, path="/" + name, architecture="X", config={}, max_model_len=8, vocab_size=8), complete))
def at(stage, done): link.send(Loading(0, Progress(stage, done, 10)))
def die(): os.kill(os.getpid(), signal.SIGKILL)
def wait(): sys.exit(0 if not link.receive() else 3)
"""

Start = Callable[[str], Callable[[], Child]]


class Seen:
    """A FetchWatcher that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []
        self.counts = WarmupCounts()
        self.changed = asyncio.Event()

    def fetching(self, number: int, progress: Progress) -> None:
        self._tell(number, progress.stage, progress.done)

    def resolved(self, number: int, resolved: Resolved) -> None:
        self._tell(number, resolved.spec.name, "whole" if resolved.complete else "begun")

    def counted(self, counts: WarmupCounts) -> None:
        self.counts = counts
        self.changed.set()

    def _tell(self, *what: object) -> None:
        self.told.append(what)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


@pytest.fixture
def child_of(children: Children) -> Iterator[Start]:
    """`child_of(script)` starts fetchers that run it after the preamble; `lives` has the models each was asked for."""
    yield lambda script: children.of(PREAMBLE + script)
    for child in children.started:
        assert child.process.poll() is not None, "a fetcher was left"


def fetching(seen: Seen, start: Callable[[], Child], *names: str, peer_port: int | None = None) -> Fetching:
    fetch = Fetch(
        models=tuple((name, f"/{name}") for name in names or ("a", "b")),
        store="/nowhere",
        options=FetchOptions(peer_port=peer_port),
        plugins={},
    )
    return Fetching(fetch, seen, start, jitter=lambda: 0.0)


def lives(tmp_path: Path) -> list[str]:
    return (tmp_path / "lives").read_text().splitlines()


async def test_models_come_in_order_and_the_fetcher_ends(child_of: Start, tmp_path: Path) -> None:
    seen = Seen()
    script = "at('download', 3); here('a', False); at('verify', 9); here('a'); at('download', 1); here('b'); wait()"
    await asyncio.wait_for(fetching(seen, child_of(script)).run(), 60)
    assert seen.told == [
        (0, "download", 3),
        (0, "a", "begun"),
        (0, "verify", 9),
        (0, "a", "whole"),
        (1, "download", 1),
        (1, "b", "whole"),
    ]
    assert lives(tmp_path) == ["a b"]


async def test_a_killed_fetcher_is_followed_by_one_for_the_rest(
    child_of: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()
    script = "life == 1 and (counts(5, 2), here('a'), at('download', 4), die()); counts(7, 1); here('b'); wait()"
    await asyncio.wait_for(fetching(seen, child_of(script)).run(), 60)
    assert seen.told == [(0, "a", "whole"), (1, "download", 4), (1, "b", "whole")]
    assert lives(tmp_path) == ["a b", "b"]
    assert seen.counts == WarmupCounts(num_bytes={"origin": 12}, num_cache_hits=3)
    assert "the fetcher was killed by SIGKILL; starting another" in caplog.text


@pytest.mark.parametrize(
    ("ending", "words"),
    [("sys.exit(0)", "exited with status 0"), ("os.write(link._socket.fileno(), b'\\5\\0\\0\\0hello')", "link broke")],
)
async def test_any_other_death_is_no_end_either(
    child_of: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture, ending: str, words: str
) -> None:
    seen = Seen()
    await asyncio.wait_for(fetching(seen, child_of(f"if life == 1: {ending}\nhere('a'); wait()"), "a").run(), 60)
    assert seen.told == [(0, "a", "whole")]
    assert lives(tmp_path) == ["a", "a"]
    assert words in caplog.text


async def test_its_last_word_is_final(child_of: Start, tmp_path: Path) -> None:
    script = "here('a'); link.send(StoppedEarly(0, Failure('StartupError', 'no such model', 'NotFound'))); sys.exit(1)"
    with pytest.raises(StartupError, match="no such model") as stopped:
        await asyncio.wait_for(fetching(Seen(), child_of(script)).run(), 60)
    assert stopped.value.code == "NotFound"
    assert lives(tmp_path) == ["a b"]


async def test_six_deaths_are_too_many(child_of: Start, tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="again and again; the last time: the fetcher was killed by SIGKILL") as end:
        await asyncio.wait_for(fetching(Seen(), child_of("die()")).run(), 60)
    assert end.value.code == "FetchFailed"
    assert len(lives(tmp_path)) == 6


async def test_one_that_serves_peers_stays_and_may_die(child_of: Start, tmp_path: Path) -> None:
    seen = Seen()
    stopped = "link.send(StoppedEarly(0, Failure('StartupError', 'the port is taken', 'PortInUse'))); sys.exit(1)"
    script = f"life == 1 and (here('a'), counts(1, 0), die())\nif life == 2: {stopped}\ncounts(9, life); wait()"
    running = asyncio.create_task(fetching(seen, child_of(script), "a", peer_port=0).run())
    await seen.until(lambda: seen.counts.num_cache_hits == 3)
    assert seen.counts.num_bytes == {"origin": 10}
    assert seen.told == [(0, "a", "whole")]
    assert lives(tmp_path) == ["a", "", ""]  # it only serves
    assert not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_whoever_gives_up_leaves_no_fetcher(child_of: Start) -> None:
    seen = Seen()
    started: list[Child] = []
    start = child_of("signal.signal(15, signal.SIG_IGN); at('download', 1); time.sleep(600)")
    running = asyncio.create_task(
        fetching(seen, lambda: started.append(start()) or started[-1]).run()  # type: ignore[func-returns-value]
    )
    await seen.until(lambda: bool(seen.told))
    os.kill(started[0].process.pid, signal.SIGSTOP)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 20)
    assert started[0].process.returncode == -signal.SIGKILL
