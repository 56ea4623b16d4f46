"""What a URI means now, or meant last when its origin does not say."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from tickertape.core.errors import OriginBusy, OriginError, StartupError
from tickertape.core.ports import Progress
from tickertape.core.sources import Manifest, RangedSource
from tickertape.weights.fetch.backoff import Backoff, after
from tickertape.weights.fetch.fetching import Fetching
from tickertape.weights.fetch.waiting import answer_within, wait_until
from tickertape.weights.refs import Refs
from tickertape.weights.store import Recipe, Snapshot, Store
from tickertape.weights.uris import public

__all__ = ["Resolving", "fetched_by"]

_PLAN: Final = Progress("plan", 0, 0, source="origin")
_MOST_TRIES: Final = 6
_ANSWER_S: Final = 120.0
_SLOT_PATIENCE_S: Final = 5.0
"""For a slot to ask under: a moment's work, unless its holder is fetching for a long time."""

_log = logging.getLogger(__name__)


def fetched_by(manifest: Manifest) -> Recipe:
    """The recipe of the files of a manifest as they come. It is kept on the disk, and holds no secret."""
    inputs = {"uri": public(manifest.uri), "revision": manifest.revision}
    if inputs["uri"] != manifest.uri:
        inputs["uri_sha256"] = hashlib.sha256(manifest.uri.encode()).hexdigest()
    return Recipe("fetch", inputs)


class Resolving:
    """Finds the manifest of one URI of a `RangedSource`.

    Nobody is asked when the store has what the URI pins. Else the origin is; when it fails, for whatever reason, and
    the store has all of what the URI meant before, that is taken, with a warning in the log. With nothing to fall back
    on, passing faults are tried again: a 429 for as long as the patience lasts and never before its Retry-After, others
    a few times.
    """

    def __init__(
        self, uri: str, source: RangedSource, store: Store, fetching: Fetching, report: Callable[[Progress], None]
    ) -> None:
        self._uri = uri
        self._source = source
        self._store = store
        self._with = fetching
        self._report = report
        self._refs = Refs(store.root)
        self._patience_s = fetching.options.fetch_patience_s

    def known(self) -> tuple[Manifest, Snapshot] | None:
        """What the URI meant last, if the store has all of it."""
        manifest = self._refs.resolved(self._uri)
        if manifest is None or (snapshot := self._store.find(fetched_by(manifest))) is None:
            return None
        return manifest, snapshot

    def manifest(self) -> Manifest:
        """Raises StartupError in one line. May take as long as the patience of the fetch."""
        known = self.known()
        if known is not None and self._source.pinned(self._uri):
            return known[0]
        self._source.prepare()
        if known is None:
            return self._ask_until_answered()
        if (cooling_s := self._with.slots.cooldown_s()) > 0:
            _log.warning(
                "%s: the origin must not be asked for %.0f s; going on with what is here", public(self._uri), cooling_s
            )
            return known[0]
        try:
            manifest = self._answer()
        except StartupError as error:
            self._note(error)
            _log.warning("%s; going on with what is here of %s", error.message, public(self._uri))
            return known[0]
        if fetched_by(manifest) != fetched_by(known[0]):
            self._store.holds.drop_used(known[1].path.name)  # it may have to make room for what comes now
        return manifest

    def note(self, manifest: Manifest) -> None:
        """All of it has come."""
        self._refs.note_resolved(manifest)

    def _ask_until_answered(self) -> Manifest:
        clock, rng = self._with.clock, self._with.rng
        backoff, deadline, num_tries = Backoff(rng, shortest_s=0.5), clock.now() + self._patience_s, 0
        while True:
            try:
                return self._ask(deadline)
            except OriginError as error:
                num_tries += 1
                if isinstance(error, OriginBusy) and error.retry_after_s is not None:
                    wait_s = after(error.retry_after_s, rng)
                else:
                    wait_s = backoff.next_s()
                is_busy = isinstance(error, OriginBusy)
                if clock.now() + wait_s > deadline or (num_tries >= _MOST_TRIES and not is_busy):
                    raise
                self._wait(wait_s, "cooldown" if is_busy else "plan", error.message)

    def _ask(self, deadline: float) -> Manifest:
        """Under a slot if one is to be had soon; always, if the origin said 429 lately: of many that start at once not
        all are to be told so."""
        clock, slots = self._with.clock, self._with.slots
        slot, give_up = None, self._give_up_at()
        while True:
            if (cooling_s := slots.cooldown_s()) > 0:
                if clock.now() + cooling_s > deadline:
                    raise OriginBusy("the origin asks for more patience than there is", retry_after_s=cooling_s)
                self._wait(cooling_s, "cooldown", "")
                give_up = self._give_up_at()
            elif (slot := slots.acquire()) is not None or clock.now() >= (deadline if slots.is_throttled else give_up):
                break
            else:
                asked_at = clock.now()
                self._wait(slots.retry_s * (1 + self._with.rng()), "slot", slots.trouble or "")
                self._with.ledger.waited(clock.now() - asked_at)
        self._report(_PLAN)
        try:
            return self._answer()
        except OriginError as error:
            self._note(error)
            raise
        finally:
            if slot is not None:
                slot.release()

    def _answer(self) -> Manifest:
        """A host may send a byte now and then for ever, and is heard out only so long."""
        self._with.ledger.count("num_origin_requests")
        ask, tell = partial(self._source.resolve, self._uri), partial(self._report, _PLAN)
        return answer_within(_ANSWER_S, ask, self._with.clock, tell, public(self._uri))

    def _give_up_at(self) -> float:
        """Spread, since many may wait for the same slot."""
        return self._with.clock.now() + _SLOT_PATIENCE_S * (1 + self._with.rng())

    def _note(self, error: StartupError) -> None:
        if isinstance(error, OriginBusy):
            self._with.ledger.count("num_origin_429")
            self._with.slots.throttled(error.retry_after_s)

    def _wait(self, seconds: float, stage: str, detail: str) -> None:
        clock = self._with.clock
        end = clock.now() + seconds

        def tell() -> None:
            eta_s = max(0.0, end - clock.now()) if stage == "cooldown" else None
            self._report(Progress(stage, 0, 0, source="origin", detail=detail, eta_s=eta_s))

        wait_until(end, clock, tell)
