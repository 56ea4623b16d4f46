"""The server that hands weights to peers: what it gives, to whom, how much at once, and what it survives."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.weights.peer_kit import TOKEN, Node, until
from tickertape.core.errors import StartupError
from tickertape.core.sources import CHUNK_BYTES, FileEntry
from tickertape.weights.ledger import Ledger
from tickertape.weights.peers.catalog import NoPartials, Partial
from tickertape.weights.peers.exchange import Timeouts
from tickertape.weights.peers.server import PeerServer
from tickertape.weights.peers.shelf import Shelf
from tickertape.weights.peers.uploads import Busy, Upload, Uploads
from tickertape.weights.rate import TokenBucket
from tickertape.weights.store import Store

Nodes = Callable[..., Node]
BEARER = {"Authorization": f"Bearer {TOKEN}"}
LARGE_BYTES = 24 << 20  # more than the kernel takes for a reader that does not read


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made: list[Node] = []

    def make(**more: Any) -> Node:
        made.append(Node(tmp_path / f"node{len(made)}", **more))
        return made[-1]

    yield make
    for node in made:
        node.close()
    assert [t.name for t in threading.enumerate() if t.name.startswith("peers-")] == []


class Got:
    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.status, self.headers, self.body = answer.status, answer.headers, answer.read()


def ask(node: Node, target: str, method: str = "GET", **headers: str) -> Got:
    connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=10)
    try:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, target, headers={**BEARER, **given})
        return Got(connection.getresponse())
    finally:
        connection.close()


def connect(node: Node) -> socket.socket:
    return socket.create_connection(("127.0.0.1", node.port), 10)


def begin(node: Node, entry: FileEntry, store: str = "one") -> socket.socket:
    """Takes the beginning of an object and then no more of it."""
    connection = connect(node)
    head = f"GET /weights/{entry.sha256} HTTP/1.1\r\nHost: x\r\nTickertape-Store: {store}\r\n"
    connection.sendall(f"{head}Authorization: Bearer {TOKEN}\r\n\r\n".encode())
    assert connection.recv(12) == b"HTTP/1.1 200"
    return connection


def read_all(connection: socket.socket) -> bytes:
    """What comes until the other side closes."""
    got = b""
    while data := connection.recv(1 << 16):
        got += data
    return got


CONTENT = bytes(range(256)) * 40


def test_a_whole_object(nodes: Nodes) -> None:
    node = nodes()
    entry = node.put(CONTENT)
    got = ask(node, f"/weights/{entry.sha256}")
    assert (got.status, got.body) == (200, CONTENT)
    assert got.headers["ETag"] == f'"{entry.sha256}"'
    assert got.headers["Accept-Ranges"] == "bytes"
    until(lambda: node.ledger.counts().num_peer_uploads == 1)
    assert node.ledger.counts().num_uploaded_bytes == len(CONTENT)


@pytest.mark.parametrize(
    ("wanted", "start", "end"),
    [
        ("0-0", 0, 1),
        ("5-9", 5, 10),
        ("-3", len(CONTENT) - 3, len(CONTENT)),
        ("10000-", 10000, len(CONTENT)),
        ("10-99999999", 10, len(CONTENT)),
        ("-99999999", 0, len(CONTENT)),
    ],
)
def test_a_range(nodes: Nodes, wanted: str, start: int, end: int) -> None:
    node = nodes()
    entry = node.put(CONTENT)
    got = ask(node, f"/weights/{entry.sha256}", Range=f"bytes={wanted}")
    assert (got.status, got.body) == (206, CONTENT[start:end])
    assert got.headers["Content-Range"] == f"bytes {start}-{end - 1}/{len(CONTENT)}"
    head = ask(node, f"/weights/{entry.sha256}", "HEAD", Range=f"bytes={wanted}")
    assert (head.status, head.body, head.headers["Content-Length"]) == (206, b"", str(end - start))
    until(lambda: node.ledger.counts().num_peer_uploads == 1)
    assert node.ledger.counts().num_uploaded_bytes == end - start  # nothing for HEAD


@pytest.mark.parametrize(
    "wanted",
    ["bytes=20000-", "bytes=9-5", "bytes=0-1,4-5", "bytes=-0", "bytes=", "bytes=a-b", "items=0-1", "bytes=٣-٤", "0-1"],
)
def test_a_range_that_cannot_be_had(nodes: Nodes, wanted: str) -> None:
    node = nodes()
    entry = node.put(CONTENT)
    target = f"/weights/{entry.sha256}"
    with connect(node) as connection:
        head = f"GET {target} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nRange: {wanted}\r\n"
        connection.sendall(f"{head}Connection: close\r\n\r\n".encode())
        got = read_all(connection)
    assert got.startswith(b"HTTP/1.1 416 ")
    assert f"Content-Range: bytes */{len(CONTENT)}\r\n".encode() in got
    assert got.endswith(b"\r\n\r\n")


def test_head_tells_all_but_the_bytes(nodes: Nodes) -> None:
    node = nodes()
    entry = node.put(CONTENT)
    got = ask(node, f"/weights/{entry.sha256}", "HEAD")
    assert (got.status, got.body, got.headers["Content-Length"]) == (200, b"", str(len(CONTENT)))


def test_conditions(nodes: Nodes) -> None:
    node = nodes()
    entry = node.put(CONTENT)
    target, tag = f"/weights/{entry.sha256}", f'"{entry.sha256}"'
    assert ask(node, target, If_Match='"other"').status == 412
    assert ask(node, target, If_Match=tag, Range="bytes=0-3").status == 206
    assert ask(node, target, If_Range='"other"', Range="bytes=0-3").body == CONTENT
    assert ask(node, target, If_Range=tag, Range="bytes=0-3").body == CONTENT[:4]


def test_an_empty_object(nodes: Nodes) -> None:
    node = nodes()
    entry = node.put(b"")
    assert (ask(node, f"/weights/{entry.sha256}").status, ask(node, f"/weights/{entry.sha256}").body) == (200, b"")
    assert ask(node, f"/weights/{entry.sha256}", Range="bytes=0-").status == 416


@pytest.mark.parametrize(
    "shown",
    [
        [],
        ["Bearer wrong"],
        [f"Bearer {TOKEN}x"],
        [TOKEN],
        [f"Basic {TOKEN}"],
        ["Bearer "],
        [f"Bearer {TOKEN}", "Bearer x"],
    ],
)
def test_without_the_token_nothing(nodes: Nodes, shown: list[str]) -> None:
    node = nodes()
    entry = node.put(CONTENT)
    for target in ("/weights", f"/weights/{entry.sha256}", f"/weights/{entry.sha256}/chunks", "/other"):
        with connect(node) as connection:
            lines = [f"GET {target} HTTP/1.1", "Host: x", *(f"Authorization: {value}" for value in shown)]
            connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
            got = read_all(connection)  # it hangs up: a stranger keeps no place
        assert got.startswith(b"HTTP/1.1 401 ")
        assert got.endswith(b"\r\n\r\n")


def test_a_server_without_a_token_is_open(nodes: Nodes) -> None:
    node = nodes(token=None)
    entry = node.put(CONTENT)
    assert ask(node, f"/weights/{entry.sha256}", Authorization="Bearer anything").status == 200


def test_the_inventory(nodes: Nodes) -> None:
    node = nodes()
    entry = node.put(CONTENT)
    got = ask(node, "/weights")
    listing = json.loads(got.body)
    assert listing["whole"] == {entry.sha256: len(CONTENT)}
    assert got.headers["Tickertape-Store"] == listing["store"]
    again = ask(node, "/weights", If_None_Match=got.headers["ETag"])
    assert (again.status, again.body) == (304, b"")


def test_the_inventory_is_looked_up_now_and_then(tmp_path: Path) -> None:
    now = [0.0]
    store = Store(tmp_path)
    shelf = Shelf(store.objects, NoPartials(), "me", lambda: now[0])
    node = Node(tmp_path)
    assert b'"whole":{}' in shelf.listing().body
    entry = node.put(CONTENT)
    assert b'"whole":{}' in shelf.listing().body  # as remembered
    now[0] = 0.3
    assert entry.sha256 is not None
    assert entry.sha256.encode() in shelf.listing().body
    node.close()


def test_a_damaged_object_is_never_offered(nodes: Nodes) -> None:
    node = nodes()
    good, bad = node.put(CONTENT), node.put(CONTENT[::-1])
    assert bad.sha256 is not None
    path = node.store.objects.path(bad.sha256)
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.write(b"x")
    assert list(json.loads(ask(node, "/weights").body)["whole"]) == [good.sha256]
    for target in (f"/weights/{bad.sha256}", f"/weights/{bad.sha256}/chunks"):
        assert ask(node, target).status == 404


def test_paths_lead_nowhere_else(nodes: Nodes) -> None:
    node = nodes()
    entry = node.put(CONTENT)
    sha256 = entry.sha256 or ""
    (node.store.root / "secret").write_text("secret")
    for target in (
        "/",
        "/secret",
        "/weights/",
        "/weights/../secret",
        "/weights/%2e%2e/secret",
        "/weights/..%2fsecret",
        f"/weights/{sha256}/",
        f"/weights/{sha256}/../../secret",
        f"/weights/{sha256}/chunks/",
        f"/weights/{sha256}?x",
        f"/weights/{sha256}%00",
        f"/weights/{sha256.upper()}",
        f"/weights/{sha256[:-1]}",
        f"/weights//{sha256}",
        f"//weights/{sha256}",
        f"http://x/weights/{sha256}",
        "/weights/" + "0" * 64,
    ):
        assert (ask(node, target).status, ask(node, target).body) == (404, b""), target


GARBAGE = {
    b"\x00\xff\x16\x03\x01": 400,
    b"GET /weights\r\n\r\n": 400,  # HTTP/0.9
    b"GET /weights HTTP/2.0\r\nHost: x\r\n\r\n": 505,
    b"GET /weights HTTP/1.1\r\n\r\n": 400,  # no host
    b"GET  /weights HTTP/1.1\r\nHost: x\r\n\r\n": 400,
    b"GET /weights HTTP/1.1\r\nHost: x\r\nA b: c\r\n\r\n": 400,
    b"GET /weights HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n": 400,
    b"GET /weights HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n": 400,
    b"GET /weights HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 20000: 431,
    b"GET /" + b"w" * 20000: 431,
    b"GET /weights HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 4000: 431,
    b"GET /weights HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc": 413,
    b"GET /weights HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n": 413,
}


@pytest.mark.parametrize(("sent", "status"), GARBAGE.items(), ids=range(len(GARBAGE)))
def test_what_is_not_a_request_is_refused(nodes: Nodes, sent: bytes, status: int) -> None:
    node = nodes()
    with connect(node) as connection:
        connection.sendall(sent.replace(b"Host: x\r\n", f"Host: x\r\nAuthorization: Bearer {TOKEN}\r\n".encode(), 1))
        got = b""
        while b"\r\n\r\n" not in got:
            got += connection.recv(1 << 16)
    assert got.split(b" ", 2)[1] == str(status).encode()
    assert b"Connection: close" in got
    assert ask(node, "/weights").status == 200


def test_other_methods(nodes: Nodes) -> None:
    node = nodes()
    for method in ("DELETE", "OPTIONS", "PATCH"):
        got = ask(node, "/weights", method)
        assert (got.status, got.headers["Allow"]) == (405, "GET, HEAD")


def test_a_connection_serves_many_requests_also_when_they_come_at_once(nodes: Nodes) -> None:
    node = nodes()
    entry = node.put(CONTENT)
    one = f"GET /weights/{entry.sha256} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
    with connect(node) as connection:
        connection.sendall(f"{one}\r\n{one}\r\n{one}Connection: close\r\n\r\n".encode())
        got = read_all(connection)
    assert got.count(CONTENT) == got.count(b"HTTP/1.1 200 ") == 3


def test_beyond_the_cap_503(nodes: Nodes) -> None:
    node = nodes(max_uploads=2)
    one, two, three = (node.put(bytes([n]) * LARGE_BYTES) for n in range(3))
    with begin(node, one) as first, begin(node, two):
        got = ask(node, f"/weights/{three.sha256}")
        assert (got.status, got.body, got.headers["Tickertape-Busy"]) == (503, b"", "server")
        assert int(got.headers["Retry-After"]) >= 1
        assert 50 <= int(got.headers["Retry-After-Ms"]) <= 30_000
        assert ask(node, "/weights").status == 200  # that is no upload
        assert ask(node, f"/weights/{three.sha256}", "HEAD").status == 200
        first.close()
        until(lambda: ask(node, f"/weights/{three.sha256}", Range="bytes=0-9").status == 206)


def test_an_object_goes_to_one_store_at_a_time(nodes: Nodes) -> None:
    node = nodes()
    large, small = node.put(bytes(LARGE_BYTES)), node.put(CONTENT)
    with begin(node, large, store="one"):
        got = ask(node, f"/weights/{large.sha256}", Tickertape_Store="two")
        assert (got.status, got.headers["Tickertape-Busy"]) == (503, "object")
        for other in (ask(node, f"/weights/{large.sha256}", Tickertape_Store="one", Range="bytes=0-9"),):
            assert other.status == 206
        assert ask(node, f"/weights/{small.sha256}", Tickertape_Store="two").status == 200


def test_who_is_admitted() -> None:
    now = [0.0]
    uploads = Uploads(2, TokenBucket(None), lambda: now[0])
    first = admitted(uploads.admit("a", "one", 8 << 20))
    now[0], first.num_sent = 2.0, 2 << 20
    assert uploads.admit("a", "two", 8 << 20) == Busy("object", 6.0)  # a quarter took two seconds
    small = admitted(uploads.admit("a", "two", 1000))
    assert uploads.admit("b", "three", 1000) == Busy("server", 1.0)
    uploads.end(small)
    now[0] = 5.0  # a slow taker keeps others off for no longer
    second = admitted(uploads.admit("a", "two", 8 << 20))
    with second:
        assert isinstance(uploads.admit("b", "three", 1), Busy)
    admitted(uploads.admit("b", "three", 1))


def admitted(answer: Upload | Busy) -> Upload:
    assert isinstance(answer, Upload)
    return answer


def test_the_limit_on_bytes_a_second_is_shared() -> None:
    now = [100.0]
    bucket = TokenBucket(8.0, lambda: now[0])  # a million bytes a second
    waits = [bucket.take(100_000) for _ in range(4)]
    assert waits == pytest.approx([0.0, 0.1, 0.2, 0.3])  # a tenth of a second's worth at once
    now[0] += 0.3
    assert bucket.take(100_000) == pytest.approx(0.1)
    bucket.give_back(50_000)
    assert bucket.take(50_000) == pytest.approx(0.1)
    now[0] += 1000  # what was not used does not pile up
    sent, start = 0, now[0]
    while now[0] < start + 10:
        now[0] += bucket.take(30_000)
        sent += 30_000
    assert sent == pytest.approx(10_100_000, abs=60_000)


def test_uploads_keep_to_the_limit(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    take = TokenBucket.take

    def counted(bucket: TokenBucket, num_bytes: int) -> float:
        taken.append(num_bytes)
        return take(bucket, num_bytes)

    monkeypatch.setattr(TokenBucket, "take", counted)
    node = nodes(max_mbps=80.0)
    entry = node.put(CONTENT * 100)
    assert ask(node, f"/weights/{entry.sha256}").body == CONTENT * 100
    assert sum(taken) >= len(CONTENT) * 100  # every byte was asked for before it went
    assert max(taken) <= 500_000


def test_a_reader_that_does_not_read_is_dropped(nodes: Nodes) -> None:
    node = nodes(max_uploads=1, timeouts=Timeouts(stall_s=0.2))
    entry = node.put(bytes(LARGE_BYTES))
    with begin(node, entry) as slow:
        until(lambda: ask(node, f"/weights/{entry.sha256}", Range="bytes=0-9").status == 206)  # its place is free
        num_bytes = 0
        while data := slow.recv(1 << 20):
            num_bytes += len(data)
    assert num_bytes < LARGE_BYTES
    until(lambda: node.ledger.counts().num_peer_uploads == 1)


def test_a_reader_that_trickles_is_dropped(nodes: Nodes) -> None:
    node = nodes(max_uploads=1, timeouts=Timeouts(stall_s=0.3, min_bytes_per_s=1 << 30))
    entry = node.put(bytes(LARGE_BYTES))
    done = threading.Event()

    def trickle(slow: socket.socket) -> None:
        while not done.wait(0.02) and slow.recv(32 << 10):
            pass

    with begin(node, entry) as slow:
        reader = threading.Thread(target=trickle, args=(slow,))
        reader.start()
        try:
            until(lambda: ask(node, f"/weights/{entry.sha256}", Range="bytes=0-9").status == 206)
        finally:
            done.set()
            reader.join()


@pytest.mark.parametrize("beginning", [b"", b"GET /weights HTTP/1.1\r\n"])
def test_who_says_nothing_is_dropped(nodes: Nodes, beginning: bytes) -> None:
    node = nodes(timeouts=Timeouts(idle_s=0.2, head_s=0.2))
    with connect(node) as connection:
        connection.sendall(beginning)
        assert read_all(connection) == b""


def test_a_head_that_trickles_in_is_dropped(nodes: Nodes) -> None:
    node = nodes(timeouts=Timeouts(idle_s=5, head_s=0.3))
    with connect(node) as connection:
        connection.settimeout(0.02)
        num_sent = 0
        while not has_hung_up(connection):
            connection.sendall(b"A")
            num_sent += 1
    assert num_sent < 100


def has_hung_up(connection: socket.socket) -> bool:
    try:
        return connection.recv(100) == b""
    except TimeoutError:
        return False


def test_two_hundred_connections_at_once(nodes: Nodes) -> None:
    node = nodes(max_connections=8)
    taken = [connect(node) for _ in range(8)]
    for connection in taken:
        connection.sendall(f"GET /weights HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
        assert connection.recv(12) == b"HTTP/1.1 200"
    flood = [connect(node) for _ in range(200)]
    for connection in flood:
        got = read_all(connection)
        assert got.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After: 1\r\n" in got
        connection.close()
    assert sum(thread.name == "peers-serve" for thread in threading.enumerate()) == 8
    for connection in taken:
        connection.close()
    until(lambda: ask(node, "/weights").status == 200)


class Shown:
    """Somebody's partial file."""

    def __init__(self, path: Path, partial: Partial) -> None:
        self.path, self.partial = path, partial

    def partials(self) -> Collection[Partial]:
        return (self.partial,)

    def open(self, sha256: str) -> tuple[int, Partial] | None:
        return (os.open(self.path, os.O_RDONLY), self.partial) if sha256 == self.partial.sha256 else None


