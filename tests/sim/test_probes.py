"""The kubelet: what it does to pods that are slow, stuck or gone; and pods: all of a container, or nothing."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.sim.nodes import Node, Nodes
from tests.sim.pods import PORT, Pod, process_tree
from tests.sim.probes import Deployment, Probe, Probes
from tickertape.testing.processes import alive

# Listens after `wait` seconds; answers 200 until `good` answers are given, then what `bad` says: another status, or
# nothing. A child keeps it company, as it has in a server.
_SERVER = """
import subprocess, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
address, wait, good, bad = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
child = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "sleep", "60"])
time.sleep(wait)
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        global good
        good -= 1
        if good < 0 and bad == "exit":
            raise SystemExit
        self.send_response(200 if good >= 0 else int(bad))
        self.end_headers()
    def log_message(self, *_): pass
HTTPServer((address, int(sys.argv[5])), Handler).serve_forever()
"""

PROBES = Probes(
    startup=Probe("/", period_s=0.1, timeout_s=0.5, failure_threshold=10),
    liveness=Probe("/", period_s=0.05, timeout_s=0.5, failure_threshold=2),
    readiness=Probe("/", period_s=0.05, timeout_s=0.5),
    backoff_s=0.2,
    grace_s=0.2,
)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Nodes(1, tmp_path, namespaces=False) as nodes:
        yield nodes.nodes[0]


def pod(node: Node, *, wait: float = 0, good: int = 1 << 30, bad: str = "500") -> Pod:
    words = [sys.executable, "-c", _SERVER, node.address(0), str(wait), str(good), bad, str(PORT)]
    return Pod("pod", node, 0, words)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def whats(deployment: Deployment) -> list[str]:
    return [event.what for event in deployment.events]


def test_a_pod_that_starts_in_time_becomes_ready_and_stays(node: Node) -> None:
    with Deployment([pod(node, wait=0.3)], PROBES) as deployment:
        took_s = deployment.wait_ready(20)
        assert took_s is not None
        assert took_s >= 0.3
        tree = process_tree(deployment.pods[0].pid)
        assert len(tree) == 2
        assert deployment.pods[0].usage().rss_bytes > 1 << 20
    assert whats(deployment) == ["started", "ready"]
    assert not any(map(alive, tree))


def test_a_pod_past_its_startup_budget_is_killed_again_and_again(node: Node) -> None:
    assert PROBES.startup.budget_s == 1.0
    with Deployment([pod(node, wait=5)], PROBES) as deployment:
        until(lambda: deployment.num_restarts == 2)
        first, second, third = (event.at_s for event in deployment.events if event.what == "started")
        assert deployment.num_ready == 0
    assert whats(deployment)[:5] == ["started", "killed", "started", "killed", "started"]
    assert third - second > second - first + 0.15  # the first restart comes at once, the second after the pause


def test_a_pod_that_stops_answering_is_restarted(node: Node) -> None:
    with Deployment([pod(node, good=20, bad="503")], PROBES) as deployment:
        until(lambda: deployment.count("started") == 2)
    assert whats(deployment)[:5] == ["started", "ready", "unready", "killed", "started"]


def test_a_frozen_pod_is_killed_though_it_ignores_sigterm(node: Node) -> None:
    with Deployment([pod(node)], PROBES) as deployment:
        assert deployment.wait_ready(20) is not None
        deployment.pods[0].pause()
        until(lambda: deployment.count("started") == 2)
        assert deployment.wait_ready(20) is not None
    assert whats(deployment) == ["started", "ready", "unready", "killed", "started", "ready"]


def test_a_pod_that_exits_is_restarted(node: Node) -> None:
    with Deployment([pod(node, good=5, bad="exit")], PROBES) as deployment:
        until(lambda: deployment.count("exited") == 2)
    assert deployment.count("killed") == 0
    assert os.listdir(node.directory) == ["pod.log"]


def test_what_breaks_in_a_kubelet_comes_out(node: Node) -> None:
    node.directory.rmdir()  # where the pod's log would be
    with pytest.raises(FileNotFoundError), Deployment([pod(node)], PROBES):
        pass
