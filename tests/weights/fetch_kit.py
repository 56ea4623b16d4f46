"""Origins, slots and peers in memory, by a script and on a simulated clock."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import structs

from tickertape.core.errors import OriginBusy, OriginChanged, OriginError, StartupError
from tickertape.core.messages import FetchOptions
from tickertape.core.ports import Progress
from tickertape.core.sources import FileEntry, Manifest
from tickertape.weights.fetch.fetch import Arriving, Fetch
from tickertape.weights.fetch.fetching import Fetching, MakeRoom
from tickertape.weights.fetch.ports import NoPeers, Offer, PeerFault, Peers, SlotLost
from tickertape.weights.store import Store

MIB = 1 << 20
PIECE_BYTES = 256 << 10

Action = tuple[Any, ...]
"""What a request comes to: ("ok",), ("cut", bytes), ("stall", seconds, bytes), ("busy", seconds or None), ("error",),
("changed",), ("corrupt", at), ("short",), ("more",), ("refuse", code)."""


class SimulatedClock:
    """Stands still while something is going on, and skips what would be waited for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = 1000.0

    def now(self) -> float:
        with self._lock:
            return self._now

    def advance_to(self, moment: float) -> None:
        with self._lock:
            self._now = max(self._now, moment)

    def wait(self, condition: threading.Condition, timeout_s: float, *, idle: bool) -> None:
        now = self.now()
        if not condition.wait(0.001 if idle else 0.2) and idle:
            self.advance_to(now + timeout_s)

    def sleep_until(self, moment: float, stop: threading.Event) -> None:
        self.advance_to(moment)


class ScriptedOrigin:
    """The files of a model. Each request takes an action off the front of `script`; without one it is served."""

    def __init__(self, contents: Mapping[str, bytes], clock: SimulatedClock, script: Sequence[Action] = ()) -> None:
        self.contents = dict(contents)
        self.requests: list[tuple[str, int, int, float]] = []
        self.sent_bytes = 0
        self.num_open = self.most_open = self.num_closed = 0
        self.before: Callable[[int], None] = lambda _: None
        self._clock = clock
        self._script = script if isinstance(script, list) else list(script)
        self._lock = threading.Lock()

    def read(self, entry: FileEntry, start: int, end: int | None) -> Generator[memoryview, None, None]:
        assert end is not None
        with self._lock:
            number = len(self.requests)
            self.requests.append((entry.path, start, end, self._clock.now()))
            self.num_open += 1
            self.most_open = max(self.most_open, self.num_open)
        try:
            with self._lock:
                action = self._script.pop(0) if self._script else ("ok",)
            self.before(number)
            yield from self._answer(entry, start, end, action)
        finally:
            with self._lock:
                self.num_open -= 1

    def _answer(self, entry: FileEntry, start: int, end: int, action: Action) -> Generator[memoryview, None, None]:
        what, rest = action[0], action[1:]
        if what == "busy":
            raise OriginBusy("too many requests", retry_after_s=rest[0])
        if what == "error":
            raise OriginError("the origin cannot be reached")
        if what == "changed":
            raise OriginChanged("200 to a request for a range")
        if what == "refuse":
            raise StartupError("the origin refuses", code=rest[0])
        data = bytearray(self.contents[entry.path][start:end])
        if what == "corrupt":
            data[rest[0] % len(data)] ^= 0x40
        if what == "more":
            data += b"x"
        if what == "short":
            del data[-1:]
        if what == "cut":
            del data[rest[0] :]
        if what == "stall":
            del data[rest[1] :]
        for offset in range(0, len(data), PIECE_BYTES):
            piece = memoryview(data)[offset : offset + PIECE_BYTES]
            with self._lock:
                self.sent_bytes += len(piece)
            yield piece
        if what == "cut":
            raise OriginError("the connection broke")
        if what == "stall":
            self._clock.advance_to(self._clock.now() + rest[0])
            raise OriginError("silence")

    def close(self) -> None:
        self.num_closed += 1