def test_only_what_is_verified_of_a_partial_file(nodes: Nodes, tmp_path: Path) -> None:
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    (tmp_path / "data").write_bytes(CONTENT)
    shown = Shown(tmp_path / "data", Partial(sha256, len(CONTENT), ((0, 4096), (8192, len(CONTENT)))))
    node = nodes(partials=shown)
    listing = json.loads(ask(node, "/weights").body)
    assert listing["partial"] == [
        {"sha256": sha256, "size_bytes": len(CONTENT), "ranges": [[0, 4096], [8192, len(CONTENT)]]}
    ]
    target = f"/weights/{sha256}"
    assert ask(node, target).status == 404
    assert ask(node, target, Range="bytes=4000-4095").body == CONTENT[4000:4096]
    assert ask(node, target, Range="bytes=8192-").body == CONTENT[8192:]
    for wanted in ("0-", "4000-4096", "4096-8191", "0-10239", "8191-8192"):
        assert ask(node, target, Range=f"bytes={wanted}").status == 416
    assert ask(node, f"{target}/chunks").status == 404
    node.put(CONTENT)  # it has become whole
    until(lambda: json.loads(ask(node, "/weights").body)["partial"] == [])
    assert ask(node, target).body == CONTENT


def test_chunk_digests_are_computed_once(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    node = nodes()
    content = os.urandom(1 << 20) * 17
    entry = node.put(content)
    digests = [hashlib.sha256(content[at : at + CHUNK_BYTES]).hexdigest() for at in range(0, len(content), CHUNK_BYTES)]
    assert json.loads(ask(node, f"/weights/{entry.sha256}/chunks").body) == digests
    assert node.store.objects.chunk_digests(entry.sha256 or "") == tuple(digests)
    monkeypatch.setattr(Shelf, "_read_chunks", None)
    assert json.loads(ask(node, f"/weights/{entry.sha256}/chunks").body) == digests
    assert ask(node, f"/weights/{'0' * 64}/chunks").status == 404


def test_chunk_digests_that_take_long(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    going = threading.Event()

    def slow(shelf: Shelf, fd: int) -> tuple[str, ...]:
        going.wait(10)
        return ("a",)

    monkeypatch.setattr(Shelf, "_read_chunks", slow)
    monkeypatch.setattr("tickertape.weights.peers.server._CHUNKS_PATIENCE_S", 0.05)
    node = nodes()
    entry = node.put(CONTENT)
    assert ask(node, f"/weights/{entry.sha256}/chunks").status == 503
    going.set()
    until(lambda: ask(node, f"/weights/{entry.sha256}/chunks").body == b'["a"]')


def test_a_file_that_shrinks_under_the_upload_ends_it(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    node = nodes()
    entry = node.put(CONTENT)
    sendfile = os.sendfile
    monkeypatch.setattr(os, "sendfile", lambda out, file, at, count: sendfile(out, file, at, 100) if at == 0 else 0)
    with pytest.raises(http.client.IncompleteRead) as caught:
        ask(node, f"/weights/{entry.sha256}")
    assert caught.value.partial == CONTENT[:100]


def test_close_ends_what_goes_on(tmp_path: Path) -> None:
    node = Node(tmp_path)
    entry = node.put(bytes(LARGE_BYTES))
    with begin(node, entry) as reading, connect(node) as idle:
        idle.sendall(f"HEAD /weights HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
        assert idle.recv(1 << 16).endswith(b"\r\n\r\n")
        node.close()
        assert idle.recv(1) == b""
        num_bytes = 0
        with pytest.raises(ConnectionRefusedError):
            connect(node)
        while data := reading.recv(1 << 20):
            num_bytes += len(data)
        assert num_bytes < LARGE_BYTES
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("peers-")]
    node.close()


def test_its_threads_are_nice(nodes: Nodes) -> None:
    node = nodes()
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    with connect(node) as connection:
        connection.sendall(b"x\r\n\r\n")
        read_all(connection)
        with connect(node):
            until(lambda: len(native_ids()) == 2)
            nice = [os.getpriority(os.PRIO_PROCESS, native_id) for native_id in native_ids()]
    assert min(nice) >= 10
    assert os.getpriority(os.PRIO_PROCESS, 0) == mine


def native_ids() -> list[int]:
    """Of the threads of servers, as far as they have begun."""
    return [t.native_id for t in threading.enumerate() if t.name.startswith("peers-") and t.native_id is not None]


def test_a_port_in_use_is_a_reason(nodes: Nodes, tmp_path: Path) -> None:
    node = nodes()
    with pytest.raises(StartupError, match=f"cannot serve peers on port {node.port}: Address already in use") as caught:
        PeerServer(Store(tmp_path), "127.0.0.1", node.port, token=None, max_uploads=1, max_mbps=None, ledger=Ledger())
    assert caught.value.code == "PortInUse"
