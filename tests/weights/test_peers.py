"""Reading weights from peers: who they are, who is asked, and what happens when they do not behave."""

from __future__ import annotations

import hashlib
import logging
import os
import random
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.weights.peer_kit import TOKEN, Asked, Node, Stranger, named, piece_headers, until, until_gone
from tickertape.core.sources import CHUNK_BYTES, FileEntry
from tickertape.weights.fetch.ports import Offer, PeerFault
from tickertape.weights.peers.attempt import BLOCK_BYTES
from tickertape.weights.peers.catalog import Partial
from tickertape.weights.peers.client import PeerClient
from tickertape.weights.peers.connection import Patience
from tickertape.weights.peers.identity import store_identity
from tickertape.weights.peers.pace import Pace
from tickertape.weights.peers.server import PeerServer

CONTENT = random.Random(7).randbytes(3 * BLOCK_BYTES + 1000)
ENTRY = named(CONTENT)


class House:
    """Makes the parts of a test and ends them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._made: list[Node | Stranger | PeerClient] = []

    def node(self, content: bytes | None = CONTENT, **more: Any) -> Node:
        node = Node(self.root / f"node{len(self._made)}", **more)
        self._made.append(node)
        if content is not None:
            node.put(content)
        return node

    def stranger(self, behave: Callable[[Asked], None], *held: FileEntry, **more: Any) -> Stranger:
        stranger = Stranger(behave, *(held or (ENTRY,)), **more)
        self._made.append(stranger)
        return stranger

    def client(self, *names: str, **more: Any) -> PeerClient:
        client = PeerClient(names, **{"store": "mine", "token": TOKEN, "rng": random.Random(1), **more})
        self._made.append(client)
        return client

    def close(self) -> None:
        for made in reversed(self._made):
            made.close()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    num_files = len(os.listdir("/proc/self/fd"))
    house = House(tmp_path)
    yield house
    house.close()
    assert [t.name for t in threading.enumerate() if t.name.startswith("peers-")] == []
    assert len(os.listdir("/proc/self/fd")) <= num_files


def read(client: PeerClient, entry: FileEntry = ENTRY, start: int = 0, end: int | None = None) -> bytes:
    client.offers([entry])
    stop = (entry.size_bytes or 0) if end is None else end
    return b"".join(bytes(piece) for piece in client.read(entry, start, stop))


def give(content: bytes) -> Callable[[Asked], None]:
    """An honest answer, whatever the content is."""

    def behave(asked: Asked) -> None:
        start, end = asked.span
        asked.answer(206, content[start:end], piece_headers(asked, ENTRY))

    return behave


def collect(pieces: Iterable[memoryview], got: bytearray) -> None:
    for piece in pieces:
        got += piece


# Who is there


def test_offers_count_stores(house: House) -> None:
    one, two = house.node(), house.node()
    client = house.client(one.name, two.name)
    other = named(b"nobody has this")
    assert client.offers([ENTRY, other, FileEntry("nameless", 3)]) == {ENTRY.sha256: Offer(num_whole=2)}


def test_a_name_stands_for_all_its_addresses_which_may_change(house: House) -> None:
    here = house.node()
    there = house.node(host="127.0.0.2", port=here.port)
    addresses, asked, now = ["127.0.0.1"], [], [0.0]

    def resolver(host: str, port: int) -> Sequence[tuple[str, int]]:
        asked.append((host, port))
        if not addresses:
            raise socket.gaierror("no answer")
        return [(address, port) for address in addresses]

    client = house.client(f"peers.internal:{here.port}", resolver=resolver, clock=lambda: now[0])
    assert client.offers([ENTRY])[ENTRY.sha256 or ""].num_whole == 1
    addresses.append("127.0.0.2")
    assert client.offers([ENTRY])[ENTRY.sha256 or ""].num_whole == 1  # not more often than once a second
    now[0] = 1.0
    assert client.offers([ENTRY])[ENTRY.sha256 or ""].num_whole == 2
    addresses.clear()
    now[0] = 2.0
    assert client.offers([ENTRY])[ENTRY.sha256 or ""].num_whole == 2  # a name service that is away is no news
    addresses.append("127.0.0.2")
    now[0] = 3.0
    assert client.offers([ENTRY])[ENTRY.sha256 or ""].num_whole == 1
    assert asked == [("peers.internal", here.port)] * 4
    assert there.port == here.port


def test_the_servers_over_our_own_store_are_no_peers(house: House) -> None:
    node = house.node()
    beside = PeerServer(node.store, "127.0.0.1", 0, token=TOKEN, max_uploads=1, max_mbps=None, ledger=node.ledger)
    try:
        names = node.name, f"127.0.0.1:{beside.port}"
        assert house.client(*names, store=store_identity(node.store.root)).offers([ENTRY]) == {}
        assert house.client(*names).offers([ENTRY]) == {ENTRY.sha256: Offer(num_whole=1)}  # two servers, one store
    finally:
        beside.close()


def test_a_round_asks_a_few_of_many(house: House) -> None:
    now = [0.0]
    crowd = house.stranger(give(CONTENT), host="0.0.0.0")
    many = [f"127.0.1.{number}" for number in range(1, 25)]
    client = house.client(
        f"crowd:{crowd.port}", resolver=lambda _, port: [(address, port) for address in many], clock=lambda: now[0]
    )
    client.offers([ENTRY])
    assert len(crowd.asked) == 8
    for number in range(1, 30):
        now[0] = float(number)
        client.offers([ENTRY])
    assert len(crowd.asked) == 30 * 8
    assert len({asked.headers["host"] for asked in crowd.asked}) == 24  # by lot, so all have their turn


def test_an_inventory_that_is_known_is_not_sent_again(house: House) -> None:
    now, node = [0.0], house.node()
    client = house.client(node.name, clock=lambda: now[0])
    client.offers([ENTRY])
    now[0] = 1.0
    assert client.offers([ENTRY]) == {ENTRY.sha256: Offer(num_whole=1)}


def test_who_does_not_answer_rests_longer_each_time(house: House) -> None:
    now, times = [0.0], []

    def hang_up(connection: socket.socket) -> None:
        times.append(now[0])
        connection.close()

    dead = house.stranger(give(CONTENT))
    dead._serve = hang_up  # type: ignore[method-assign]
    client = house.client(dead.name, clock=lambda: now[0])
    for second in range(40):
        now[0] = float(second)
        assert client.offers([ENTRY]) == {}
    assert times == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0]


def test_nobody_is_there(house: House) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    client = house.client(f"127.0.0.1:{port}")
    assert client.offers([ENTRY]) == {}
    with pytest.raises(PeerFault):
        read(client)


@pytest.mark.parametrize("answer", [b"[]", b'{"store": 1}', b"{", b'{"store":"x","whole":{"a":"b"}}'])
def test_an_inventory_that_is_none(house: House, answer: bytes) -> None:
    odd = house.stranger(give(CONTENT))
    odd._serve = lambda connection: _answer_once(connection, answer)  # type: ignore[method-assign]
    assert house.client(odd.name).offers([ENTRY]) == {}


def _answer_once(connection: socket.socket, body: bytes) -> None:
    with connection:
        connection.recv(1 << 16)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


def test_a_wrong_token_makes_no_peer(house: House, caplog: pytest.LogCaptureFixture) -> None:
    node = house.node()
    assert house.client(node.name, token="another").offers([ENTRY]) == {}
    assert house.client(node.name, token=None).offers([ENTRY]) == {}
    assert "is the token the same?" in caplog.text


# Reading


def test_reads_whole_and_from_the_middle(house: House) -> None:
    client = house.client(house.node().name)
    assert read(client) == CONTENT
    assert read(client, start=5, end=7) == CONTENT[5:7]
    assert read(client, start=BLOCK_BYTES - 3) == CONTENT[BLOCK_BYTES - 3 :]


def test_pieces_are_large(house: House) -> None:
    client = house.client(house.node().name)
    client.offers([ENTRY])
    sizes = [len(piece) for piece in client.read(ENTRY, 0, len(CONTENT))]
    assert sizes == [BLOCK_BYTES] * 3 + [1000]


def test_one_connection_serves_many_reads(house: House) -> None:
    honest = house.stranger(give(CONTENT))
    client = house.client(honest.name)
    for _ in range(5):
        assert read(client) == CONTENT
    assert honest.num_connections == 1


def test_a_connection_that_was_closed_while_idle_is_no_fault(house: House) -> None:
    def once(asked: Asked) -> None:
        give(CONTENT)(asked)
        raise OSError

    client = house.client(house.stranger(once).name)
    assert [read(client) for _ in range(3)] == [CONTENT] * 3


def test_many_reads_at_once_use_several_peers(house: House) -> None:
    strangers = [house.stranger(give(CONTENT), store=f"store{number}") for number in range(6)]
    client = house.client(*(stranger.name for stranger in strangers))
    client.offers([ENTRY])
    reading = [client.read(ENTRY, 0, len(CONTENT)) for _ in range(8)]
    for pieces in reading:
        next(pieces)
    assert sorted(len(stranger.asked_for_objects) for stranger in strangers) == [0, 0, 2, 2, 2, 2]
    for pieces in reading:
        pieces.close()


def test_closing_early_ends_the_transfer(house: House) -> None:
    gone = threading.Event()

    def endless(asked: Asked) -> None:
        asked.begin(206, len(CONTENT), piece_headers(asked, ENTRY))
        asked.connection.sendall(CONTENT[:BLOCK_BYTES])
        until_gone(asked.connection)
        gone.set()

    client = house.client(house.stranger(endless).name)
    client.offers([ENTRY])
    pieces = client.read(ENTRY, 0, len(CONTENT))
    assert bytes(next(pieces)) == CONTENT[:BLOCK_BYTES]
    pieces.close()
    assert gone.wait(10)


def test_parts_from_those_who_have_them(house: House, tmp_path: Path) -> None:
    half = 2 * BLOCK_BYTES
    (tmp_path / "data").write_bytes(CONTENT)
    catalogs = [_Part(tmp_path / "data", ((0, half),)), _Part(tmp_path / "data", ((half, len(CONTENT)),))]
    nodes = [house.node(None, partials=catalog) for catalog in catalogs]
    client = house.client(*(node.name for node in nodes))
    assert client.offers([ENTRY]) == {ENTRY.sha256: Offer(num_partial=2, ranges=((0, half), (half, len(CONTENT))))}
    assert read(client) == CONTENT
    until(lambda: [node.ledger.counts().num_uploaded_bytes for node in nodes] == [half, len(CONTENT) - half])


class _Part:
    def __init__(self, path: Path, ranges: tuple[tuple[int, int], ...]) -> None:
        self.path, self.partial = path, Partial(ENTRY.sha256 or "", len(CONTENT), ranges)

    def partials(self) -> Sequence[Partial]:
        return [self.partial]

    def open(self, sha256: str) -> tuple[int, Partial] | None:
        return os.open(self.path, os.O_RDONLY), self.partial


def test_who_has_only_begun_counts_but_is_not_asked(house: House, tmp_path: Path) -> None:
    client = house.client(house.node(None, partials=_Part(tmp_path, ())).name)
    assert client.offers([ENTRY]) == {ENTRY.sha256: Offer(num_partial=1)}
    with pytest.raises(PeerFault) as caught:
        read(client)
    assert caught.value.retry_after_s is None


def test_chunk_digests_are_asked_for_once(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    content = bytes(CHUNK_BYTES + 5)
    node = house.node(content)
    entry, client = named(content), house.client(node.name)
    client.offers([entry])
    digests = tuple(hashlib.sha256(bytes(size)).hexdigest() for size in (CHUNK_BYTES, 5))
    assert client.chunks(entry) == digests
    node.server.close()
    assert client.chunks(entry) == digests
    assert client.chunks(ENTRY) == (ENTRY.sha256,)  # one chunk is the whole file
    assert client.chunks(FileEntry("unknown", 3 * CHUNK_BYTES, "0" * 64)) == ()


# Peers that do not behave


def test_wrong_bytes_are_held_against_their_sender(house: House) -> None:
    other = named(b"other")
    liar = house.stranger(give(CONTENT[::-1]), ENTRY, other)
    client = house.client(liar.name)
    got = read(client)
    assert hashlib.sha256(got).hexdigest() != ENTRY.sha256
    assert ENTRY.sha256 is not None
    client.reject(ENTRY.sha256)
    assert client.offers([ENTRY, other]) == {}  # nobody else sent bytes of it
    with pytest.raises(PeerFault):
        read(client)
    honest = house.node()
    for content in (b"so that the other one", b"is asked first:", b"it has less to give"):
        honest.put(content)
    both = house.client(liar.name, honest.name)
    assert read(both) != CONTENT
    both.reject(ENTRY.sha256)
    assert read(both) == CONTENT
    assert both.offers([ENTRY]) == {ENTRY.sha256: Offer(num_whole=1)}


def test_of_two_senders_one_may_be_honest(house: House) -> None:
    other = named(b"other")

    def dies(asked: Asked) -> None:
        start, _ = asked.span
        asked.begin(206, len(CONTENT) - start, piece_headers(asked, ENTRY))
        asked.connection.sendall(bytes(BLOCK_BYTES))
        raise OSError

    liar = house.stranger(dies, ENTRY, other, store="liar")
    honest = house.stranger(give(CONTENT), ENTRY, other, store="honest")
    client = house.client(liar.name, honest.name, rng=random.Random(0))
    while not (liar.asked_for_objects and honest.asked_for_objects):
        read(client)
    assert ENTRY.sha256 is not None
    client.reject(ENTRY.sha256)
    offers = client.offers([ENTRY, other])
    assert ENTRY.sha256 not in offers  # both sent bytes of it
    assert offers[other.sha256 or ""].num_whole >= 1  # and are asked for other files still


SHORT = ENTRY.size_bytes or 0


def _headers(asked: Asked, **other: str) -> dict[str, str]:
    return {**piece_headers(asked, ENTRY), **{name.replace("_", "-"): value for name, value in other.items()}}


def _silent_length(asked: Asked) -> None:
    asked.connection.sendall(b"HTTP/1.1 206 So\r\n\r\n" + CONTENT)
    raise OSError


ODD_ANSWERS: dict[str, Callable[[Asked], None]] = {
    "200 to a range": lambda asked: asked.answer(200, CONTENT, piece_headers(asked, ENTRY)),
    "another etag": lambda asked: asked.answer(206, CONTENT, _headers(asked, ETag='"x"')),
    "no etag": lambda asked: asked.answer(206, CONTENT, {"Content-Range": _headers(asked)["Content-Range"]}),
    "another range": lambda asked: asked.answer(
        206, CONTENT, _headers(asked, Content_Range=f"bytes 1-{SHORT}/{SHORT}")
    ),
    "another size": lambda asked: asked.answer(
        206, CONTENT, _headers(asked, Content_Range=f"bytes 0-{SHORT - 1}/{SHORT + 1}")
    ),
    "too short": lambda asked: asked.answer(206, CONTENT[1:], piece_headers(asked, ENTRY)),
    "too long": lambda asked: asked.answer(206, CONTENT + b"x", piece_headers(asked, ENTRY)),
    "500": lambda asked: asked.answer(500),
    "401": lambda asked: asked.answer(401),
    "404": lambda asked: asked.answer(404),
    "chunked": lambda asked: asked.answer(206, b"", _headers(asked, Transfer_Encoding="chunked")),
    "no length": _silent_length,
    "no HTTP": lambda asked: asked.connection.sendall(b"hello\r\n\r\n"),
    "100 first": lambda asked: asked.connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n"),
    "a head without end": lambda asked: asked.connection.sendall(b"HTTP/1.1 206 So\r\n" + b"A: b\r\n" * 5000),
}


@pytest.mark.parametrize("behave", ODD_ANSWERS.values(), ids=ODD_ANSWERS.keys())
def test_an_answer_that_is_none(house: House, behave: Callable[[Asked], None]) -> None:
    odd = house.stranger(behave)
    client = house.client(odd.name)
    with pytest.raises(PeerFault) as caught:
        read(client)
    assert caught.value.retry_after_s is None  # then the origin is asked
    assert len(odd.asked_for_objects) == 1
    honest = house.node()
    assert read(house.client(odd.name, honest.name)) == CONTENT


def test_redirects_are_not_followed(house: House) -> None:
    elsewhere = house.stranger(give(CONTENT))
    location = {"Location": f"http://{elsewhere.name}/weights/{ENTRY.sha256}"}
    client = house.client(house.stranger(lambda asked: asked.answer(307, b"", location)).name)
    with pytest.raises(PeerFault):
        read(client)
    assert elsewhere.num_connections == 0


def test_who_dies_midway_is_succeeded_where_he_stopped(house: House) -> None:
    def dies(asked: Asked) -> None:
        start, end = asked.span
        asked.begin(206, end - start, piece_headers(asked, ENTRY))
        asked.connection.sendall(CONTENT[start : start + BLOCK_BYTES + 100])
        raise OSError

    mortal = house.stranger(dies)
    heir = house.stranger(give(CONTENT), ENTRY, named(b"more"), store="heir")  # so it is not asked first
    client = house.client(mortal.name)
    client.offers([ENTRY])
    got = bytearray()
    with pytest.raises(PeerFault):
        collect(client.read(ENTRY, 0, len(CONTENT)), got)
    assert got == CONTENT[:BLOCK_BYTES]  # what came before is good
    assert read(house.client(mortal.name, heir.name)) == CONTENT
    assert heir.asked_for_objects[-1].span == (BLOCK_BYTES, len(CONTENT))


@pytest.mark.parametrize("num_sent", [None, 0, BLOCK_BYTES + 5])
def test_who_stalls_is_overtaken(house: House, num_sent: int | None) -> None:
    gone = threading.Event()

    def stall(asked: Asked) -> None:
        start, end = asked.span
        if num_sent is not None:
            asked.begin(206, end - start, piece_headers(asked, ENTRY))
            asked.connection.sendall(CONTENT[start : start + num_sent])
        until_gone(asked.connection)
        gone.set()

    lame = house.stranger(stall)
    quick = house.stranger(give(CONTENT), ENTRY, named(b"more"), store="quick")  # so it is not asked first
    both = house.client(lame.name, quick.name, patience=Patience(head_s=30, stall_s=30))
    both._pace = quick_pace()
    assert read(both) == CONTENT
    assert gone.wait(10)  # his connection was closed
    assert both.offers([ENTRY])[ENTRY.sha256 or ""].num_whole == 2  # being slow once is no failure
    assert quick.asked_for_objects[-1].span == (BLOCK_BYTES if num_sent else 0, len(CONTENT))


def test_who_drips_is_no_help(house: House) -> None:
    gone = threading.Event()

    def drip(asked: Asked) -> None:
        start, end = asked.span
        asked.begin(206, end - start, piece_headers(asked, ENTRY))
        with suppress(OSError):
            while not gone.wait(0.01):
                asked.connection.sendall(CONTENT[start : start + 1])

    client = house.client(house.stranger(drip).name, patience=Patience(block_s=0.2))
    try:
        with pytest.raises(PeerFault) as caught:
            read(client)
        assert caught.value.retry_after_s is None  # then the origin is asked
        assert not client.offers([ENTRY])
    finally:
        gone.set()


def quick_pace() -> Pace:
    pace = Pace()
    for _ in range(8):
        pace.took(0.001)
    return pace


def test_a_share_of_the_requests_is_hedged() -> None:
    pace = Pace()
    assert pace.patience_s() == 1.0
    for seconds in (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 9.0):
        pace.took(seconds)
    assert pace.patience_s() == pytest.approx(1.1)  # twice the median
    num_hedged = 0
    for _ in range(200):
        pace.asked()
        num_hedged += pace.may_hedge()
    assert num_hedged == pytest.approx(20, abs=2)


def test_who_is_busy_is_left_alone_until_then(house: House) -> None:
    now = [0.0]
    busy = house.stranger(lambda asked: asked.answer(503, b"", {"Retry-After": "7"}))
    client = house.client(busy.name, clock=lambda: now[0])
    with pytest.raises(PeerFault) as caught:
        read(client)
    assert caught.value.code == "PeersBusy"
    assert caught.value.retry_after_s is not None
    assert 7.0 <= caught.value.retry_after_s <= 7.0 * 1.25  # so that not all come back at once
    assert client.offers([ENTRY]) == {ENTRY.sha256: Offer(num_whole=1)}  # still: the origin is not to be asked
    for now[0] in (1.0, 6.9, 9.0):
        with pytest.raises(PeerFault, match="busy"):
            read(client)
    assert len(busy.asked_for_objects) == 2


def test_a_moments_busyness_is_waited_for(house: House) -> None:
    def at_last(asked: Asked) -> None:
        if len(busy.asked_for_objects) < 4:
            asked.answer(503, b"", {"Retry-After": "1", "Retry-After-Ms": "20"})
        else:
            give(CONTENT)(asked)

    busy = house.stranger(at_last)
    assert read(house.client(busy.name)) == CONTENT


def test_busy_with_one_object_is_free_for_others(house: House) -> None:
    other = named(b"x" * 100)

    def behave(asked: Asked) -> None:
        if asked.target.endswith(ENTRY.sha256 or ""):
            asked.answer(503, b"", {"Retry-After": "9", "Tickertape-Busy": "object"})
        else:
            asked.answer(206, b"x" * 100, piece_headers(asked, other))

    client = house.client(house.stranger(behave, ENTRY, other).name)
    with pytest.raises(PeerFault, match="busy"):
        read(client)
    assert read(client, other) == b"x" * 100


def test_close_ends_a_read_that_waits(house: House) -> None:
    began, faults = threading.Event(), []

    def stall(asked: Asked) -> None:
        began.set()
        until_gone(asked.connection)

    client = house.client(house.stranger(stall).name, patience=Patience(head_s=60))

    def reader() -> None:
        try:
            read(client)
        except PeerFault as error:
            faults.append(error)

    thread = threading.Thread(target=reader)
    thread.start()
    assert began.wait(10)
    client.close()
    thread.join(10)
    assert len(faults) == 1
    client.close()
    with pytest.raises(PeerFault):
        read(client)


def test_the_token_is_never_told(house: House, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    node = house.node()
    odd = house.stranger(lambda asked: asked.answer(401, b"", {"Why": asked.headers["authorization"]}))
    for names, token in (((node.name,), TOKEN), ((odd.name,), TOKEN), ((node.name,), f"{TOKEN}x")):
        with suppress(PeerFault):
            read(house.client(*names, token=token))
    assert odd.asked[0].headers["authorization"] == f"Bearer {TOKEN}"
    assert caplog.records
    assert TOKEN not in caplog.text


def test_what_offers_say_is_not_believed_after_a_404(house: House) -> None:
    now = [0.0]
    forgetful = house.stranger(lambda asked: asked.answer(404))
    client = house.client(forgetful.name, clock=lambda: now[0])
    with pytest.raises(PeerFault):
        read(client)
    assert client.offers([ENTRY]) == {}
    now[0] = 1.0
    assert client.offers([ENTRY]) == {ENTRY.sha256: Offer(num_whole=1)}  # it says so again
