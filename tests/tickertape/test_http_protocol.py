"""What the connection refuses before there is a request."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.responses import PlainTextResponse

from tickertape.http_protocol import HeadLimits
from tickertape.http_server import HttpServer
from tickertape.testing.front import until

LIMITS = HeadLimits(max_bytes=2000, max_headers=10, timeout_s=0.3)
HEAD = b"GET / HTTP/1.1\r\nhost: x\r\n"


@asynccontextmanager
async def served(*, keep_alive_s: float = 5.0, limits: HeadLimits = LIMITS) -> AsyncIterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(PlainTextResponse("here"), keep_alive_s=keep_alive_s, head=limits)
    serving = asyncio.ensure_future(server.serve([listener]))
    await until(lambda: server.started)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await serving


async def answers(port: int, *parts: bytes, pause_s: float = 0.0) -> bytes:
    """All that comes until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    reading = asyncio.ensure_future(reader.read())
    try:
        for part in parts:
            writer.write(part)
            await asyncio.sleep(pause_s)
        return await asyncio.wait_for(reading, 5)
    except ConnectionError:
        return b""
    finally:
        reading.cancel()
        writer.close()


def code(answer: bytes) -> str:
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert set(error) == {"message", "type", "param", "code"}
    found: str = error["code"]
    return found


async def test_a_head_that_does_not_end_is_given_up_however_it_trickles() -> None:
    async with served() as port:
        begun = asyncio.get_running_loop().time()
        answer = await answers(port, HEAD, *[b"a"] * 20, pause_s=0.05)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert code(answer) == "timeout"
        assert asyncio.get_running_loop().time() - begun < 4


async def test_a_slow_head_that_ends_in_time_is_served() -> None:
    async with served() as port:
        answer = await answers(port, HEAD, b"connection: close", b"\r\n\r\n", pause_s=0.05)
        assert answer.endswith(b"here")


async def test_a_body_may_be_slower_than_a_head() -> None:
    async with served() as port:
        head = b"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 4\r\n\r\n"
        assert (await answers(port, head + b"a", b"b", b"c", b"d", pause_s=0.2)).endswith(b"here")


async def test_a_connection_that_says_nothing_is_closed_after_the_keep_alive() -> None:
    async with served(keep_alive_s=0.2) as port:
        assert await answers(port) == b""


@pytest.mark.parametrize("num_headers", [9, 10, 11])
async def test_the_number_of_headers(num_headers: int) -> None:
    async with served() as port:
        more = b"".join(b"h%d: x\r\n" % n for n in range(num_headers - 2))
        answer = await answers(port, HEAD + b"connection: close\r\n" + more + b"\r\n")
        if num_headers <= 10:
            assert answer.endswith(b"here")
        else:
            assert answer.startswith(b"HTTP/1.1 431 ")
            assert code(answer) == "headers_too_large"


async def test_the_limits_count_per_request_of_a_connection() -> None:
    async with served() as port:
        one = HEAD + b"a: " + b"x" * 1500 + b"\r\n\r\n"
        last = HEAD + b"connection: close\r\n\r\n"
        assert (await answers(port, one, one, one, last, pause_s=0.05)).count(b"here") == 4
        assert (await answers(port, one + one + last)).count(b"here") == 3  # pipelined


async def test_chunk_extensions_count_too() -> None:
    async with served() as port:
        head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        answer = await answers(port, head + b"1;a=", *[b"x" * 1000] * 10, pause_s=0.01)
        assert b"HTTP/1.1 431 " in answer or answer == b""


async def test_what_is_no_http_is_told_so_as_other_errors_are() -> None:
    async with served() as port:
        for garbage in (b"hello\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"\x16\x03\x01\x00"):
            answer = await answers(port, garbage)
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert code(answer) == "invalid_http"


async def test_asking_for_a_websocket_is_answered_in_http_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD + b"connection: upgrade, close\r\nupgrade: websocket\r\n\r\n")
        answer = await asyncio.wait_for(reader.readline(), 5)
        writer.close()
    assert answer == b"HTTP/1.1 200 OK\r\n"
    assert caplog.text == ""
