"""Boot's answers, before there is an app."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from tickertape.boot import BindError, bind
from tickertape.responder import Responder


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with bind("127.0.0.1", 0) as bound:
        yield bound


@pytest.fixture
def responder(listener: socket.socket) -> Responder:
    started = Responder(listener)
    started.start()
    return started


def connect(listener: socket.socket) -> socket.socket:
    return socket.create_connection(listener.getsockname(), timeout=5)


def read_all(connection: socket.socket) -> bytes:
    received = b""
    while data := connection.recv(65536):
        received += data
    return received


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/livez", 200, None),
        ("GET", "/startupz?verbose", 200, None),
        ("GET", "/readyz", 503, None),
        ("GET", "/v1/models", 503, "loading"),
        ("POST", "/v1/chat/completions", 503, "loading"),
    ],
)
def test_probes_and_refusals(
    listener: socket.socket, responder: Responder, method: str, path: str, status: int, code: str | None
) -> None:
    connection = HTTPConnection("127.0.0.1", listener.getsockname()[1], timeout=5)
    # A body larger than any socket's buffer: the answer comes before it was read, and must still arrive.
    connection.request(method, path, body=bytes(32 << 20) if method == "POST" else None)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    assert response.status == status
    assert response.headers["content-type"] == "application/json"
    assert (response.headers["retry-after"] is not None) == (status == 503)
    if code is not None:
        assert json.loads(body)["error"]["code"] == code
    elif status == 503:
        assert json.loads(body)["reason"] == "Starting"
    assert responder.stop() == []


def test_an_answer_to_head_has_no_body(listener: socket.socket, responder: Responder) -> None:
    with connect(listener) as connection:
        connection.sendall(b"HEAD /health HTTP/1.1\r\n\r\n")
        assert read_all(connection).endswith(b"\r\n\r\n")
    responder.stop()


def test_a_head_may_come_in_pieces(listener: socket.socket, responder: Responder) -> None:
    with connect(listener) as connection:
        for byte in b"GET /livez HTTP/1.1\r\n\r\n":
            connection.sendall(bytes([byte]))
        assert read_all(connection).startswith(b"HTTP/1.1 200 OK\r\n")
    responder.stop()


def test_a_head_without_end_is_answered(listener: socket.socket, responder: Responder) -> None:
    with connect(listener) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nx: " + b"y" * 70_000)
        assert connection.recv(12) == b"HTTP/1.1 200"
    responder.stop()


def test_what_was_not_answered_is_handed_over(listener: socket.socket, responder: Responder) -> None:
    with connect(listener) as silent, connect(listener) as half, connect(listener) as gone:
        half.sendall(b"GET /v1")
        gone.close()
        time.sleep(0.1)
        handed = responder.stop()
        assert sorted(received for _, received in handed) == [b"", b"GET /v1"]
        for connection, _ in handed:
            connection.close()
        assert silent.recv(1) == b""
        with connect(listener) as late:  # waits in the backlog for whoever comes next
            accepted, _ = listener.accept()
            assert accepted.getpeername() == late.getsockname()
            accepted.close()


def test_a_port_in_use_is_named(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    with pytest.raises(BindError, match=f"cannot listen on 127.0.0.1:{port}: address already in use"):
        bind("127.0.0.1", port)


def test_a_host_that_is_none_is_named() -> None:
    with pytest.raises(BindError, match=r"cannot listen on no\.such\.host\.invalid"):
        bind("no.such.host.invalid", 0)
