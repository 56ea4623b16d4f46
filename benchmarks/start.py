"""Seconds from exec to the first token of a chat, with the model in the store and the page cache warm.

Each run starts a server and asks it again and again until a first token comes; the first run warms the caches and is
not counted. The median is published.

    python benchmarks/start.py [--quick] [--model DIR] [--store DIR]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
from report import Figure, publish

from tickertape.testing.processes import Server

PATIENCE_S = 300.0


def first_times(arguments: Sequence[str]) -> tuple[float, float, float, float]:
    """Seconds until the first line, until ready, and until the first token; CPU seconds of the server until then."""
    with tempfile.TemporaryDirectory() as directory:
        server = Server([*arguments, "--port", "0"], log=Path(directory) / "log")
        try:
            bound_s = time.monotonic() - server.started
            until_ready(server)
            ready_s = time.monotonic() - server.started
            model = server.client.get("/v1/models").json()["data"][0]["id"]
            body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1, "stream": True}
            with server.client.stream("POST", "/v1/chat/completions", json=body) as answer:
                wait_for_token(answer)
            return bound_s, ready_s, time.monotonic() - server.started, cpu_s([server.process.pid, *server.children()])
        finally:
            server.kill()


def until_ready(server: Server) -> None:
    """With more patience than a test has: the machine may be busy."""
    while server.client.get("/readyz").status_code != 200:
        if time.monotonic() > server.started + PATIENCE_S:
            raise TimeoutError(server.stderr())
        time.sleep(0.02)


def wait_for_token(answer: httpx.Response) -> None:
    answer.raise_for_status()
    for line in answer.iter_lines():
        if '"content"' in line and '"role"' not in line:
            return
    raise RuntimeError("the stream ended without a token")


def cpu_s(pids: Sequence[int]) -> float:
    """What these processes have computed so far, and those of their children that have ended."""
    fields = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids)
    return sum(int(field) for each in fields for field in each[11:15]) / os.sysconf("SC_CLK_TCK")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one counted run instead of five")
    parser.add_argument("--model", help="a model directory; default: the demo model")
    parser.add_argument("--store", help="where it is kept")
    options = parser.parse_args(arguments)
    flags = [*([options.model] if options.model else []), *(["--store", options.store] if options.store else [])]
    runs = [first_times(flags) for _ in range(2 if options.quick else 6)][1:]
    bound_s, ready_s, token_s, busy_s = (statistics.median(run[n] for run in runs) for n in range(4))
    figures = [
        Figure("start.bound", round(bound_s, 3), "s", what="port bound, probes answered"),
        Figure("start.ready", round(ready_s, 2), "s"),
        Figure("start.first_token", round(token_s, 2), "s", None if options.model else 10.0),
        Figure("start.cpu", round(busy_s, 2), "s", what="CPU seconds of all its processes until then"),
    ]
    publish(f"{options.model or 'demo model'}, from exec", figures)


if __name__ == "__main__":
    main()
