"""Starts and stops the servers that are compared: ours, and the peers that are installed. Loopback only."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from load import Target

__all__ = ["PEERS", "peer_command", "running", "tickertape_command"]

START_DEADLINE_S = 300.0
PEERS = ("transformers",)
PEER_HOMES = Path(__file__).parent.parent / ".peers"  # each in an environment of its own


def tickertape_command(model: str | None, arguments: Sequence[str] = ()) -> list[str]:
    return [sys.executable, "-m", "tickertape", "serve", *([model] if model else []), *arguments]


def peer_command(name: str, model: str, dtype: str) -> list[str] | None:
    """The command line that serves `model` on {port}; None when the peer is not installed (`make peers`)."""
    if name == "transformers":
        command = PEER_HOMES / name / "bin" / "transformers"
        if not command.exists():
            return None
        serve = [str(command), "serve", model, "--continuous-batching", "--device", "cpu", "--dtype", dtype]
        return [*serve, "--host", "127.0.0.1", "--port", "{port}"]
    raise ValueError(f"unknown peer {name!r}; there are {', '.join(PEERS)}")


@contextmanager
def running(command: Sequence[str], *, ready: str, model: str | None = None, **extra: object) -> Iterator[Target]:
    """Runs a server on a free port until the block ends; its log is shown when it does not come up. `model` None: the
    first that /v1/models lists."""
    port = _free_port()
    words = [word.replace("{port}", str(port)) for word in command]
    if words == list(command):
        words += ["--port", str(port)]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True, env=_offline())
        try:
            _wait(process, f"http://127.0.0.1:{port}{ready}")
            yield Target(port, model or _first_model(port), dict(extra))
        except BaseException:
            log.seek(0)
            sys.stderr.write(log.read().decode(errors="replace")[-3000:])
            raise
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _offline() -> dict[str, str]:
    return os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "PATH": os.environ.get("PATH", "")}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + START_DEADLINE_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode} before it was ready")
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            pass
        time.sleep(0.1)
    raise TimeoutError(f"no 200 from {url} in {START_DEADLINE_S:.0f} s")


def _first_model(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5) as answer:
        return str(json.load(answer)["data"][0]["id"])
