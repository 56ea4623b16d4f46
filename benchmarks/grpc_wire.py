"""What a stream costs the front over gRPC, beside the same stream over SSE: CPU per message, memory per open stream.

(Not named after the wire alone: a script's folder comes first among the places of imports, and `import grpc` would
find the script.) The backend is scripted, so that the worker's time, which is another process's, does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub
from msgspec import Struct
from report import Figure, publish

from tickertape.api.proto.tickertape.v1.generate_pb2 import GenerateRequest, Prompt
from tickertape.api.proto.tickertape.v1.token_stream_pb2_grpc import TokenStreamStub
from tickertape.testing.models import write_scripted
from tickertape.testing.processes import Server
from tickertape.testing.tokenizers import write_byte_level

PERIODS_S: Final = {1: 0.004, 32: 0.01, 256: 0.1}
"""By number of streams, the time of a step: the front must keep up, or messages melt together."""

GOAL_US: Final = 100.0
GOAL_RATIO: Final = 2.5
GOAL_KB: Final = 60.0
GOAL_START_S: Final = 1.5
_PROMPT: Final = "go"


class Cost(Struct):
    """`cpu_us` of the front per message; `memory_kb` of it per open stream."""

    cpu_us: float
    memory_kb: float
    num_messages: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer tokens; under 50 s")
    options = parser.parse_args()
    tokens = 150 if options.quick else 600
    with serving(0.01, wait=False) as server:
        figures = [Figure("grpc_first_answer", first_answer_s(server), "s", GOAL_START_S, what="from exec")]
    for num_streams, period_s in PERIODS_S.items():
        num_tokens = max(tokens if num_streams < 256 else tokens // 3, 30)
        costs = {}
        for wire in ("sse", "grpc"):
            # A server each: what one wire has made the allocator keep must not count as the other's.
            with serving(period_s) as server:
                costs[wire] = asyncio.run(measured(server, wire, num_streams, num_tokens))
        figures += figures_of(num_streams, costs["sse"], costs["grpc"])
    publish("The front's cost of a stream, gRPC beside SSE (scripted backend)", figures)


def figures_of(n: int, sse: Cost, over_grpc: Cost) -> list[Figure]:
    judged = n == 32
    ratio = over_grpc.cpu_us / sse.cpu_us if sse.cpu_us else 0.0
    return [
        Figure(f"sse_cpu_{n}", sse.cpu_us, "us", what=f"per message, {sse.num_messages} messages"),
        Figure(
            f"grpc_cpu_{n}", over_grpc.cpu_us, "us", GOAL_US if judged else None,
            what=f"per message, {over_grpc.num_messages} messages",
        ),
        Figure(f"grpc_sse_ratio_{n}", ratio, "x", GOAL_RATIO if judged else None),
        Figure(f"sse_memory_{n}", sse.memory_kb, "KB", what="per open stream"),
        Figure(f"grpc_memory_{n}", over_grpc.memory_kb, "KB", GOAL_KB if n == 256 else None, what="per open stream"),
    ]  # fmt: skip


@contextmanager
def serving(period_s: float, *, wait: bool = True) -> Iterator[Server]:
    """A server with a scripted model that goes on for ever, a token each `period_s`; without `wait` as soon as its
    ports are known."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / "scripted"
        directory.mkdir()
        write_byte_level(directory)
        play = {"tokens": list(b"tick "), "then": "repeat"}
        write_scripted(directory, [play], eos_token_id=0, token_s=period_s)
        arguments = (str(directory), "--port", "0", "--max-num-seqs", "256", "--log-level", "warning")
        server = Server(
            [*arguments, "--store", str(Path(scratch) / "store")], model="scripted", log=Path(scratch) / "log"
        )
        try:
            yield server.until_ready() if wait else server
        finally:
            server.kill()


def first_answer_s(server: Server) -> float:
    """From the server's start to its first answer over gRPC, whatever that says."""
    options = [("grpc.initial_reconnect_backoff_ms", 20), ("grpc.max_reconnect_backoff_ms", 20)]
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options) as channel:
        HealthStub(channel).Check(HealthCheckRequest(), wait_for_ready=True, timeout=60)
        return time.monotonic() - server.started


async def measured(server: Server, wire: str, num_streams: int, num_tokens: int) -> Cost:
    """Warms up with one stream, then measures."""
    pid, run = server.process.pid, (over_sse if wire == "sse" else over_grpc)
    await run(server, 1, 20)
    before_kb, before_us = memory_kb(pid), cpu_us(pid)
    running = asyncio.create_task(run(server, num_streams, num_tokens))
    peak_kb = before_kb
    while not running.done():
        await asyncio.wait({running}, timeout=0.1)
        peak_kb = max(peak_kb, memory_kb(pid))
    spent_us = cpu_us(pid) - before_us
    num_messages = running.result()
    return Cost(spent_us / num_messages, (peak_kb - before_kb) / num_streams, num_messages)


async def over_grpc(server: Server, num_streams: int, num_tokens: int) -> int:
    """How many messages came. The streams of one client share a connection, as its library has it."""
    request = GenerateRequest(
        model=server.model, prompts=[Prompt(text=_PROMPT)], sampling={"max_tokens": num_tokens, "temperature": 0}
    )
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stub = TokenStreamStub(channel)

        async def stream() -> int:
            count = 0
            async for _ in stub.GenerateStream(request):
                count += 1
            return count

        return sum(await asyncio.gather(*(stream() for _ in range(num_streams))))


async def over_sse(server: Server, num_streams: int, num_tokens: int) -> int:
    """As many completions, as bytes: the client must not be what is slow."""
    body = (
        f'{{"model":"{server.model}","prompt":"{_PROMPT}","max_tokens":{num_tokens},"temperature":0,"stream":true}}'
    ).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    ).encode()

    async def stream() -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(head + body)
        count = 0
        async for line in reader:
            count += line.startswith(b"data: {")
        writer.close()
        return count

    return sum(await asyncio.gather(*(stream() for _ in range(num_streams))))


def cpu_us(pid: int) -> float:
    """User and system time of a process, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") * 1e6


def memory_kb(pid: int) -> float:
    """Resident, of its own."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(float(line.split()[1]) for line in lines if line.startswith(("Private_Clean", "Private_Dirty")))


if __name__ == "__main__":
    main()
