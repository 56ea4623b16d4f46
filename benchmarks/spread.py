"""How fast a model spreads: nodes that start cold at once, one slot at the origin, links as fast as the origin is.

The parts are real: stores, fetches, peer servers and clients over loopback. Simulated are the origin, which gives so
many bytes a second to everybody together, the links of the nodes (each way as fast as the origin), and the slot. With
--digests the manifest carries digests of chunks, so that parts of files are handed on too.

    python benchmarks/spread.py [--quick] [--nodes 6] [--shards 16] [--shard-mib 4] [--mbps 32] [--digests]
"""

from __future__ import annotations

import argparse
import hashlib
import random
import tempfile
import threading
import time
from collections.abc import Collection, Generator, Mapping, Sequence
from pathlib import Path

from report import Figure, publish

from tickertape.core.messages import FetchOptions
from tickertape.core.sources import CHUNK_BYTES, FileEntry, Manifest
from tickertape.weights.fetch.fetch import Fetch
from tickertape.weights.fetch.fetching import Fetching, check_room
from tickertape.weights.fetch.ports import Offer
from tickertape.weights.fetch.underway import Underway
from tickertape.weights.ledger import Ledger
from tickertape.weights.peers.client import PeerClient
from tickertape.weights.peers.identity import store_identity
from tickertape.weights.peers.server import PeerServer
from tickertape.weights.rate import TokenBucket
from tickertape.weights.store import Store

PIECE_BYTES = 64 << 10


