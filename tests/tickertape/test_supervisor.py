"""A supervisor over real child processes that behave badly."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.tickertape.conftest import Children
from tickertape.children import Child
from tickertape.core.backend import BackendOptions, ModelSpec
from tickertape.core.errors import EngineDead, StartupError, TickertapeError
from tickertape.core.memory import Limits
from tickertape.core.messages import Configure, Ready
from tickertape.core.ports import Progress
from tickertape.core.request import Request, SamplingParams, pack_tokens
from tickertape.remote_engine import RemoteEngine
from tickertape.supervisor import Supervisor

CONFIGURE = Configure(
    epoch=0,
    spec=ModelSpec(name="m", path="/m", architecture="X", config={}, max_model_len=8, vocab_size=8),
    backend="b",
    options=BackendOptions(),
    limits=Limits(max_model_len=8, max_num_seqs=1, max_batch_tokens=8, block_tokens=4),
    plugins={},
)

PREAMBLE = """
import os, signal, sys, time
from tickertape.children import adopt_socket
from tickertape.core.memory import MemoryPlan
from tickertape.core.messages import Emit, Failure, Ready, StoppedEarly, ToWorker
from tickertape.core.ports import EngineStats
from tickertape.link import Link
connection = adopt_socket(int(sys.argv[1]))
link = Link(connection, ToWorker)
configure = link.receive()[0]
epoch = configure.epoch
ready = Ready(epoch, MemoryPlan(0, 0, 0, ()), (), EngineStats())
"""


class Seen:
    """A Watcher that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.epochs: list[int] = []
        self.once_ready = asyncio.Event()
        self.twice_ready = asyncio.Event()

    def loading(self, name: str, progress: Progress) -> None:
        self.told.append("loading")

    def ready(self, name: str, ready: Ready) -> None:
        self.told.append("ready")
        self.epochs.append(ready.epoch)
        (self.twice_ready if self.once_ready.is_set() else self.once_ready).set()

    def lost(self, name: str, error: TickertapeError) -> None:
        self.told.append("lost")


@pytest.fixture
def child_of(children: Children) -> Callable[[str], Callable[[], Child]]:
    """`child_of(script)` starts children that run it after the preamble."""
    return lambda script: children.of(PREAMBLE + script)


async def until_twice_ready(start: Callable[[], Child]) -> tuple[Seen, RemoteEngine]:
    seen, engine = Seen(), RemoteEngine()
    supervisor = Supervisor(CONFIGURE, engine, seen, start)
    running = asyncio.create_task(supervisor.run())
    waiting = asyncio.create_task(seen.twice_ready.wait())
    await asyncio.wait((running, waiting), timeout=60, return_when=asyncio.FIRST_COMPLETED)
    assert waiting.done(), "no second worker"
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    return seen, engine


async def test_a_dead_worker_is_followed_by_one_of_the_next_epoch(
    child_of: Callable[[str], Callable[[], Child]],
) -> None:
    seen, _ = await until_twice_ready(child_of("link.send(ready); time.sleep(0.05 if epoch == 0 else 60)"))
    assert seen.told == ["ready", "lost", "ready"]
    assert seen.epochs == [0, 1]


async def test_a_worker_that_sends_garbage_is_killed_and_replaced(
    child_of: Callable[[str], Callable[[], Child]], caplog: pytest.LogCaptureFixture
) -> None:
    garbage = r"link.send(ready); epoch or (time.sleep(1), connection.sendall(b'\x05\0\0\0hello')); time.sleep(60)"
    seen, _ = await until_twice_ready(child_of(garbage))
    assert seen.told == ["ready", "lost", "ready"]
    assert "the worker of m broke its link (a frame's header is malformed" in caplog.text


async def test_a_worker_that_closes_its_link_and_will_not_die_is_killed(
    child_of: Callable[[str], Callable[[], Child]],
) -> None:
    stubborn = "signal.signal(15, signal.SIG_IGN); link.send(ready); epoch or link.close(); time.sleep(60)"
    started: list[Child] = []
    start = child_of(stubborn)
    seen, _ = await until_twice_ready(lambda: started.append(start()) or started[-1])  # type: ignore[func-returns-value]
    assert seen.told == ["ready", "lost", "ready"]
    assert started[0].process.returncode == -signal.SIGKILL


async def test_the_first_workers_last_word_is_final(child_of: Callable[[str], Callable[[], Child]]) -> None:
    script = "link.send(StoppedEarly(epoch, Failure('StartupError', 'too big', 'InsufficientMemory'))); sys.exit(1)"
    seen, engine = Seen(), RemoteEngine()
    with pytest.raises(StartupError, match="too big") as stopped:
        await asyncio.wait_for(Supervisor(CONFIGURE, engine, seen, child_of(script)).run(), 20)
    assert stopped.value.code == "InsufficientMemory"
    assert seen.told == []
    with pytest.raises(StartupError):
        await engine.health()


async def test_six_deaths_are_too_many(child_of: Callable[[str], Callable[[], Child]]) -> None:
    seen, engine = Seen(), RemoteEngine()
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 0.001
        return now

    starts = 0
    start = child_of("sys.exit(7)")

    def counted() -> Child:
        nonlocal starts
        starts += 1
        return start()

    with pytest.raises(EngineDead, match="exited with status 7"):
        await asyncio.wait_for(Supervisor(CONFIGURE, engine, seen, counted, clock=clock).run(), 40)
    assert starts == 6
    with pytest.raises(EngineDead):
        await engine.health()


