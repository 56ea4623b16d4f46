"""The streams of bytes of a fetch: ranges of files, from the origin and from peers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Final

from tickertape.core.errors import OriginBusy, OriginError, StartupError
from tickertape.core.sources import Origin
from tickertape.weights.fetch.backoff import Backoff
from tickertape.weights.fetch.choice import Choice
from tickertape.weights.fetch.crew import Crew, Task
from tickertape.weights.fetch.fetching import Fetching
from tickertape.weights.fetch.gate import OriginGate
from tickertape.weights.fetch.incoming import Incoming, Phase
from tickertape.weights.fetch.ports import NoPeers, PeerFault, Slot, SlotLost
from tickertape.weights.fetch.state import FetchState
from tickertape.weights.partial import UNIT_BYTES, Claim
from tickertape.weights.rate import TokenBucket

__all__ = ["Streams"]

_PEER_STREAMS: Final = 4


class Streams:
    """Runs as many as the gate allows, in the threads of `crew`. `open_origin` asks nobody."""

    def __init__(
        self,
        state: FetchState,
        choice: Choice,
        gate: OriginGate,
        fetching: Fetching,
        crew: Crew,
        open_origin: Callable[[], Origin],
    ) -> None:
        self._state = state
        self._choice = choice
        self._gate = gate
        self._with = fetching
        self._crew = crew
        self._open_origin = open_origin
        self._origin: Origin | None = None
        self._bucket = TokenBucket(fetching.options.max_origin_mbps, fetching.clock.now)
        self._peer_backoff = Backoff(fetching.rng, shortest_s=2.0)

    def start(self) -> None:
        self._crew.hire("origin", self._with.options.origin_connections, self._choose_origin)
        if not isinstance(self._with.peers, NoPeers):
            self._crew.hire("peer", _PEER_STREAMS, self._choose_peer)

    def hang_up(self) -> None:
        """Closes the connections to the origin; the next request makes new ones."""
        with self._state.lock:
            origin, self._origin = self._origin, None
        if origin is not None:
            origin.close()

    def lose(self, slot: Slot) -> None:
        """It is not certain any more that the slot is ours."""
        with self._state.lock:
            ours = self._gate.slot is slot
            if ours:
                self._gate.lose()
        if ours:
            self.hang_up()

    def _choose_origin(self) -> Task | None:
        slot = self._gate.slot
        if slot is None or not self._gate.is_open or not self._state.goes_on:
            return None
        found = self._choice.from_origin(self._with.clock.now())
        if (begun := self._begin(found)) is None:
            return None
        self._gate.num_active += 1
        return functools.partial(self._from_origin, *begun, slot)

    def _choose_peer(self) -> Task | None:
        if not self._state.goes_on:
            return None
        found = self._choice.from_peers(self._with.clock.now())
        if (begun := self._begin(found)) is None:
            return None
        self._state.num_from_peers += 1
        begun[0].from_peers = True
        return functools.partial(self._from_peer, *begun)

    def _begin(self, found: tuple[Incoming, int, int] | None) -> tuple[Incoming, Claim, bool] | None:
        if found is None:
            return None
        file, most_bytes, phase = found
        assert file.partial is not None
        if (claim := file.partial.claim(most_bytes)) is None:
            return None
        is_body = phase == Phase.BODY
        if is_body:
            if not file.num_streams:
                file.streams_since = self._with.clock.now()
            file.num_streams += 1
            file.was_begun = True
        return file, claim, is_body

    def _from_origin(self, file: Incoming, claim: Claim, is_body: bool, slot: Slot) -> None:
        slots, ledger = self._with.slots, self._with.ledger
        try:
            with claim:
                if (pause_s := slots.cooldown_s()) > 0:
                    with self._state.lock:
                        self._gate.pause(pause_s)
                    return
                slot.check()
                ledger.count("num_origin_requests")
                pieces = self._opened().read(file.entry, claim.start, claim.end)
                self._pour(pieces, file, claim, "origin", slot)
        except SlotLost:
            self.lose(slot)
        except OriginBusy as error:
            ledger.count("num_origin_429")
            with self._state.lock:  # first, so that nobody of us asks while the cluster is told
                self._gate.busy(error)
                self._state.trouble = error
            slots.throttled(error.retry_after_s)
        except OriginError as error:
            with self._state.lock:
                self._gate.failed()
                self._state.trouble = error
        except StartupError as error:
            self._state.fail(error)
        except OSError as error:
            self._state.unwritten(error, "fetching the model")
        finally:
            with self._state.lock:
                self._gate.num_active -= 1
                self._end(file, is_body)

    def _from_peer(self, file: Incoming, claim: Claim, is_body: bool) -> None:
        try:
            with claim:
                pieces = self._with.peers.read(file.entry, claim.start, claim.end)
                self._pour(pieces, file, claim, "peer", None)
            with self._state.lock:
                self._peer_backoff.reset()
        except OriginError as error:
            with self._state.lock:
                now = self._with.clock.now()
                if isinstance(error, PeerFault) and error.retry_after_s is not None:
                    file.peers_busy_until = now + error.retry_after_s
                else:
                    file.peers_failed_until = now + self._peer_backoff.next_s()
                self._state.trouble = error
        except OSError as error:
            self._state.unwritten(error, "fetching the model")
        finally:
            with self._state.lock:
                self._state.num_from_peers -= 1
                self._end(file, is_body)

    def _pour(
        self, pieces: Generator[memoryview, None, None], file: Incoming, claim: Claim, source: str, slot: Slot | None
    ) -> None:
        """Writes what comes. Raises OriginError when it is not as much as was asked for."""
        is_first = True
        with closing(pieces):
            for piece in pieces:
                if slot is not None:
                    slot.check()
                if self._crew.stopping.is_set():
                    return
                unit = claim.position // UNIT_BYTES
                try:
                    claim.write(piece)
                except ValueError as error:
                    raise OriginError(f"{file.entry.path}: more came than was asked for") from error
                num_bytes = memoryview(piece).nbytes
                self._with.ledger.received(source, num_bytes)
                self._came(num_bytes, source, is_first, unit != claim.position // UNIT_BYTES)
                is_first = False
                if source == "origin":
                    self._rest(self._bucket.take(num_bytes))
        if claim.position < claim.end:
            raise OriginError(f"{file.entry.path}: the transfer ended early")

    def _rest(self, seconds: float) -> None:
        if seconds > 0:
            self._with.clock.sleep_until(self._with.clock.now() + seconds, self._crew.stopping)

    def _came(self, num_bytes: int, source: str, is_first: bool, unit_done: bool) -> None:
        with self._state.lock:
            self._state.gained_bytes += num_bytes
            self._state.was_full = False
            if unit_done:
                self._crew.call("digest")
            if is_first and source == "origin":
                self._gate.answered()
                self._crew.call("origin")

    def _end(self, file: Incoming, is_body: bool) -> None:
        if is_body:
            file.num_streams -= 1
            file.last_active = self._with.clock.now()
        self._crew.call("digest", "origin", "peer", "sync")
        self._state.changed.notify_all()

    def _opened(self) -> Origin:
        with self._state.lock:
            if self._origin is None:
                self._origin = self._open_origin()
            return self._origin
