"""A server from exec to exit: boot, serving through a worker, the worker's death, the front's."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from tickertape.testing.processes import Server, alive, command_line, events, text_of, wait_until

Serve = Callable[..., Server]


def workers(server: Server) -> list[int]:
    return [pid for pid in server.children() if alive(pid) and "tickertape.worker" in command_line(pid)]


def open_descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def listening_sockets(pids: list[int]) -> list[str]:
    """Local addresses of the TCP sockets that these processes listen on."""
    inodes = set()
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            target = os.readlink(entry)
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes and (fields[3] == "0A" or table.startswith("udp")):
                found.add(fields[1])
    return sorted(found)


def test_it_lives_before_it_is_ready_and_then_serves(
    serve: Serve, record_property: Callable[[str, object], None]
) -> None:
    server = serve()
    assert server.client.get("/livez").status_code == 200
    record_property("livez_s", round(time.monotonic() - server.started, 3))
    early = server.client.get("/readyz")
    assert early.status_code == 503  # the worker needs longer than this to import numpy
    assert early.json()["reason"]
    assert "retry-after" in early.headers
    refused = server.ask("Q")  # 144: nothing waits for a model that loads
    assert refused.status_code == 503
    assert refused.json()["error"] == refused.json()["error"] | {
        "type": "server_error",
        "param": None,
        "code": "loading",
    }
    assert "retry-after" in refused.headers

    server.until_ready()
    record_property("ready_s", round(time.monotonic() - server.started, 3))
    assert server.ask("Q").json()["choices"][0]["text"] == "The answer."
    with server.stream("Q") as response:
        found = events(response.iter_lines())
    assert text_of(found) == "The answer."
    assert found[-1] == "[DONE]"
    assert f"curl -N {server.url}" in server.stderr()
    assert f"tickertape chat --url {server.url}" in server.stderr()


def test_the_first_line_names_port_and_process(serve: Serve) -> None:
    server = serve()
    assert server.port > 0
    assert command_line(server.process.pid)
    assert server.process.stdout is not None
    server.until_ready()
    server.process.terminate()
    assert server.wait() == 0
    assert server.process.stdout.read() == b""  # and nothing else is said on standard output


def test_no_connection_is_dropped_while_the_app_takes_over(serve: Serve) -> None:
    """Connections that were opened, or had sent half a request, before the app was there are answered by it."""
    server = serve()
    address = ("127.0.0.1", server.port)
    idle = socket.create_connection(address)
    half = socket.create_connection(address)
    half.sendall(b"GET /v1/models HTTP/1.1\r\nho")

    def probe(_: int) -> bytes:
        with socket.create_connection(address, timeout=10) as connection:
            connection.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            time.sleep(0.002)
            return connection.recv(65536)[:12]

    with ThreadPoolExecutor(4) as threads:
        while server.client.get("/readyz").status_code != 200:
            assert set(threads.map(probe, range(20))) == {b"HTTP/1.1 200"}
    half.sendall(b"st: x\r\n\r\n")
    idle.sendall(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
    for connection in (half, idle):
        connection.settimeout(10)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.close()


def test_only_the_ports_that_it_names_listen(serve: Serve) -> None:
    server = serve().until_ready()
    assert server.ask("Q").status_code == 200
    pids = [server.process.pid, *server.children()]
    # gRPC makes IPv6 sockets for IPv4 addresses too.
    grpc = f"0000000000000000FFFF00000100007F:{server.grpc_port:04X}"
    assert listening_sockets(pids) == sorted([f"0100007F:{server.port:04X}", grpc])


def test_a_killed_worker_is_replaced(serve: Serve) -> None:
    server = serve().until_ready()
    first = server.worker()
    with server.stream("endless", max_tokens=1000) as response:
        lines = response.iter_lines()
        while '"text":"t"' not in next(lines):
            pass
        os.kill(first, signal.SIGKILL)
        killed = time.monotonic()
        found = events(lines)
    assert found[-1]["error"]["code"] == "engine_dead"  # said, not just cut; and no [DONE] after it
    assert time.monotonic() - killed < 5
    wait_until(lambda: server.client.get("/readyz").status_code == 200)
    assert server.worker() != first
    assert server.ask("Q").json()["choices"][0]["text"] == "The answer."
    assert "was killed by SIGKILL" in server.stderr()


def test_a_stopped_worker_is_replaced(serve: Serve) -> None:
    server = serve("--worker-patience-s", "2").until_ready()
    first = server.worker()
    time.sleep(3)
    assert server.worker() == first  # nothing to do is no stall
    os.kill(first, signal.SIGSTOP)
    # Nobody asks how it stands. What the stopped worker has is answered by the next.
    assert server.ask("Q").json()["choices"][0]["text"] == "The answer."
    assert server.worker() != first
    assert "made no step for 2 s with requests open, and was killed" in server.stderr()
    with server.stream("endless", max_tokens=600) as response:  # 6 s of steps, each of which is a sign of life
        assert "error" not in events(response.iter_lines())[-1]


def test_readiness_flips_while_the_worker_is_away(serve: Serve) -> None:
    server = serve().until_ready()
    reasons = set()
    for _ in range(3):
        os.kill(server.worker(), signal.SIGKILL)
        wait_until(lambda: server.client.get("/readyz").status_code == 503, 2.0)
        reasons.add(server.client.get("/readyz").json()["reason"])
        assert server.client.get("/livez").status_code == 200
        server.until_ready()
    # A slow machine may look only when the next worker loads already, but not three times.
    assert "WorkerRestarting" in reasons


def test_what_had_produced_nothing_goes_to_the_next_worker(serve: Serve) -> None:
    server = serve("--max-num-seqs", "1").until_ready()
    with ThreadPoolExecutor(2) as threads, server.stream("endless", max_tokens=1000) as response:
        lines = response.iter_lines()
        while '"text":"t"' not in next(lines):
            pass
        waiting = threads.submit(server.ask, "Q")  # the only row is taken
        wait_until(lambda: 'tickertape_requests_waiting{model="tiny"} 1' in server.client.get("/metrics").text)
        os.kill(server.worker(), signal.SIGKILL)
        assert "error" in events(lines)[-1]
        assert waiting.result().json()["choices"][0]["text"] == "The answer."


def test_a_worker_that_dies_of_its_work_says_so(serve: Serve) -> None:
    server = serve().until_ready()
    answer = server.ask("die")
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"
    assert "the script says so" in server.stderr()
    server.until_ready()
    assert server.ask("Q").status_code == 200


def test_workers_that_die_again_and_again_end_the_server(serve: Serve) -> None:
    server = serve("--startup-linger-s", "1").until_ready()
    seen: set[int] = set()
    while len(seen) < 6:
        wait_until(lambda: any(pid not in seen for pid in workers(server)))
        pid = next(pid for pid in workers(server) if pid not in seen)
        seen.add(pid)
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: server.client.get("/readyz").json()["reason"] == "WorkerFailed")
    assert server.client.get("/livez").status_code == 200
    assert server.wait() == 1
    assert "again and again" in server.stderr()


def test_no_child_outlives_a_front_that_is_killed(serve: Serve) -> None:
    server = serve().until_ready()
    children = server.children()
    assert children
    server.process.kill()
    wait_until(lambda: not any(map(alive, children)), 5.0)


def test_ctrl_c_reaches_the_front_alone(serve: Serve) -> None:
    server = serve().until_ready()
    with server.stream("nap", max_tokens=200) as response:
        lines = response.iter_lines()
        next(lines)
        os.killpg(server.process.pid, signal.SIGINT)
        assert text_of(events(lines)).endswith("0123456789")
    assert server.wait() == 0


def test_nothing_leaks(serve: Serve, record_property: Callable[[str, object], None]) -> None:
    server = serve().until_ready()
    server.ask("Q")
    worker = server.worker()
    before = open_descriptors(server.process.pid), open_descriptors(worker), len(server.children())
    long = "x" * 1500 + " "
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda n: server.ask(long if n % 2 else "Q", max_tokens=4), range(64)))
    assert {answer.status_code for answer in answers} == {200}
    for _ in range(8):  # and eight that hang up in the middle
        with server.stream("endless", max_tokens=1000) as response:
            next(response.iter_lines())
    server.client.close()
    server.client = httpx.Client(base_url=server.url, timeout=30)
    idle = ('tickertape_requests_running{model="tiny"} 0', 'tickertape_requests_waiting{model="tiny"} 0')
    wait_until(lambda: all(line in server.client.get("/metrics").text for line in idle))
    wait_until(
        lambda: (
            (open_descriptors(server.process.pid), open_descriptors(worker), len(server.children()))
            <= (before[0] + 1, before[1], before[2])
        ),
        10.0,
    )
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    rss_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    record_property("front_rss_mib", rss_kib // 1024)
    assert rss_kib <= 150 << 10


def test_the_front_loads_no_backend(serve: Serve) -> None:
    server = serve().until_ready()
    mapped = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "uvloop" in mapped  # the page does show what is imported
    assert "torch" not in mapped


def test_the_engine_may_live_in_the_front(serve: Serve) -> None:
    server = serve("--in-process").until_ready()
    assert server.ask("Q").json()["choices"][0]["text"] == "The answer."
    assert workers(server) == []
    server.process.terminate()
    assert server.wait() == 0


def test_several_models_have_a_worker_each(start: Callable[..., Server], tiny: Path) -> None:
    server = start(Server, f"a={tiny}", f"b={tiny}", "--port", "0").until_ready()
    assert sorted(model["id"] for model in server.client.get("/v1/models").json()["data"]) == ["a", "b"]
    assert len(workers(server)) == 2
    for name in ("a", "b"):
        server.model = name
        assert server.ask("Q").json()["choices"][0]["text"] == "The answer."


def get_livez(connection: socket.socket) -> bytes:
    """One request on a connection that stays open; what came in answer."""
    connection.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
    received = b""
    while not received.endswith(b"}"):
        data = connection.recv(65536)
        assert data, "the connection was closed"
        received += data
    return received


def test_an_idle_connection_is_kept(serve: Serve) -> None:
    """085, past uvicorn's own five seconds."""
    server = serve().until_ready()
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        assert get_livez(connection).startswith(b"HTTP/1.1 200")
        time.sleep(6)
        assert get_livez(connection).startswith(b"HTTP/1.1 200")


def test_the_keep_alive_is_a_setting(serve: Serve) -> None:
    server = serve("--http-keep-alive-s", "0.3").until_ready()
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        assert get_livez(connection).startswith(b"HTTP/1.1 200")
        answered = time.monotonic()
        assert connection.recv(65536) == b""
        assert time.monotonic() - answered < 3
