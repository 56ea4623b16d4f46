"""Where the servers of run.py are, and how one is kept busy. The clients are as their makers ship them."""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from asked import MODEL, Endpoint

_PATIENCE_S = 30.0


@pytest.fixture(scope="session")
def server() -> Endpoint:
    return Endpoint(os.environ["TICKERTAPE_URL"], os.environ["TICKERTAPE_KEY"])


@pytest.fixture(scope="session")
def busy() -> Endpoint:
    """Computes one sequence and lets one wait; has nothing to do unless `crowd` says so."""
    return Endpoint(os.environ["TICKERTAPE_BUSY_URL"], os.environ["TICKERTAPE_KEY"])


@pytest.fixture
def refusals(busy: Endpoint) -> Callable[[], int]:
    """How many requests the busy server has refused so far."""

    def count() -> int:
        connection = http.client.HTTPConnection(urlsplit(busy.url).netloc, timeout=20)
        connection.request("GET", "/metrics", headers={"authorization": f"Bearer {busy.key}"})
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
        name = f'tickertape_requests_total{{model="{MODEL}",outcome="overloaded"}} '
        return int(sum(float(line.removeprefix(name)) for line in lines if line.startswith(name)))

    return count


@pytest.fixture
def crowd(busy: Endpoint, refusals: Callable[[], int]) -> Iterator[Callable[[], Any]]:
    """`with crowd()`: the busy server is full, until it has refused a request in the block."""
    opened: list[http.client.HTTPConnection] = []

    @contextmanager
    def crowd() -> Iterator[None]:
        # One that runs, seen by its first token, and one that waits.
        opened.append(stream(busy, "endless"))
        opened.append(stream(busy, "endless", waiting=True))
        leaving = threading.Thread(target=leave_after, args=(refusals(), time.monotonic() + _PATIENCE_S))
        leaving.start()
        try:
            yield
        finally:
            leaving.join()

    def leave_after(before: int, deadline: float) -> None:
        while refusals() == before and time.monotonic() < deadline:
            time.sleep(0.05)
        leave()

    def leave() -> None:
        while opened:
            opened.pop().close()

    yield crowd
    leave()


def stream(endpoint: Endpoint, prompt: str, *, waiting: bool = False) -> http.client.HTTPConnection:
    """A completion under way; with `waiting` its head is there, its first token is not."""
    connection = http.client.HTTPConnection(urlsplit(endpoint.url).netloc, timeout=20)
    body = json.dumps({"model": MODEL, "prompt": prompt, "stream": True, "max_tokens": 12000})
    headers = {"content-type": "application/json", "authorization": f"Bearer {endpoint.key}"}
    connection.request("POST", "/v1/completions", body, headers)
    response = connection.getresponse()
    assert response.status == 200, response.read()
    if not waiting:
        assert response.readline().startswith(b"data: ")
    connection.response = response  # type: ignore[attr-defined]  # closed with it, not before
    return connection
