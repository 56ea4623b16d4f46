"""A model that is loaded while it is being fetched: real processes, an origin that holds back its second file."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tickertape.testing.models import write_llama
from tickertape.testing.processes import Server, command_line, wait_until
from tickertape.testing.tokenizers import write_byte_level
from tickertape.weights.mapping import MappedWeights
from tickertape.weights.objects import DigestWriter
from tickertape.weights.writer import write_tensors

Start = Callable[..., Any]

NUM_FIRST = 9  # tensors of the first file

PLUGIN = '''
"""held://DIRECTORY: its files, read in ranges; `orders` beside it says what becomes of the second weight file: "hold",
"fail", "spoil" (once) or "go". And the reference backend, which notes in `opened` the tensors it has opened."""
import hashlib, os, time
from pathlib import Path
from tickertape.plugins import Backend, Capabilities, FileEntry, Manifest, StartupError, hookimpl
from tickertape.plugins.backends.reference.runner import ReferenceRunner, make as make_reference

API = (1, 0)

class Origin:
    def __init__(self, directory):
        self._directory = directory
        self._orders = directory.parent / "orders"

    def read(self, entry, start, end):
        content = (self._directory / entry.path).read_bytes()[start:end]
        for at in range(0, len(content), 4096):
            piece = content[at : at + 4096]
            if entry.path.startswith("model-00002") and start + at >= 2 << 20:
                while (order := self._orders.read_text()) == "hold":
                    time.sleep(0.01)
                if order == "fail":
                    raise StartupError("the origin has closed for good", code="NotFound")
                if order == "spoil":
                    piece = bytes(len(piece))
            yield memoryview(piece)
        if entry.path.startswith("model-00002") and self._orders.read_text() == "spoil":
            self._orders.write_text("hold")

    def close(self):
        pass

class Held:
    name, schemes = "held", ("held",)

    def prepare(self) -> None: ...

    def pinned(self, uri):
        return True

    def resolve(self, uri):
        directory = Path("/" + uri.partition("://")[2].strip("/"))
        files = []
        for path in sorted(directory.iterdir()):
            content = path.read_bytes()
            files.append(FileEntry(path.name, len(content), hashlib.sha256(content).hexdigest()))
        return Manifest(uri, "1", tuple(files))

    def open(self, manifest):
        return Origin(Path("/" + manifest.uri.partition("://")[2].strip("/")))

class Noting:
    def __init__(self, weights, log):
        self._weights, self._log = weights, log
        self.names, self.shape, self.dtype, self.close = weights.names, weights.shape, weights.dtype, weights.close

    def open(self, name):
        tensor = self._weights.open(name)
        with self._log.open("a") as log:
            log.write(f"{os.getpid()} {name}\\n")
        return tensor

class Runner(ReferenceRunner):
    def load(self, weights):
        yield from super().load(Noting(weights, Path(__file__).parent.parent / "opened"))

def make(spec, options):
    runner = make_reference(spec, options)
    runner.__class__ = Runner
    return runner

@hookimpl
def register_weight_sources(register):
    register(Held())

@hookimpl
def register_backends(register):
    register(Backend(name="noting", kind="runner", factory=f"{__name__}:make", capabilities=Capabilities(), summary=""))
'''


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """With `model`, of two weight files: the layers, each in order, and the rest."""
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "held.py").write_text(PLUGIN)
    (tmp_path / "orders").write_text("hold")
    model = tmp_path / "model"
    model.mkdir()
    write_byte_level(model)
    write_llama(model, vocab_size=512, dtype="float32", hidden_size=256, intermediate_size=1024)
    weights = MappedWeights(model)
    files = {
        "model-00001-of-00002.safetensors": [name for name in weights.names() if ".layers.0." in name],
        "model-00002-of-00002.safetensors": [name for name in weights.names() if ".layers.0." not in name],
    }
    for file, names in files.items():
        with DigestWriter(model / file) as out:
            layout = {name: (weights.dtype(name), weights.shape(name)) for name in names}
            write_tensors(out, layout, map(weights.open, names))
    weights.close()
    (model / "model.safetensors").unlink()
    return tmp_path


@pytest.fixture
def serve(start: Start, place: Path) -> Callable[..., Server]:
    def serve(*arguments: str) -> Server:
        flags = ("--port", "0", "--backend", "noting", "--plugins-dir", str(place / "plugins"))
        server: Server = start(Server, f"tiny=held://{place}/model", *flags, *arguments)
        return server

    return serve


def opened(place: Path, pid: int | None = None) -> list[str]:
    """The tensors that a worker has opened so far."""
    log = place / "opened"
    lines = log.read_text().splitlines() if log.exists() else []
    return [name for who, _, name in (line.partition(" ") for line in lines) if pid is None or int(who) == pid]


def reason(server: Server) -> str:
    answer = server.client.get("/readyz")
    return "" if answer.status_code == 200 else str(answer.json()["reason"])


def text(server: Server) -> str:
    answer = server.ask("The quick brown fox", max_tokens=24, temperature=0, ignore_eos=True)
    assert answer.status_code == 200
    return str(answer.json()["choices"][0]["text"])


@pytest.fixture
def expected(start: Start, place: Path) -> str:
    """What the model says when it lies in a directory."""
    server: Server = start(Server, f"tiny={place}/model", "--port", "0", "--backend", "reference")
    said = text(server.until_ready())
    server.process.terminate()
    server.wait()
    return said


def half_loaded(server: Server, place: Path) -> int:
    """The worker, once it has opened all of the first file and waits for the second."""
    wait_until(lambda: len(opened(place)) >= NUM_FIRST)
    time.sleep(0.5)
    names = opened(place, server.worker())
    assert len(names) == NUM_FIRST
    assert all(".layers.0." in name for name in names)
    assert reason(server) == "DownloadingOrigin"
    return server.worker()


def test_loading_begins_before_the_last_file_has_come(place: Path, serve: Callable[..., Server], expected: str) -> None:
    server = serve()
    worker = half_loaded(server, place)
    (place / "orders").write_text("go")
    assert text(server.until_ready()) == expected
    assert server.worker() == worker  # the very one that began
    assert len(opened(place, worker)) > NUM_FIRST
    mapped = [line for line in Path(f"/proc/{worker}/maps").read_text().splitlines() if "/store/" in line]
    assert mapped
    assert all("/objects/" in line for line in mapped)  # partial files became them


def test_a_worker_killed_half_way_begins_again(place: Path, serve: Callable[..., Server], expected: str) -> None:
    server = serve()
    first = half_loaded(server, place)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: len(opened(place)) >= 2 * NUM_FIRST)
    assert server.client.get("/livez").status_code == 200
    (place / "orders").write_text("go")
    assert text(server.until_ready()) == expected
    os.kill(server.worker(), signal.SIGKILL)  # later lives load what was published
    wait_until(lambda: reason(server) != "")
    assert text(server.until_ready()) == expected


def test_a_fetcher_killed_half_way_goes_on(place: Path, serve: Callable[..., Server], expected: str) -> None:
    server = serve()
    worker = half_loaded(server, place)
    (fetcher,) = [pid for pid in server.children() if "tickertape.fetcher" in command_line(pid)]
    os.kill(fetcher, signal.SIGKILL)
    (place / "orders").write_text("go")
    assert text(server.until_ready()) == expected
    assert server.worker() == worker  # it never noticed


def test_spoiled_bytes_are_never_loaded(place: Path, serve: Callable[..., Server], expected: str) -> None:
    (place / "orders").write_text("spoil")
    server = serve()
    wait_until(lambda: (place / "orders").read_text() == "hold")  # they have all come
    half_loaded(server, place)
    (place / "orders").write_text("go")
    assert text(server.until_ready()) == expected


def test_a_fetch_that_fails_ends_the_load_with_its_reason(place: Path, serve: Callable[..., Server]) -> None:
    server = serve("--startup-linger-s", "inf")
    half_loaded(server, place)
    (place / "orders").write_text("fail")
    wait_until(lambda: reason(server) == "NotFound")
    assert server.children() == []
    assert "tickertape: the origin has closed for good" in server.stderr()