class ScriptedSlot:
    def __init__(self, slots: ScriptedSlots, epoch: int) -> None:
        self.epoch = epoch
        self.lost = False
        self._slots = slots

    def check(self) -> None:
        with self._slots.lock:
            self._slots.num_checks += 1
            if self._slots.num_checks in self._slots.lose_at:
                self.lost = True
        if self.lost:
            raise SlotLost("the slot is gone")

    def release(self) -> None:
        self.lost = True
        self._slots.held.discard(self)


class ScriptedSlots:
    """Grants from `free_at` on; a slot is lost at the n-th check of all, for n in `lose_at`."""

    retry_s = 2.0
    trouble: str | None = None
    is_throttled = False

    def __init__(self, clock: SimulatedClock, *, free_at: float = 0.0, lose_at: Collection[int] = ()) -> None:
        self.lock = threading.Lock()
        self.lose_at = frozenset(lose_at)
        self.num_checks = 0
        self.held: set[ScriptedSlot] = set()
        self.asked: list[float] = []
        self.throttles: list[float | None] = []
        self.cooling_until = 0.0
        self._clock = clock
        self.free_at = free_at

    def acquire(self) -> ScriptedSlot | None:
        self.asked.append(self._clock.now())
        if self._clock.now() < self.free_at or self.cooldown_s() > 0:
            return None
        slot = ScriptedSlot(self, len(self.asked))
        self.held.add(slot)
        return slot

    def cooldown_s(self) -> float:
        return max(0.0, self.cooling_until - self._clock.now())

    def throttled(self, retry_after_s: float | None) -> None:
        self.throttles.append(retry_after_s)
        self.cooling_until = max(self.cooling_until, self._clock.now() + (retry_after_s or 10.0))

    def close(self) -> None:
        assert not self.held


class ScriptedPeers:
    """`whole` and `partial` map paths to how many peers have them; reads meet the actions of the script first."""

    def __init__(
        self,
        contents: Mapping[str, bytes],
        whole: Mapping[str, int] = {},
        partial: Mapping[str, int] = {},
        script: Sequence[Action] = (),
    ) -> None:
        self.contents = contents
        self.whole, self.partial = dict(whole), dict(partial)
        self.rejected: list[str] = []
        self.reads: list[tuple[str, int, int]] = []
        self._script = list(script)
        self._lock = threading.Lock()

    def offers(self, entries: Collection[FileEntry]) -> Mapping[str, Offer]:
        found = {e.sha256 or "": self._offer(e) for e in entries}
        return {sha256: offer for sha256, offer in found.items() if offer != Offer() and sha256 not in self.rejected}

    def _offer(self, entry: FileEntry) -> Offer:
        num_whole, num_partial = self.whole.get(entry.path, 0), self.partial.get(entry.path, 0)
        return Offer(num_whole, num_partial, ((0, entry.size_bytes or 0),) if num_partial else ())

    def read(self, entry: FileEntry, start: int, end: int) -> Generator[memoryview, None, None]:
        with self._lock:
            number = len(self.reads)
            self.reads.append((entry.path, start, end))
        what, *rest = self._script[number] if number < len(self._script) else ("ok",)
        if what == "fault":
            raise PeerFault("no peer could", retry_after_s=rest[0])
        data = bytearray(self.contents[entry.path][start:end])
        if what == "corrupt":
            data[rest[0] % len(data)] ^= 0x40
        if what == "cut":
            del data[rest[0] :]
        for offset in range(0, len(data), PIECE_BYTES):
            yield memoryview(data)[offset : offset + PIECE_BYTES]
        if what == "cut":
            raise PeerFault("the peer broke off")

    def chunks(self, entry: FileEntry) -> tuple[str, ...]:
        return ()

    def reject(self, sha256: str) -> None:
        self.rejected.append(sha256)

    def close(self) -> None:
        pass


