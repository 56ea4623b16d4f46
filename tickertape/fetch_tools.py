"""Puts together what the fetcher works with, from its options: slots, peers, room. Heavy parts come when wanted."""

from __future__ import annotations

import logging
from contextlib import ExitStack

from tickertape.core.messages import FetchOptions
from tickertape.weights.fetch.fetching import Fetching
from tickertape.weights.fetch.ports import NoPeers, Peers
from tickertape.weights.ledger import Ledger
from tickertape.weights.slots.choose import choose_slots
from tickertape.weights.space import Budget, Room
from tickertape.weights.store import Store

__all__ = ["FetchTools"]

_log = logging.getLogger(__name__)


class FetchTools:
    """`fetching` is for `materialize`. Serves the store to peers from its construction, if there is a port for them. A
    context manager: at its end slots are given back, and no thread or connection is left. Raises StartupError."""

    def __init__(self, options: FetchOptions, store: Store, ledger: Ledger) -> None:
        self._options = options
        self._store = store
        with ExitStack() as stack:
            budget = Budget(
                reserve_bytes=options.store_reserve_bytes,
                high_bytes=options.store_high_bytes,
                low_bytes=options.store_low_bytes,
            )
            self._room = Room(store, budget)
            slots = choose_slots(options, store.root)
            stack.callback(slots.close)
            self.fetching = Fetching(
                slots=slots,
                make_room=self._room.make_room,
                peers=self._peers(stack),
                ledger=ledger,
                options=options,
            )
            self._serve(stack)
            self._stack = stack.pop_all()

    def tend(self) -> None:
        """Now and then: the store is kept under its bound, and what is in use is not taken for old."""
        self._store.holds.touch()
        self._room.tend()

    def __enter__(self) -> FetchTools:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _peers(self, stack: ExitStack) -> Peers:
        if not self._options.peers:
            return NoPeers()
        from tickertape.weights.peers.client import PeerClient
        from tickertape.weights.peers.identity import store_identity

        identity = store_identity(self._store.root)
        peers = PeerClient(self._options.peers, store=identity, token=self._options.peer_token)
        stack.callback(peers.close)
        return peers

    def _serve(self, stack: ExitStack) -> None:
        options = self._options
        if options.peer_port is None:
            return
        from tickertape.weights.peers.server import PeerServer

        server = PeerServer(
            self._store,
            options.peer_host,
            options.peer_port,
            token=options.peer_token,
            max_uploads=options.peer_uploads,
            max_mbps=options.peer_upload_mbps,
            ledger=self.fetching.ledger,
            partials=self.fetching.underway,
        )
        stack.callback(server.close)
        _log.info("weights are served to peers on port %d", server.port)
