"""Which file is asked for next, of whom."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tickertape.weights.fetch.incoming import Incoming, Phase

__all__ = ["Choice"]

_LAST_RESORT_S = 10.0
_ALONE_S = 5.0


class Choice:
    """Chooses among the files of a fetch, which the caller guards by its lock. `rng` breaks ties, so that servers
    differ; with `alone` there are none to be considerate of, and files come in the order in which they are loaded."""

    def __init__(
        self, files: Sequence[Incoming], rng: Callable[[], float], *, headers_first: bool, alone: bool
    ) -> None:
        self._files = files
        names = sorted(files, key=lambda file: file.entry.path)
        self._lots = {id(file): float(place) if alone else rng() for place, file in enumerate(names)}
        self._headers_first = headers_first
        self._at_once = len(files) if alone else 2
        self._last_resort_s = _LAST_RESORT_S * (1 + rng())
        self._idle_since: float | None = None

    def from_origin(self, now: float) -> tuple[Incoming, int, int] | None:
        """The file, how much of it, and its phase. In order: what comes first; what we have begun; what the fewest
        peers are fetching, so that two holders of slots bring different files. With peers few files are under way at
        once: the sooner one is whole, the sooner it is handed on, and the less is fetched twice by holders that
        cannot know yet what the other has begun."""
        found = self._wanted(file for file in self._files if not self.is_served(file, now))
        if not found:
            return None
        phase = min(phase for _, _, phase in found)
        found = [each for each in found if each[2] == phase]
        if phase == Phase.BODY:
            found = self._considerate(found, now)
        return min(found, key=lambda each: self._rank(each[0]), default=None)

    def from_peers(self, now: float) -> tuple[Incoming, int, int] | None:
        """In the same order, and one file at a time as long as that takes no more than a few seconds: at the same cost
        in bytes it is whole sooner, and can be handed on."""
        served = [file for file in self._files if self.is_served(file, now)]
        found = self._wanted(file for file in served if now >= file.peers_busy_until)
        if active := [file for file in served if file.num_streams and now - file.streams_since < _ALONE_S]:
            found = [each for each in found if each[0] in active or each[2] != Phase.BODY]
        return min(found, key=lambda each: (each[2], *self._rank(each[0])), default=None)

    def is_served(self, file: Incoming, now: float) -> bool:
        """Whether peers can be read from what is missing next: they have it whole, or that part of it where each chunk
        can be checked."""
        if now < file.peers_failed_until:
            return False
        if file.offer.num_whole or not file.entry.chunk_sha256 or file.partial is None:
            return file.offer.num_whole > 0
        position = file.partial.next_missing
        return position is not None and file.offer.covers(position)

    def needs_origin(self, now: float) -> bool:
        """Whether something is missing that no peer has."""
        return any(file.has_missing and not self.is_served(file, now) for file in self._files)

    def _wanted(self, files: Iterable[Incoming]) -> list[tuple[Incoming, int, int]]:
        found = []
        for file in files:
            if (wanted := file.wanted(self._headers_first)) is not None:
                phase, most_bytes = wanted
                found.append((file, most_bytes, phase))
        return found

    def _considerate(self, found: list[tuple[Incoming, int, int]], now: float) -> list[tuple[Incoming, int, int]]:
        active = [file for file in self._files if file.num_streams and not self.is_served(file, now)]
        if len(active) >= self._at_once:
            return [each for each in found if each[0] in active]
        ours = [each for each in found if each[0].was_begun or not each[0].offer.num_partial]
        if ours or active:
            self._idle_since = None
            return ours
        # Somebody is fetching all that is left. He may be dead, or no holder any more: not for ever.
        if self._idle_since is None:
            self._idle_since = now
        return found if now - self._idle_since >= self._last_resort_s else []

    def _rank(self, file: Incoming) -> tuple[bool, int, int, float]:
        offer = file.offer
        return not file.was_begun, offer.num_whole + offer.num_partial, offer.num_whole, self._lots[id(file)]