def content(size_bytes: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(size_bytes)


def shard(size_bytes: int, seed: int, header_bytes: int = 600) -> bytes:
    """As much of a safetensors file as a fetch looks at: the length of the header."""
    return (header_bytes - 8).to_bytes(8, "little") + content(size_bytes - 8, seed)


def manifest_of(contents: Mapping[str, bytes], **more: Any) -> Manifest:
    files = (FileEntry(path, len(raw), hashlib.sha256(raw).hexdigest()) for path, raw in contents.items())
    return Manifest("mem://model", "r1", tuple(files), **more)


@dataclass
class Rig:
    """A fetch with everything around it, which can be run again and again over one store."""

    root: Path
    contents: dict[str, bytes]
    script: Sequence[Action] = ()
    manifest: Manifest | None = None
    peers: Peers = field(default_factory=NoPeers)
    make_room: MakeRoom = lambda _: None
    options: FetchOptions = field(default_factory=FetchOptions)
    free_at: float = 0.0
    lose_at: Collection[int] = ()
    seed: int = 0
    arriving: Arriving | None = None
    report: Callable[[Progress], None] = lambda _: None

    def __post_init__(self) -> None:
        self.clock = SimulatedClock()
        self.store = Store(self.root)
        self.stages: list[Progress] = []
        self.again(self.script)

    def again(self, script: Sequence[Action] = ()) -> Rig:
        """New origin and slots over the same store and clock."""
        self.origin = ScriptedOrigin(self.contents, self.clock, script)
        self.slots = ScriptedSlots(self.clock, free_at=self.free_at, lose_at=self.lose_at)
        self.fetching = Fetching(
            slots=self.slots, make_room=self.make_room, peers=self.peers, options=self.options, clock=self.clock,
            rng=random.Random(self.seed).random,
        )  # fmt: skip
        return self

    def run(self) -> dict[str, str]:
        """Checks what must hold however it ends."""
        manifest = self.manifest or manifest_of(self.contents)
        try:
            found = Fetch(manifest, lambda: self.origin, self.store, self.fetching, self._hear, self.arriving).run()
            for path, sha256 in found.items():
                assert self.store.objects.path(sha256).read_bytes() == self.contents[path]
            assert found.keys() == self.contents.keys()
            return found
        finally:
            assert not self.slots.held
            assert self.origin.num_open == 0
            assert not [thread for thread in threading.enumerate() if thread.name.startswith("fetch-")]
            self.check_objects()

    def _hear(self, progress: Progress) -> None:
        self.stages.append(progress)
        self.report(progress)

    def check_objects(self) -> None:
        for path in self.root.glob("objects/*/*"):
            assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name

    @property
    def num_bytes(self) -> dict[str, int]:
        return self.fetching.ledger.counts().num_bytes


class MemorySource:
    """A `RangedSource` of one model under `mem://`. `answers` are what the next calls of `resolve` raise, None for an
    answer; `script` is for the requests of all origins, in order."""

    name = "memory"
    schemes = ("mem",)

    def __init__(self, contents: Mapping[str, bytes], clock: SimulatedClock | None = None) -> None:
        self.manifest = manifest_of(contents)
        self.contents = dict(contents)
        self.clock = clock or SimulatedClock()
        self.answers: list[StartupError | None] = []
        self.resolved_at: list[float] = []
        self.is_pinned = False
        self.script: list[Action] = []
        self.origins: list[ScriptedOrigin] = []
        self.on_request: Callable[[int], None] = lambda _: None

    def prepare(self) -> None: ...

    def pinned(self, uri: str) -> bool:
        return self.is_pinned

    def resolve(self, uri: str) -> Manifest:
        self.resolved_at.append(self.clock.now())
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer
        return structs.replace(self.manifest, uri=uri)

    def open(self, manifest: Manifest) -> ScriptedOrigin:
        origin = ScriptedOrigin(self.contents, self.clock, self.script)
        origin.before = lambda number: self.on_request(number)
        self.origins.append(origin)
        return origin

    @property
    def sent_bytes(self) -> int:
        return sum(origin.sent_bytes for origin in self.origins)
