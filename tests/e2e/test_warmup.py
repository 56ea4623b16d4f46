"""The way to ready of a real server: however long it takes and whatever dies on it, the probes tell the truth."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tickertape.testing.processes import Server, command_line, wait_until

Serve = Callable[..., Server]
Start = Callable[..., Any]

SLOW_SOURCE = '''
"""slow://DIRECTORY: the files of a directory, a piece every now and then; what FILE says happens on the way."""
import os, time
from pathlib import Path
from tickertape.plugins import FileEntry, Manifest, Progress, StartupError, hookimpl

API = (1, 0)

class Slow:
    name, schemes = "slow", ("slow",)

    def resolve(self, uri):
        directory = Path("/" + uri.partition("://")[2].strip("/"))
        files = sorted(path for path in directory.iterdir() if path.is_file())
        return Manifest(uri, "1", tuple(FileEntry(path.name, path.stat().st_size) for path in files))

    def fetch(self, manifest, sink):
        directory = Path("/" + manifest.uri.partition("://")[2].strip("/"))
        orders = directory.parent / "orders"
        for number in range(10_000):
            order = orders.read_text() if orders.exists() else ""
            if order == "go":
                break
            if order:
                raise StartupError("the origin knows no such revision", code=order)
            time.sleep(0.02)
            yield Progress("download", number, 10_000, source="origin")
        for entry in manifest.files:
            sink.write(entry, 0, (directory / entry.path).read_bytes())
            sink.finish(entry)

@hookimpl
def register_weight_sources(register):
    register(Slow())
'''

SLOW_BACKEND = '''
"""The scripted runner, which takes its time to load."""
import time
from tickertape.plugins import Backend, Capabilities, Progress, hookimpl
from tickertape.plugins.backends.scripted.runner import ScriptedRunner
from tickertape.plugins.backends.scripted.script import Script

API = (1, 0)

class Sleepy(ScriptedRunner):
    def load(self, weights):
        yield Progress("load", 0, 10, "steps")
        time.sleep(8)  # without a word
        yield Progress("load", 10, 10, "steps")

def make(spec, options):
    return Sleepy(Script.of(spec))

@hookimpl
def register_backends(register):
    register(Backend(name="sleepy", kind="runner", factory=f"{__name__}:make", capabilities=Capabilities(), summary=""))
