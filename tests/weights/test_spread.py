"""How whole files spread from the one server that brings them: one after another, and each by as many as have it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path

import pytest

from tests.weights.fetch_kit import MIB, Rig, ScriptedPeers, SimulatedClock, manifest_of, shard
from tests.weights.peer_kit import TOKEN, Asked, Stranger, named, piece_headers
from tickertape.core.sources import FileEntry
from tickertape.weights.fetch.choice import Choice
from tickertape.weights.fetch.incoming import Incoming, incoming_files
from tickertape.weights.fetch.ports import Offer
from tickertape.weights.objects import Objects
from tickertape.weights.peers.catalog import Partial
from tickertape.weights.peers.client import PeerClient
from tickertape.weights.peers.shelf import Shelf
from tickertape.weights.peers.uploads import Busy, Upload, Uploads
from tickertape.weights.rate import TokenBucket
from tickertape.weights.store import Store

FILES = {f"{number}.safetensors": shard(MIB, number) for number in range(3)}


@pytest.fixture
def incoming(tmp_path: Path) -> Iterator[list[Incoming]]:
    """All of them offered by one peer."""
    store = Store(tmp_path)
    files = incoming_files(store, manifest_of(FILES))
    for file in files:
        assert file.take() or file.partial is not None
        file.offer = Offer(num_whole=1)
    yield files
    for file in files:
        file.close()
    store.close()


def test_files_come_from_peers_one_at_a_time(incoming: list[Incoming]) -> None:
    choice = Choice(incoming, lambda: 0.5, headers_first=False, alone=False)
    found = choice.from_peers(100.0)
    assert found is not None
    first = found[0]
    assert first.partial is not None
    with first.partial.claim(MIB):  # type: ignore[union-attr]
        first.num_streams, first.streams_since, first.was_begun = 1, 100.0, True
        assert choice.from_peers(104.9) is None  # all of it is under way, and nothing else is begun
        second = choice.from_peers(105.0)  # but it must not take for ever
        assert second is not None
        assert second[0] is not first
        first.num_streams = 0  # its peers were busy
        other = choice.from_peers(101.0)
        assert other is not None
        assert other[0] is not first


def test_a_server_gives_to_one_taker_at_a_time() -> None:
    now = [0.0]
    uploads = Uploads(4, TokenBucket(None), lambda: now[0])
    first = uploads.admit("a", "one", 8 * MIB)
    assert isinstance(first, Upload)
    now[0], first.num_sent = 1.0, 2 * MIB
    assert uploads.admit("b", "two", 8 * MIB) == Busy("server", 3.0)
    again = uploads.admit("c", "one", 8 * MIB)
    assert isinstance(again, Upload)
    uploads.end(again)
    assert isinstance(uploads.admit("config", "two", 1000), Upload)
    now[0], first.num_sent = 4.0, 8 * MIB
    uploads.end(first)
    second = uploads.admit("b", "two", 8 * MIB)
    assert isinstance(second, Upload)

    now[0], second.num_sent = 4.4, 0  # too early to tell
    assert uploads.admit("c", "three", 8 * MIB) == Busy("server", 1.0)
    now[0], second.num_sent = 5.0, MIB // 4  # an eighth of the usual speed
    assert isinstance(uploads.admit("c", "three", 8 * MIB), Upload)


def test_who_alone_has_something_is_asked_for_that_only() -> None:
    both, rare = b"b" * 1000, b"r" * 1000
    entries = {content: named(content) for content in (both, rare)}

    def give(asked: Asked) -> None:
        content = next(content for content, entry in entries.items() if asked.target.endswith(entry.sha256 or "-"))
        start, end = asked.span
        asked.answer(206, content[start:end], piece_headers(asked, entries[content]))

    others = [named(bytes([number])) for number in range(5)]  # so that by what it has it would come second
    source = Stranger(give, entries[both], entries[rare], store="source")
    taker = Stranger(give, entries[both], *others, store="taker")
    client = PeerClient([source.name, taker.name], store="mine", token=TOKEN)
    try:
        for _ in range(5):
            client.offers(list(entries.values()))
            assert b"".join(map(bytes, client.read(entries[both], 0, 1000))) == both
        assert [asked.target for asked in source.asked_for_objects] == []
        assert b"".join(map(bytes, client.read(entries[rare], 0, 1000))) == rare
        client.offers([entries[both]])  # the rare one is here now: it has nothing to be spared for
        assert b"".join(map(bytes, client.read(entries[both], 0, 1000))) == both
        assert len(source.asked_for_objects) == 2
    finally:
        client.close()
        source.close()
        taker.close()


class BusyPeers(ScriptedPeers):
    """Remembers when it was read from."""

    def __init__(self, contents: Mapping[str, bytes], retry_after_s: float) -> None:
        super().__init__(contents, dict.fromkeys(contents, 1), script=[("fault", retry_after_s)])
        self.clock = SimulatedClock()
        self.read_at: list[float] = []
        self.refused: Callable[[], None] = lambda: None

    def read(self, entry: FileEntry, start: int, end: int) -> Generator[memoryview, None, None]:
        self.read_at.append(self.clock.now())
        if len(self.read_at) == 1:
            self.refused()
        return super().read(entry, start, end)


@pytest.mark.parametrize(("retry_after_s", "another"), [(0.07, False), (20.0, True)])
def test_a_busy_peer_is_asked_again_in_time(tmp_path: Path, retry_after_s: float, another: bool) -> None:
    files = {"w.safetensors": shard(MIB, 1)}
    peers = BusyPeers(files, retry_after_s)
    rig = Rig(tmp_path, files, peers=peers)
    peers.clock = rig.clock
    if another:  # has the file a moment later, and is not known to be busy
        peers.refused = lambda: peers.whole.update({"w.safetensors": 2})
    rig.run()
    first, second = peers.read_at
    assert second - first == pytest.approx(0.25 if another else retry_after_s, abs=0.02)


def test_what_becomes_an_object_meanwhile_is_listed(tmp_path: Path) -> None:
    entry = named(b"done")
    done: dict[str, int] = {}

    class Finishing:
        """Its file becomes an object as soon as it was listed as under way."""

        def partials(self) -> list[Partial]:
            found = [] if done else [Partial(entry.sha256 or "", 4, ())]
            done[entry.sha256 or ""] = 4
            return found

        def open(self, sha256: str) -> None:
            return None

    class Verified(Objects):
        def verified(self) -> Iterator[tuple[str, int]]:
            found = list(done.items())
            Finishing().partials()
            return iter(found)

    listing = Shelf(Verified(tmp_path), Finishing(), "store").listing()
    assert (entry.sha256 or "").encode() in listing.body
