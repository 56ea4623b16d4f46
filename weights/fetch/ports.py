"""What a fetch needs from the rest of the cluster: a slot to read from the origin, and peers that have files."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from typing import Protocol

from msgspec import Struct

from tickertape.core.errors import PeerFault, SlotLost
from tickertape.core.sources import FileEntry

__all__ = ["NoPeers", "Offer", "PeerFault", "Peers", "Slot", "SlotLost", "Slots"]


class Slot(Protocol):
    """The right to read from origins. Thread-safe. `epoch` grows with every holder of this slot."""

    @property
    def epoch(self) -> int: ...

    def check(self) -> None:
        """Raises SlotLost. Cheap: call it before every request and after every buffer received."""
        ...

    def release(self) -> None:
        """Gives it back. May be called twice, and after it was lost."""
        ...


class Slots(Protocol):
    """The slots of a cluster. Thread-safe; nothing here blocks for longer than one request to whoever keeps them."""

    def acquire(self) -> Slot | None:
        """One if there is one free and nobody is cooling down, else None at once: ask again, but not faster than every
        `retry_s`."""
        ...

    @property
    def retry_s(self) -> float: ...

    @property
    def trouble(self) -> str | None:
        """Why the last try gave none, where that is a fault and not that others have them: one line."""
        ...

    @property
    def is_throttled(self) -> bool:
        """An origin said 429 not long ago, about a minute after the pause that it asked for: what can wait for a slot
        does, and who has one asks one thing at a time. From memory."""
        ...

    def cooldown_s(self) -> float:
        """Seconds until anybody in the cluster may ask an origin again; 0.0 when now."""
        ...

    def throttled(self, retry_after_s: float | None) -> None:
        """An origin said 429 (503 with Retry-After): the whole cluster pauses, and has fewer slots for a while."""
        ...

    def close(self) -> None:
        """Gives back what is held."""
        ...


class Offer(Struct, frozen=True):
    """How many peers have an object whole, and how many are on the way to having it; `ranges` are the [start, end)
    that one of these can give already. Servers over one store are one."""

    num_whole: int = 0
    num_partial: int = 0
    ranges: tuple[tuple[int, int], ...] = ()

    def covers(self, position: int) -> bool:
        """Whether somebody has the byte there."""
        return self.num_whole > 0 or any(start <= position < end for start, end in self.ranges)


class Peers(Protocol):
    """The other servers that keep weights. Thread-safe."""

    def offers(self, entries: Collection[FileEntry]) -> Mapping[str, Offer]:
        """By sha256, of those entries that have one; what nobody has is left out. Asks the peers when what is known is
        older than a moment, else answers from memory; a peer that does not answer is no peer for a while."""
        ...

    def read(self, entry: FileEntry, start: int, end: int) -> Generator[memoryview, None, None]:
        """The bytes [start, end) of an object, like `Origin.read`, from peers that have them; goes on elsewhere when
        one breaks off. While all of them are busy it waits for a moment. Raises PeerFault; what came before it is the
        range's beginning all the same."""
        ...

    def chunks(self, entry: FileEntry) -> tuple[str, ...]:
        """The sha256 of each CHUNK_BYTES of an object, as a peer tells that has it whole; () when none does. Hints:
        good for finding which chunk of a file is bad and for sharing chunks early, no proof of the file."""
        ...

    def reject(self, sha256: str) -> None:
        """What came for this object was wrong: those who sent bytes of it are not asked again."""
        ...

    def close(self) -> None: ...


class NoPeers:
    """Nobody to ask."""

    def offers(self, entries: Collection[FileEntry]) -> Mapping[str, Offer]:
        return {}

    def read(self, entry: FileEntry, start: int, end: int) -> Generator[memoryview, None, None]:
        raise PeerFault("there are no peers")

    def chunks(self, entry: FileEntry) -> tuple[str, ...]:
        return ()

    def reject(self, sha256: str) -> None:
        pass

    def close(self) -> None:
        pass
