"""One fetch: the files of a manifest, from peers and the origin, verified, into the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tickertape.core.errors import StartupError
from tickertape.core.ports import Progress
from tickertape.core.sources import Manifest, Origin
from tickertape.weights.fetch.choice import Choice
from tickertape.weights.fetch.crew import Crew
from tickertape.weights.fetch.fetching import Fetching
from tickertape.weights.fetch.gate import OriginGate
from tickertape.weights.fetch.hashing import Hashing
from tickertape.weights.fetch.incoming import incoming_files
from tickertape.weights.fetch.patience import Patience
from tickertape.weights.fetch.ports import NoPeers, SlotLost
from tickertape.weights.fetch.state import FetchState
from tickertape.weights.fetch.streams import Streams
from tickertape.weights.fetch.waiting import ROOM_EVERY_S
from tickertape.weights.files import unwritable
from tickertape.weights.store import Store

__all__ = ["Arriving", "Fetch"]

_LOOK_EVERY_S: Final = 1.0
_ASK_EVERY_S: Final = 0.25
_TICK_S: Final = 0.5

Arriving = Callable[[Mapping[str, Path]], None]
"""Hears, once, where each file of the model lies or comes to lie: by now the small ones are whole and verified, and
the weight files have their full size and what their header says."""


class Fetch:
    """`run` brings one manifest's files into the store. Its order: what the store has; then peers; then the origin,
    under a slot; else it waits and asks the peers again. Small files come first, then (with `arriving`) the headers of
    weight files, then the rest.

    A slot is held until nothing is left that only the origin has. It is checked before each request and after each
    buffer; when it is lost, the connections are closed before another byte is written.
    """

    def __init__(
        self,
        manifest: Manifest,
        open_origin: Callable[[], Origin],
        store: Store,
        fetching: Fetching,
        report: Callable[[Progress], None],
        arriving: Arriving | None = None,
    ) -> None:
        self._with = fetching
        self._report = report
        self._arriving = arriving
        self._files = incoming_files(store, manifest)
        self._state = state = FetchState(self._files)
        clock, rng = fetching.clock, fetching.rng
        self._is_alone = alone = isinstance(fetching.peers, NoPeers)
        self._choice = Choice(self._files, rng, headers_first=arriving is not None, alone=alone)
        self._gate = OriginGate(fetching.slots, fetching.options.origin_connections, clock, rng)
        self._crew = Crew(state.lock, state.fail)
        self._streams = Streams(state, self._choice, self._gate, fetching, self._crew, open_origin)
        self._hashing = Hashing(state, fetching, self._crew)
        self._patience = Patience(fetching.options.fetch_patience_s, clock)
        self._look_at = self._ask_at = self._slot_at = float("-inf")
        self._slot_since: float | None = None  # since when the wait for one is not counted yet
        self._seen_bytes = 0

    def run(self) -> dict[str, str]:
        """Path -> sha256 of every file, all of them objects that are held. Blocks; calls `report` at least every second
        or so, from this thread, and leaves no thread behind. What has come by the time it raises is kept.

        Raises OriginChanged: plan anew. StartupError with the reason when the origin refuses, when the files are wrong
        again and again, when nothing has come for `fetch_patience_s`, or when the store cannot be written to. What
        `report` and `arriving` raise ends it.
        """
        try:
            with self._with.underway.showing(self._files, self._with.clock):
                self._hashing.start()
                self._streams.start()
                while not self._state.is_done:
                    self._step()
        finally:
            self._crew.stop()
            self._streams.hang_up()
            self._crew.join()
            self._gate.lose()
            for file in self._files:
                file.close()
        return {path: file.sha256 for file in self._files for path in file.paths if file.sha256 is not None}

    def _step(self) -> None:
        now = self._with.clock.now()
        if self._state.fatal is not None:
            raise self._state.fatal
        if now >= self._look_at:
            self._look_at = now + (_LOOK_EVERY_S if self._state.has_room else ROOM_EVERY_S)
            self._take_files()
        has_asked = now >= self._ask_at
        if has_asked:
            self._ask_at = now + _ASK_EVERY_S
            self._ask_peers()
        self._mind_slot(now, may_acquire=has_asked or self._is_alone)
        self._tell_arriving()
        with self._state.lock:
            stage = self._stage()
            gained, self._seen_bytes = self._state.gained_bytes > self._seen_bytes, self._state.gained_bytes
            if stage.stage == "slot" and self._with.slots.trouble is not None:
                self._state.trouble = StartupError(self._with.slots.trouble, code="NoSlots")
            else:
                gained |= stage.stage in ("slot", "wait") or (stage.stage == "verify" and not self._state.was_full)
            self._patience.tick(gained=gained)
            self._patience.check(self._state.trouble)
        self._report(stage)
        with self._state.lock:
            self._crew.call("digest", "origin", "peer", "sync")
            if self._state.fatal is None and not self._state.is_done:
                self._with.clock.wait(self._state.changed, self._nap_s(), idle=not self._is_active())

    def _take_files(self) -> None:
        """Opens what is not open, once there is room for all of it."""
        waiting = [file for file in self._files if not file.is_done and file.partial is None]
        if not waiting and self._state.has_room:
            return
        for file in waiting:
            if file.look():
                self._with.ledger.count("num_cache_hits")
        try:
            self._with.make_room(sum(file.unallocated_bytes for file in self._files))
            for file in waiting:
                if not file.is_done:
                    with self._state.lock:
                        file.take()
            has_room = True
        except StartupError as error:
            if error.code != "NoSpace":
                raise
            self._state.trouble, has_room = error, False
        except OSError as error:
            self._state.trouble, has_room = unwritable(error, "fetching the model"), False
            if self._state.trouble.code != "NoSpace":
                raise self._state.trouble from error
        with self._state.lock:
            self._state.has_room = has_room

    def _ask_peers(self) -> None:
        wanted = [file.entry for file in self._files if not file.is_done and file.entry.sha256 is not None]
        offers = self._with.peers.offers(wanted)
        with self._state.lock:
            for file in self._files:
                offer = offers.get(file.entry.sha256 or "", file.no_offer)
                if offer.num_whole > file.offer.num_whole:
                    file.peers_busy_until = 0.0  # whoever has it now may not be
                file.offer = offer

    def _mind_slot(self, now: float, *, may_acquire: bool) -> None:
        """A slot is asked for only right after the peers were: whoever gave it back may have what we miss."""
        gate, slots = self._gate, self._with.slots
        with self._state.lock:
            needed = self._choice.needs_origin(now) and self._state.has_room
            slot, is_free = gate.slot, gate.num_active == 0
        if slot is not None:
            self._slot_since = None
            try:
                slot.check()
            except SlotLost:
                self._streams.lose(slot)
            if not needed and is_free:
                with self._state.lock:
                    gate.lose()
            return
        if not needed:
            self._slot_since = None
            return
        if self._slot_since is not None and gate.cooling_s <= 0:
            self._with.ledger.waited(now - self._slot_since)
        self._slot_since = now
        if now < self._slot_at or gate.cooling_s > 0 or not may_acquire:
            return
        if (pause_s := slots.cooldown_s()) > 0:
            with self._state.lock:
                gate.pause(pause_s)
            return
        got = slots.acquire()
        self._slot_at = now + slots.retry_s * (1 + 0.1 * self._with.rng())
        if got is not None:
            with self._state.lock:
                gate.slot = got

    def _tell_arriving(self) -> None:
        if self._arriving is None:
            return
        with self._state.lock:
            if not all(file.lies_ready for file in self._files):
                return
            places = {path: file.place for file in self._files for path in file.paths}
        arriving, self._arriving = self._arriving, None
        arriving(places)

    def _is_active(self) -> bool:
        return bool(self._gate.num_active or self._state.num_from_peers or self._hashing.is_busy())

    def _nap_s(self) -> float:
        """Until there is something to do that nobody tells us of."""
        now = self._with.clock.now()
        waits = [self._gate.closed_s, self._ask_at - now]
        waits += [file.peers_busy_until - now for file in self._files if not file.is_done]
        if self._slot_since is not None:
            waits.append(self._slot_at - now)
        return min([_TICK_S, *(wait_s for wait_s in waits if wait_s > 0)])

    def _stage(self) -> Progress:
        done, total = sum(file.held_bytes for file in self._files), sum(file.size_bytes for file in self._files)
        stage, source, detail = self._word()
        offers = [file.offer for file in self._files if not file.is_done]
        return Progress(
            stage,
            done,
            total,
            source=source,
            detail=detail,
            eta_s=self._gate.cooling_s if stage == "cooldown" else None,
            has_slot=self._gate.slot is not None,
            num_peers=max((offer.num_whole + offer.num_partial for offer in offers), default=0),
        )

    def _word(self) -> tuple[str, str, str]:
        gate, trouble = self._gate, self._state.trouble
        if not self._state.has_room:
            return "space", "", trouble.message if trouble else ""
        if gate.num_active:
            return "download", "origin", ""
        if self._state.num_from_peers:
            return "peer", "peer", ""
        missing = [file for file in self._files if not file.is_done]
        if self._hashing.is_busy() or not missing:
            return "verify", "", ""
        if all(file.partial is None for file in missing):
            return "wait", "", "another process of this node is fetching"
        if not self._choice.needs_origin(self._with.clock.now()):
            return "peer", "peer", trouble.message if trouble else ""
        if gate.cooling_s > 0:
            return "cooldown", "origin", f"the origin asks for {gate.cooling_s:.0f} s of patience"
        if gate.slot is None:
            return "slot", "origin", self._with.slots.trouble or ""
        return "download", "origin", trouble.message if trouble else ""
