"""SIGTERM: no new work, running streams finish within the grace, the rest is told, exit 0 (074, 075)."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tickertape.testing.processes import Server, events, text_of, wait_until
from tickertape.testing.templates import HOSTILE_LOOPS

Serve = Callable[..., Server]


def begin(lines: Iterator[str]) -> None:
    """Reads up to the first text."""
    while not text_of(events([next(lines)])):
        pass


def test_a_running_stream_finishes_and_new_work_is_refused(serve: Serve) -> None:
    server = serve("--grace-s", "20").until_ready()
    with httpx.Client(base_url=server.url, timeout=30) as other, server.stream("slow", max_tokens=400) as response:
        lines = response.iter_lines()
        begin(lines)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: other.get("/readyz").status_code == 503, 1.0)
        assert other.get("/readyz").json()["reason"] == "Draining"
        assert other.get("/livez").status_code == 200
        refused = other.post("/v1/completions", json={"model": "tiny", "prompt": "Q"})
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "draining"
        assert "retry-after" in refused.headers
        found = events(lines)
    assert text_of(found).endswith("0123456789")
    assert found[-1] == "[DONE]"
    assert server.wait(5) == 0


def test_a_stream_that_outlasts_the_grace_ends_in_an_error_event(serve: Serve) -> None:
    server = serve("--grace-s", "0.5").until_ready()
    with server.stream("endless", max_tokens=2000) as response:
        lines = response.iter_lines()
        begin(lines)
        server.process.send_signal(signal.SIGTERM)
        told = time.monotonic()
        found = events(lines)
    assert found[-1]["error"]["code"] == "draining"
    assert "[DONE]" not in found
    assert server.wait() == 0
    assert time.monotonic() - told < 10  # the stream would take 20


def test_a_waiting_request_that_outlasts_the_grace_is_refused(serve: Serve) -> None:
    server = serve("--grace-s", "0.5", "--max-num-seqs", "1").until_ready()
    with server.stream("endless", max_tokens=2000) as response:
        begin(response.iter_lines())
        body = {"model": "tiny", "prompt": "Q"}
        with httpx.Client(base_url=server.url, timeout=30) as other:
            server.process.send_signal(signal.SIGTERM)
            answer = other.post("/v1/completions", json=body)
    assert answer.status_code == 503
    assert server.wait(5) == 0


def test_an_idle_server_stops_at_once(serve: Serve) -> None:
    server = serve("--grace-s", "30").until_ready()
    started = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 0
    assert time.monotonic() - started < 10  # of 30 that it might take


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once(serve: Serve, number: signal.Signals) -> None:
    server = serve("--grace-s", "30").until_ready()
    with pytest.raises(httpx.HTTPError), server.stream("endless", max_tokens=2000) as response:  # noqa: PT012
        lines = response.iter_lines()
        begin(lines)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: httpx.get(f"{server.url}/readyz").status_code == 503, 2.0)
        server.process.send_signal(number)
        for _ in lines:
            pass
    assert server.wait(2) == 128 + number


def test_a_long_template_does_not_hold_up_the_exit(start: Callable[..., Server], tiny: Path, tmp_path: Path) -> None:
    model = shutil.copytree(tiny, tmp_path / "tiny")
    (model / "chat_template.jinja").write_text(HOSTILE_LOOPS)
    server = start(Server, str(model), "--port", "0", "--grace-s", "0.5").until_ready()
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
    with ThreadPoolExecutor(1) as threads:
        threads.submit(httpx.post, f"{server.url}/v1/chat/completions", json=body, timeout=30)
        time.sleep(0.5)
        server.process.send_signal(signal.SIGTERM)
        assert server.wait(3) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("after_s", [0.0, 0.2, 0.5])
def test_a_signal_while_it_starts_ends_it_at_once(serve: Serve, after_s: float, number: signal.Signals) -> None:
    server = serve("--grace-s", "30")
    time.sleep(after_s)
    # To the whole group, as a terminal does: children that are importing must not hear of it.
    os.killpg(server.process.pid, number)
    assert server.wait(5) == 0
    assert "Traceback" not in server.stderr()