async def test_stopping_asks_the_worker_and_starts_no_other(child_of: Callable[[str], Callable[[], Child]]) -> None:
    seen, engine = Seen(), RemoteEngine()
    supervisor = Supervisor(CONFIGURE, engine, seen, child_of("link.send(ready); link.receive(); sys.exit(0)"))
    running = asyncio.create_task(supervisor.run())
    await asyncio.wait_for(seen.once_ready.wait(), 20)
    await supervisor.stop(1.0)
    await asyncio.wait_for(running, 5)
    assert seen.told == ["ready"]


async def owing(engine: RemoteEngine) -> None:
    """An open request, until it is answered or fails."""
    async for _ in engine.generate(
        Request(id=1, prompt=pack_tokens([1]), num_prompt_tokens=1, sampling=SamplingParams(max_tokens=4, seed=0))
    ):
        pass


async def test_a_worker_that_owes_answers_and_says_nothing_is_killed(
    child_of: Callable[[str], Callable[[], Child]], caplog: pytest.LogCaptureFixture
) -> None:
    seen, engine = Seen(), RemoteEngine()
    start = child_of("link.send(ready); time.sleep(600)")
    supervisor = Supervisor(CONFIGURE, engine, seen, start, patience_s=1.0)
    running = asyncio.create_task(supervisor.run())
    await asyncio.wait_for(seen.once_ready.wait(), 60)
    await asyncio.sleep(2)
    assert seen.told == ["ready"]  # it owes nothing
    asking = asyncio.create_task(owing(engine))
    await asyncio.wait_for(seen.twice_ready.wait(), 15)
    assert seen.told == ["ready", "lost", "ready"]
    assert "the worker of m made no step for 1 s with requests open, and was killed" in caplog.text
    asking.cancel()
    running.cancel()
    await asyncio.wait((asking, running))


async def test_a_worker_that_goes_on_is_left_alone(child_of: Callable[[str], Callable[[], Child]]) -> None:
    seen, engine = Seen(), RemoteEngine()
    steps = "\nlink.send(ready)\nwhile True: time.sleep(0.3); link.send(Emit(epoch, [], [], EngineStats()))"
    supervisor = Supervisor(CONFIGURE, engine, seen, child_of(steps), patience_s=2.0)
    running = asyncio.create_task(supervisor.run())
    await asyncio.wait_for(seen.once_ready.wait(), 60)
    asking = asyncio.create_task(owing(engine))
    await asyncio.sleep(5)
    assert seen.told == ["ready"]
    asking.cancel()
    running.cancel()
    await asyncio.wait((asking, running))


def told(tmp_path: Path) -> list[str]:
    """What each worker was told of its model."""
    return (tmp_path / "told").read_text().splitlines()


STAGING = replace(CONFIGURE, spec=replace(CONFIGURE.spec, path="/staging"), complete=False)
PUBLISHED = replace(CONFIGURE.spec, path="/published")
NOTE = """
from pathlib import Path
first = not Path(__file__).with_name("told").exists()
with Path(__file__).with_name("told").open("a") as told: told.write(f"{configure.spec.path} {configure.complete}\\n")
def stop(code): link.send(StoppedEarly(epoch, Failure("StartupError", "no", code))); sys.exit(1)
"""


async def test_a_later_worker_is_told_where_the_model_lies_by_then(
    child_of: Callable[[str], Callable[[], Child]], tmp_path: Path
) -> None:
    seen = Seen()
    supervisor = Supervisor(STAGING, RemoteEngine(), seen, child_of(NOTE + "link.send(ready); first or link.receive()"))
    running = asyncio.create_task(supervisor.run())
    await asyncio.wait_for(seen.once_ready.wait(), 60)
    supervisor.update(PUBLISHED, complete=True)
    await asyncio.wait_for(seen.twice_ready.wait(), 60)
    running.cancel()
    await asyncio.wait({running})
    assert told(tmp_path) == ["/staging False", "/published True"]


async def test_files_that_were_gone_are_waited_for(
    child_of: Callable[[str], Callable[[], Child]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The fetch had to begin again, or had just ended: the worker's word on that is not final."""
    seen = Seen()
    start = child_of(NOTE + "if first: stop('MissingShard')\nlink.send(ready); link.receive()")
    supervisor = Supervisor(STAGING, RemoteEngine(), seen, start)
    running = asyncio.create_task(supervisor.run())
    while "waiting for its files" not in caplog.text:
        assert not running.done()
        await asyncio.sleep(0.01)
    supervisor.update(PUBLISHED, complete=True)
    await asyncio.wait_for(seen.once_ready.wait(), 60)
    running.cancel()
    await asyncio.wait({running})
    assert told(tmp_path) == ["/staging False", "/published True"]


@pytest.mark.parametrize(
    ("configure", "code"),
    [(STAGING, "UnsupportedArchitecture"), (replace(STAGING, complete=True), "MissingShard")],
)
async def test_anything_else_it_says_is_final(
    child_of: Callable[[str], Callable[[], Child]], configure: Configure, code: str
) -> None:
    supervisor = Supervisor(configure, RemoteEngine(), Seen(), child_of(NOTE + f"stop({code!r})"))
    with pytest.raises(StartupError) as stopped:
        await asyncio.wait_for(supervisor.run(), 60)
    assert stopped.value.code == code
