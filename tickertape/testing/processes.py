"""A real server in a process of its own, for tests from the outside: started, asked, watched, and gone at the end."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import httpx

__all__ = ["Server", "ServerProcess", "alive", "command_line", "events", "text_of", "wait_until"]

PATIENCE_S: Final = 60.0


class ServerProcess:
    """`tickertape serve ARGUMENTS`, with warnings as errors and none of the caller's TICKERTAPE_ settings. Standard
    error goes to the file `log`."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TICKERTAPE_")}
        self._log = log
        self.started = time.monotonic()
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tickertape", "serve", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=inherited | {"PYTHONWARNINGS": "error"} | dict(environment or {}),
                cwd=cwd,
                process_group=0,  # a test may then send what a terminal sends, to the group
            )

    def first_line(self) -> dict[str, Any]:
        """The JSON object. Fails when the server ends without one."""
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(PATIENCE_S), "the server said nothing"
        line = self.process.stdout.readline()
        assert line, f"no first line: {self.stderr()}"
        found: dict[str, Any] = json.loads(line)
        return found

    def stderr(self) -> str:
        return self._log.read_text()

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """The exit status."""
        return self.process.wait(timeout_s)

    def children(self) -> list[int]:
        """Process ids of what the server has started and not yet buried."""
        threads = Path(f"/proc/{self.process.pid}/task")
        return [int(pid) for thread in threads.iterdir() for pid in (thread / "children").read_text().split()]

    def worker(self) -> int:
        """The process id of its one worker."""
        found = [pid for pid in self.children() if "tickertape.worker" in command_line(pid)]
        assert len(found) == 1, f"{len(found)} workers"
        return found[0]

    def kill(self) -> None:
        """Ends it at once, and sees that its children follow."""
        children = self.children() if self.process.poll() is None else []
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        wait_until(lambda: not any(map(alive, children)))


class Server(ServerProcess):
    """A server whose port is bound, with a client. `model` is the name that `ask` and `stream` send."""

    def __init__(self, arguments: Sequence[str], *, model: str = "tiny", **options: Any) -> None:
        super().__init__(arguments, **options)
        self.model = model
        first = self.first_line()
        self.port: int = first["port"]
        self.grpc_port: int | None = first["grpc_port"]
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE_S)

    def until_ready(self, patience_s: float = PATIENCE_S) -> Server:
        """Fails, with what it said, when the server ends instead."""
        deadline = time.monotonic() + patience_s
        try:
            while self.client.get("/readyz").status_code != 200:
                assert time.monotonic() < deadline, f"not ready within {patience_s} s: {self.stderr()}"
                time.sleep(0.01)
        except httpx.TransportError as error:
            raise AssertionError(f"the server ended: {self.stderr()}") from error
        return self

    def ask(self, text: str, **fields: Any) -> httpx.Response:
        """A completion, whole."""
        return self.client.post("/v1/completions", json={"model": self.model, "prompt": text, **fields})

    def stream(self, text: str, **fields: Any) -> AbstractContextManager[httpx.Response]:
        """A completion, streamed; see `events`."""
        body = {"model": self.model, "prompt": text, "stream": True, **fields}
        return self.client.stream("POST", "/v1/completions", json=body)

    def kill(self) -> None:
        self.client.close()
        super().kill()


def events(lines: Iterable[str]) -> list[Any]:
    """The events of a stream, parsed; "[DONE]" as it is."""
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [item if item == "[DONE]" else json.loads(item) for item in data]


def text_of(found: Iterable[Any]) -> str:
    """The text of a streamed completion's events."""
    return "".join(c["text"] for event in found if event != "[DONE]" for c in event.get("choices", ()))


def command_line(pid: int) -> str:
    """Empty when there is no such process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return ""


def alive(pid: int) -> bool:
    """Whether a process runs; one that is dead and not yet buried does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(0.01)
