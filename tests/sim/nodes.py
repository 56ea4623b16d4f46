"""Simulated nodes: machines with a directory, addresses and a network link of their own, all on this machine.

Where namespaces can be made (root on Linux) a node is a network namespace behind a common bridge, with `tc tbf` on both
ends of its link, and reaches nothing but the bridge. Elsewhere it is a range of loopback addresses without limits.

What is made carries the number of its network in its name, and the process that made it holds an abstract socket with
that number as long as it lives. So whoever comes next can tell what a crash has left behind, and removes it.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

__all__ = ["Node", "Nodes", "namespaces_work", "reap"]

_NETWORKS: Final = range(200, 250)  # the second byte of 10.x.0.0/16, or of 127.x.0.0/16
_PREFIX: Final = "tts"
_NAMESPACES: Final = Path("/run/netns")
_LINKS: Final = Path("/sys/class/net")
_CLONE_NEWNET: Final = 0x40000000
_BURST_BYTES: Final = 256 << 10  # above the largest segment that the stack hands down at once
_QUEUE_MS: Final = 200


class Node:
    """`directory` is the node's disk. Pod number n listens on `address(n)`."""

    def __init__(self, name: str, directory: Path, network: str, namespace: Path | None) -> None:
        self.name = name
        self.directory = directory
        self.namespace = namespace
        self._network = network

    @property
    def client_address(self) -> str:
        """Where connections come from that the node's pods make; on loopback nodes all have the same."""
        return f"{self._network}.1" if self.namespace is not None else "127.0.0.1"

    def address(self, pod: int) -> str:
        return f"{self._network}.{10 + pod}"

    def command(self, words: Sequence[str]) -> list[str]:
        """The command line that runs `words` on this node. The process ends when the thread that started it does."""
        enter = [] if self.namespace is None else ["nsenter", f"--net={self.namespace}"]
        return [*enter, "setpriv", "--pdeathsig", "KILL", *words]

    def enter(self) -> None:
        """Sockets that the calling thread makes from now on are the node's. There is no way back."""
        if self.namespace is None:
            return
        with self.namespace.open() as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")


class Nodes:
    """A context manager. `link_mbps` bounds each node's link, in each direction; None does not. The nodes' directories
    are made under `directory` and stay."""

    def __init__(
        self, num_nodes: int, directory: Path, *, link_mbps: float | None = None, namespaces: bool | None = None
    ) -> None:
        self._directory = directory
        self._link_mbps = link_mbps
        self._namespaces = namespaces_work() if namespaces is None else namespaces
        self._num_nodes = num_nodes
        self._claim: socket.socket | None = None
        self.nodes: tuple[Node, ...] = ()
        self.outside = ""
        """An address that all nodes reach, for what is not on any of them."""

    def __enter__(self) -> Self:
        reap()
        self._claim, number = _claimed_network()
        with ExitStack() as undo:
            undo.callback(self.close)
            if self._namespaces:
                self.outside = f"10.{number}.0.1"
                self.nodes = tuple(self._namespaced(number))
            else:
                self.outside = f"127.{number}.0.1"
                self.nodes = tuple(self._plain(number, n) for n in range(1, self._num_nodes + 1))
            undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends whatever still runs in the namespaces, and removes them."""
        claim, self._claim = self._claim, None
        if claim is not None:
            _remove(int(claim.getsockname().rpartition(b"-")[2]))
            claim.close()

    def _plain(self, number: int, n: int) -> Node:
        return Node(f"node-{n}", self._made(n), f"127.{number}.{n}", None)

    def _made(self, n: int) -> Path:
        directory = self._directory / f"node-{n}"
        directory.mkdir(parents=True, exist_ok=True)
        return directory

    def _namespaced(self, number: int) -> list[Node]:
        bridge = f"{_PREFIX}{number}"
        _ip("link", "add", bridge, "type", "bridge")
        _ip("address", "add", f"{self.outside}/16", "dev", bridge)
        _ip("link", "set", bridge, "up")
        return [self._joined(bridge, number, n) for n in range(1, self._num_nodes + 1)]

    def _joined(self, bridge: str, number: int, n: int) -> Node:
        name, link, network = f"{bridge}-{n}", f"{bridge}v{n}", f"10.{number}.{n}"
        _ip("netns", "add", name)
        _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", link, "master", bridge, "up")
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "address", "add", f"{network}.1/16", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", name, "route", "add", "local", f"{network}.0/24", "dev", "lo")  # every pod's address at once
        if self._link_mbps is not None:
            _limit([], link, self._link_mbps)
            _limit(["-n", name], "eth0", self._link_mbps)
        return Node(f"node-{n}", self._made(n), network, _NAMESPACES / name)


def namespaces_work() -> bool:
    """Whether this process may make network namespaces."""
    if os.geteuid() != 0:
        return False
    done = subprocess.run(["unshare", "--net", "true"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return done.returncode == 0


def reap() -> None:
    """Removes what processes that are gone have left."""
    for number in sorted(_networks_made()):
        if (claim := _claim(number)) is not None:
            _remove(number)
            claim.close()


def _claimed_network() -> tuple[socket.socket, int]:
    for number in _NETWORKS:
        if not (_LINKS / f"{_PREFIX}{number}").exists() and (claim := _claim(number)) is not None:
            return claim, number
    raise RuntimeError("too many simulations run at once")


def _claim(number: int) -> socket.socket | None:
    """Held while it is open; None when another process has it."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0tickertape-sim-{number}")
    except OSError:
        claim.close()
        return None
    return claim


def _networks_made() -> set[int]:
    names = [path.name for parent in (_NAMESPACES, _LINKS) if parent.is_dir() for path in parent.iterdir()]
    return {int(match[1]) for name in names if (match := re.match(rf"{_PREFIX}(\d+)", name))}


def _remove(number: int) -> None:
    bridge = f"{_PREFIX}{number}"
    for namespace in _NAMESPACES.glob(f"{bridge}-*"):
        pids = subprocess.run(["ip", "netns", "pids", namespace.name], capture_output=True, text=True, check=False)
        for pid in pids.stdout.split():
            if int(pid) != os.getpid():  # a thread of ours may be in there
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        _ip("netns", "delete", namespace.name)
    for link in (*_LINKS.glob(f"{bridge}v*"), *_LINKS.glob(bridge)):
        # A namespace that ends takes its veth with it, in its own time.
        subprocess.run(["ip", "link", "delete", link.name], capture_output=True, check=False)


def _limit(where: Sequence[str], device: str, mbps: float) -> None:
    limit = ["rate", f"{mbps}mbit", "burst", str(_BURST_BYTES), "latency", f"{_QUEUE_MS}ms"]
    _run(["tc", *where, "qdisc", "add", "dev", device, "root", "tbf", *limit])


def _ip(*words: str) -> None:
    _run(["ip", *words])


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