class Model:
    """Random shards, each the same bytes over and over: cheap to make, and no two alike."""

    def __init__(self, num_shards: int, shard_bytes: int, *, digests: bool) -> None:
        rng = random.Random(0)
        self.blocks = [rng.randbytes(PIECE_BYTES) for _ in range(num_shards)]
        files = []
        for number, block in enumerate(self.blocks):
            content = block * (shard_bytes // PIECE_BYTES)
            chunks = [content[start : start + CHUNK_BYTES] for start in range(0, shard_bytes, CHUNK_BYTES)]
            files.append(
                FileEntry(
                    f"model-{number:05}.safetensors",
                    shard_bytes,
                    hashlib.sha256(content).hexdigest(),
                    chunk_sha256=tuple(hashlib.sha256(chunk).hexdigest() for chunk in chunks) if digests else (),
                )
            )
        self.manifest = Manifest("spread://model", "1", tuple(files))
        self.num_bytes = num_shards * shard_bytes


class SlowOrigin:
    """Gives `bucket` to all who read together."""

    def __init__(self, model: Model, bucket: TokenBucket, link: TokenBucket) -> None:
        self._model, self._bucket, self._link = model, bucket, link

    def read(self, entry: FileEntry, start: int, end: int | None) -> Generator[memoryview, None, None]:
        block = memoryview(self._model.blocks[self._model.manifest.files.index(entry)])
        stop = entry.size_bytes if end is None else end
        while stop is not None and start < stop:
            within = start % PIECE_BYTES
            piece = block[within : within + stop - start]
            time.sleep(max(self._bucket.take(len(piece)), self._link.take(len(piece))))
            yield piece
            start += len(piece)

    def close(self) -> None: ...


class LinkedPeers:
    """Peers behind a link of limited speed."""

    def __init__(self, peers: PeerClient, link: TokenBucket) -> None:
        self._peers, self._link = peers, link
        self.chunks, self.reject, self.close = peers.chunks, peers.reject, peers.close

    def offers(self, entries: Collection[FileEntry]) -> Mapping[str, Offer]:
        return self._peers.offers(entries)

    def read(self, entry: FileEntry, start: int, end: int) -> Generator[memoryview, None, None]:
        for block in self._peers.read(entry, start, end):
            for at in range(0, len(block), PIECE_BYTES):
                piece = block[at : at + PIECE_BYTES]
                time.sleep(self._link.take(len(piece)))
                yield piece


class OneSlot:
    """The slot of the cluster, and nobody is ever told to wait."""

    def __init__(self) -> None:
        self._free = threading.Lock()
        self.retry_s = 0.2
        self.trouble: str | None = None
        self.is_throttled = False
        self.epoch = 0

    def acquire(self) -> OneSlot | None:
        return self if self._free.acquire(blocking=False) else None

    def check(self) -> None: ...

    def release(self) -> None:
        self._free.release()

    def cooldown_s(self) -> float:
        return 0.0

    def throttled(self, retry_after_s: float | None) -> None: ...

    def close(self) -> None: ...


class Node:
    """A store, its server, and a fetch into it."""

    def __init__(self, root: Path, mbps: float, num_uploads: int, num_connections: int) -> None:
        self.store, self.ledger, self.underway = Store(root), Ledger(), Underway()
        self.link = TokenBucket(mbps)
        self.server = PeerServer(
            self.store,
            "127.0.0.1",
            0,
            token="spread",
            max_uploads=num_uploads,
            max_mbps=mbps,
            ledger=self.ledger,
            partials=self.underway,
        )
        self.ready_s = 0.0
        self._num_connections = num_connections

    def fetch(self, model: Model, names: Sequence[str], slot: OneSlot, origin: TokenBucket, started: float) -> None:
        peers = LinkedPeers(PeerClient(names, store=store_identity(self.store.root), token="spread"), self.link)
        fetching = Fetching(
            slot,
            check_room(self.store.root, 0),
            peers,
            self.ledger,
            FetchOptions(origin_connections=self._num_connections),
            self.underway,
        )
        try:
            Fetch(
                model.manifest, lambda: SlowOrigin(model, origin, self.link), self.store, fetching, lambda _: None
            ).run()
            self.ready_s = time.monotonic() - started
        finally:
            peers.close()

    def close(self) -> None:
        self.server.close()
        self.store.close()


def spread(model: Model, nodes: Sequence[Node], mbps: float) -> list[Figure]:
    names = [f"127.0.0.1:{node.server.port}" for node in nodes]
    slot, origin, started = OneSlot(), TokenBucket(mbps), time.monotonic()
    threads = [threading.Thread(target=node.fetch, args=(model, names, slot, origin, started)) for node in nodes]
    run_all(threads)
    for node in nodes:
        node.close()
    if not all(node.ready_s for node in nodes):
        raise RuntimeError("a fetch failed")
    ideal_s = model.num_bytes * 8 / (mbps * 1e6)
    from_origin = sum(node.ledger.counts().num_bytes.get("origin", 0) for node in nodes)
    times = sorted(node.ready_s for node in nodes)
    return [
        Figure("all_ready", times[-1] / ideal_s, "x", 1.5, what=f"of size / origin bandwidth, {ideal_s:.0f} s"),
        Figure("first_ready", times[0] / ideal_s, "x"),
        Figure("origin_bytes", from_origin / model.num_bytes, "x", 1.05, what="of the model"),
    ]


def run_all(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="half the shards")
    parser.add_argument("--nodes", type=int, default=6)
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--shard-mib", type=int, default=4)
    parser.add_argument("--mbps", type=float, default=32.0)
    parser.add_argument("--uploads", type=int, default=4)
    parser.add_argument("--connections", type=int, default=2, help="to the origin at once; each has 16 MiB in flight")
    parser.add_argument("--digests", action="store_true", help="the manifest carries digests of chunks")
    options = parser.parse_args()
    model = Model(options.shards // (2 if options.quick else 1), options.shard_mib << 20, digests=options.digests)
    with tempfile.TemporaryDirectory() as directory:
        nodes = [
            Node(Path(directory) / f"node{number}", options.mbps, options.uploads, options.connections)
            for number in range(options.nodes)
        ]
        figures = spread(model, nodes, options.mbps)
    publish(
        f"{options.nodes} nodes, {options.shards} shards of {options.shard_mib} MiB, {options.mbps} Mbit/s", figures
    )


if __name__ == "__main__":
    main()