'''


@pytest.fixture
def slow(tiny: Path, tmp_path: Path) -> Path:
    """A plugin directory with the slow source; `orders` beside `model` says "go", or a reason to fail with."""
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "slow.py").write_text(SLOW_SOURCE)
    (tmp_path / "model").symlink_to(tiny)
    return tmp_path


@pytest.fixture
def serve_slowly(start: Start, slow: Path) -> Callable[..., Server]:
    def serve(*arguments: str, **options: Any) -> Server:
        plugins = ("--plugins-dir", str(slow / "plugins"))
        server: Server = start(Server, f"tiny=slow://{slow}/model", "--port", "0", *plugins, *arguments, **options)
        return server

    return serve


def fetchers(server: Server) -> list[int]:
    return [pid for pid in server.children() if "tickertape.fetcher" in command_line(pid)]


def reason(server: Server) -> str:
    answer = server.client.get("/readyz")
    return "" if answer.status_code == 200 else str(answer.json()["reason"])


def startup(server: Server) -> dict[str, Any]:
    answer = server.client.get("/startupz")
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def figures(server: Server) -> dict[str, float]:
    lines = server.client.get("/metrics").text.splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


def test_a_killed_fetcher_is_started_again(serve_slowly: Serve, slow: Path) -> None:
    server = serve_slowly()
    killed: list[int] = []
    for _ in range(2):
        wait_until(lambda: any(pid not in killed for pid in fetchers(server)) and startup(server).get("done", 0) > 2)
        killed.extend(fetchers(server))
        os.kill(killed[-1], signal.SIGKILL)
        assert server.client.get("/livez").status_code == 200
        assert reason(server) in ("DownloadingOrigin", "Planning")
    (slow / "orders").write_text("go")
    assert server.until_ready().ask("Q").json()["choices"][0]["text"] == "The answer."
    assert "the fetcher was killed by SIGKILL; starting another" in server.stderr()
    wait_until(lambda: len(server.children()) == 1)  # all is here: it has ended


def test_the_probes_show_how_a_fetch_gets_on(serve_slowly: Serve, slow: Path) -> None:
    server = serve_slowly()
    wait_until(lambda: startup(server).get("eta_s") is not None)
    seen = startup(server)
    assert (seen["state"], seen["reason"], seen["model"]) == ("loading", "DownloadingOrigin", "tiny")
    assert (seen["stage"], seen["source"], seen["total"]) == ("download", "origin", 10_000)
    assert 5 < seen["rate"] <= 60
    assert seen["eta_s"] == pytest.approx((10_000 - seen["done"]) / seen["rate"], rel=0.05)
    answer = server.client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["reason"] == "DownloadingOrigin"
    assert answer.headers["retry-after"] == "30"
    state = {key: value for key, value in figures(server).items() if key.startswith("tickertape_warmup_state")}
    assert state.pop('tickertape_warmup_state{model="tiny",state="download"}') == 1
    assert set(state.values()) == {0}
    (slow / "orders").write_text("go")
    server.until_ready()
    assert figures(server)['tickertape_warmup_state{model="tiny",state="ready"}'] == 1


def test_a_store_that_was_copied_is_hashed_once_and_says_so(serve_slowly: Serve, slow: Path) -> None:
    """An image, a restored volume: other inodes than were noted. It may take minutes, which must count as progress."""
    (slow / "orders").write_text("go")
    first = serve_slowly().until_ready()
    first.kill()
    objects = [path for path in (slow / "store" / "objects").glob("??/*") if path.is_file()]
    for path in objects:
        os.utime(path, (1, 1))
    server = serve_slowly().until_ready()
    hashed = figures(server)["tickertape_warmup_hashed_bytes_total"]
    assert hashed == sum(path.stat().st_size for path in objects)
    assert "tiny: verify" in server.stderr()


def test_what_will_not_pass_is_said_and_the_server_stays_for_it(serve_slowly: Serve, slow: Path) -> None:
    """No exit loop: whoever restarts what ends would only ask the origin again."""
    log = slow / "termination-log"
    server = serve_slowly("--startup-linger-s", "inf", "--termination-log", str(log))
    wait_until(lambda: reason(server) == "DownloadingOrigin")
    (slow / "orders").write_text("RevisionNotFound")
    wait_until(lambda: reason(server) == "RevisionNotFound")
    assert log.read_text() == "RevisionNotFound: the origin knows no such revision\n"
    assert server.stderr().count("tickertape: the origin knows no such revision\n") == 1
    time.sleep(3)  # longer than the usual linger
    assert reason(server) == "RevisionNotFound"
    assert startup(server)["state"] == "failed"
    assert server.client.get("/livez").status_code == 200
    assert server.children() == []
    server.process.terminate()
    assert server.wait() == 1


def test_after_a_moment_it_ends_by_default(serve_slowly: Serve, slow: Path) -> None:
    server = serve_slowly("--startup-linger-s", "0.2")
    (slow / "orders").write_text("Gated")
    assert server.wait() == 1


def test_a_fetcher_that_serves_peers_may_die_unnoticed(serve: Serve) -> None:
    server = serve("--peer-port", "0", "--peer-token", "secret").until_ready()
    (first,) = fetchers(server)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: any(pid != first for pid in fetchers(server)))
    assert server.client.get("/readyz").status_code == 200
    assert server.ask("Q").json()["choices"][0]["text"] == "The answer."
    wait_until(lambda: server.stderr().count("weights are served to peers on port") == 2)
    assert "secret" not in server.stderr()
    server.process.terminate()
    assert server.wait() == 0


def test_case_112_a_long_silent_load_is_alive_and_not_ready(start: Start, tiny: Path, tmp_path: Path) -> None:
    """Scaled: the worker says nothing of itself for 8 s."""
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "sleepy.py").write_text(SLOW_BACKEND)
    flags = ("--port", "0", "--backend", "sleepy", "--plugins-dir", str(tmp_path / "plugins"))
    server: Server = start(Server, f"tiny={tiny}", *flags)
    reasons: list[str] = []
    while (answer := server.client.get("/readyz")).status_code != 200:
        assert server.client.get("/livez").status_code == 200
        assert server.client.get("/startupz").status_code == 200
        assert server.ask("Q").status_code == 503 or server.client.get("/readyz").status_code == 200  # by now
        if answer.json()["reason"] not in reasons:
            reasons.append(answer.json()["reason"])
        assert time.monotonic() - server.started < 60
        time.sleep(0.05)
    assert time.monotonic() - server.started > 8
    assert "Loading" in reasons
    assert server.ask("Q").json()["choices"][0]["text"] == "The answer."  # ready is not said before it can generate
    loads = [json.loads(line) for line in server.stderr().splitlines() if "load 0/10 steps" in line]
    assert loads


def test_servers_of_one_node_load_one_at_a_time(serve: Serve, start: Start, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "sleepy.py").write_text(SLOW_BACKEND.replace("sleep(8)", "sleep(2)"))
    flags = ("--port", "0", "--backend", "sleepy", "--plugins-dir", str(tmp_path / "plugins"))
    servers = [start(Server, f"tiny={tiny}", *flags) for _ in range(max(1, (os.cpu_count() or 1) // 4) + 1)]
    ready_at: dict[int, float] = {}
    while len(ready_at) < len(servers):
        for number, server in enumerate(servers):
            if number not in ready_at and server.client.get("/readyz").status_code == 200:
                ready_at[number] = time.monotonic()
        assert time.monotonic() - servers[0].started < 60
        time.sleep(0.02)
    assert max(ready_at.values()) - min(ready_at.values()) > 1.9  # a load takes two seconds
