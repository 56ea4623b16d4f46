"""Pods: real processes on simulated nodes, started, frozen, killed and measured."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from tests.sim.nodes import Node
from tickertape.testing.processes import alive

__all__ = ["Pod", "Usage", "hub_pod", "process_tree", "tickertape_pod"]

PORT: Final = 8000
PEER_PORT: Final = 9000
_BURIAL_S: Final = 20.0
_INHERITED: Final = ("PATH", "PYTHONPATH", "LANG")


class Usage(Struct, frozen=True):
    """What the processes of a pod have used so far; those that have ended count for nothing. `read_bytes` came from
    the disk."""

    read_bytes: int = 0
    num_major_faults: int = 0
    rss_bytes: int = 0
    cpu_s: float = 0.0


class Pod:
    """One container: a command on a node, with an address of its own. A file beside the node's disk takes its output,
    of all its starts. It ends when the thread ends that started it."""

    def __init__(
        self, name: str, node: Node, number: int, words: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.node = node
        self.address = node.address(number)
        self.log = node.directory / f"{name}.log"
        self.num_starts = 0
        self.words = words
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        self._environment = {**inherited, "HOME": str(node.directory), **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{self.address}:{PORT}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def start(self) -> None:
        assert self._process is None or self._process.poll() is not None, "it runs"
        self.num_starts += 1
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.node.command(self.words),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                cwd=self.node.directory,
                process_group=0,
            )

    def exit_status(self) -> int | None:
        """None while it runs."""
        return None if self._process is None else self._process.poll()

    def terminate(self) -> None:
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """SIGKILL, and waits until no process of it is left."""
        if self._process is None:
            return
        tree = process_tree(self._process.pid)
        for pid in tree:  # as a container ends: a child that has just begun would not notice soon
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        deadline = time.monotonic() + _BURIAL_S
        while any(map(alive, tree)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name}: its children outlive it")
            time.sleep(0.01)

    def pause(self) -> None:
        """SIGSTOP to all its processes."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def usage(self) -> Usage:
        found = [_usage_of(pid) for pid in process_tree(self.pid)]
        return Usage(
            sum(each.read_bytes for each in found),
            sum(each.num_major_faults for each in found),
            sum(each.rss_bytes for each in found),
            sum(each.cpu_s for each in found),
        )

    def _signal(self, number: signal.Signals) -> None:
        for pid in process_tree(self.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def tickertape_pod(
    node: Node,
    number: int,
    model: str,
    *flags: str,
    store: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Pod:
    """A server of `model`, whose store is the node's unless another is named."""
    words = [sys.executable, "-P", "-m", "tickertape", "serve", model]
    words += ["--host", node.address(number), "--port", str(PORT), "--no-grpc"]
    words += ["--store", str(store or node.directory / "store"), *flags]
    return Pod(f"{node.name}-pod-{number}", node, number, words, environment)


def hub_pod(node: Node, number: int, repo: str, *, endpoint: str) -> Pod:
    """What a pod does today: huggingface_hub's snapshot_download into a cache of its own, and only then a port."""
    script = Path(__file__).with_name("hub_server.py")
    words = [sys.executable, "-P", str(script), repo, "--host", node.address(number), "--port", str(PORT)]
    name = f"{node.name}-hub-{number}"
    environment = {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(node.directory / name),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    return Pod(name, node, number, words, environment)


def process_tree(pid: int) -> list[int]:
    """A process and all that descend from it, parents first."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    except OSError:
        return []
    return [pid, *(each for child in children for each in process_tree(child))]


def _usage_of(pid: int) -> Usage:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        io = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    except OSError:
        return Usage()
    return Usage(
        int(io["read_bytes"]),
        int(stat[9]),
        int(stat[21]) * os.sysconf("SC_PAGE_SIZE"),
        (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK"),
    )
