"""Simulated nodes: they have addresses of their own, cannot be overheard, and leave nothing behind."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.nodes import Nodes, namespaces_work

needs_namespaces = pytest.mark.skipif(not namespaces_work(), reason="network namespaces need root")

_LISTEN = (
    "import socket, sys; up = socket.create_server((sys.argv[1], 8000)); print('up', flush=True); sys.stdin.read()"
)
_REACH = "import socket, sys; socket.create_connection((sys.argv[1], 8000), timeout=5).close()"


def reaches(nodes: Nodes) -> bool:
    """Whether the second node can connect to what listens on a pod's address of the first."""
    first, second = nodes.nodes
    with subprocess.Popen(
        first.command([sys.executable, "-c", _LISTEN, first.address(3)]), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as listening:
        assert listening.stdout is not None
        assert listening.stdout.readline() == b"up\n"
        command = second.command([sys.executable, "-c", _REACH, first.address(3)])
        return subprocess.run(command, check=False).returncode == 0


def traces(number: str) -> list[str]:
    """The namespaces and links of a network."""
    parents = [path for path in (Path("/run/netns"), Path("/sys/class/net")) if path.is_dir()]
    return [path.name for parent in parents for path in parent.glob(f"tts{number}*")]


@pytest.mark.parametrize("namespaces", [False, pytest.param(True, marks=needs_namespaces)])
def test_nodes_reach_each_other(namespaces: bool, tmp_path: Path) -> None:
    with Nodes(2, tmp_path, namespaces=namespaces) as nodes:
        number = nodes.outside.split(".")[1]
        assert reaches(nodes)
        assert [node.directory for node in nodes.nodes] == [tmp_path / "node-1", tmp_path / "node-2"]
        assert bool(traces(number)) == namespaces
    assert traces(number) == []


@needs_namespaces
def test_links_are_limited(tmp_path: Path) -> None:
    with Nodes(1, tmp_path, link_mbps=100) as nodes:
        inside = nodes.nodes[0].command(["tc", "qdisc", "show", "dev", "eth0"])
        outside = ["tc", "qdisc", "show", "dev", f"tts{nodes.outside.split('.')[1]}v1"]
        for command in (inside, outside):
            assert "tbf" in (shown := subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            assert "rate 100Mbit" in shown


@needs_namespaces
def test_what_a_crash_left_is_removed_by_the_next(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from tests.sim.nodes import Nodes
nodes = Nodes(2, Path({str(tmp_path / "crashed")!r}), namespaces=True).__enter__()
print(nodes.outside, flush=True)
input()
"""
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
    ) as crashing:
        assert crashing.stdout is not None
        number = crashing.stdout.readline().split(".")[1]
        with Nodes(1, tmp_path / "beside", namespaces=True) as beside:  # while it lives it keeps what it has
            assert beside.outside.split(".")[1] != number
            assert len(traces(number)) >= 5
        crashing.send_signal(signal.SIGKILL)
    with Nodes(1, tmp_path / "next", namespaces=True) as after:
        taken = after.outside.split(".")[1]
        assert len(traces(number)) == (3 if taken == number else 0)


def test_what_runs_on_a_node_dies_with_the_thread_that_started_it(tmp_path: Path) -> None:
    script = f"""
import subprocess
from pathlib import Path
from tests.sim.nodes import Nodes
nodes = Nodes(1, Path({str(tmp_path)!r}), namespaces=False).__enter__()
subprocess.Popen(nodes.nodes[0].command(["sh", "-c", "echo $$; exec sleep 60"]))
input()
"""
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as starting:
        assert starting.stdout is not None
        sleeping = os.pidfd_open(int(starting.stdout.readline()))
        starting.kill()
    try:
        assert select.select([sleeping], [], [], 10)[0]
    finally:
        os.close(sleeping)
