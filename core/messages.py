"""What the front and a worker say to each other. The transport (frames, sockets) is the front door's.

A worker tags what it sends with its `epoch`, so that a dead worker's late answers are dropped.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from tickertape.core.backend import BackendOptions, ModelSpec
from tickertape.core.errors import TickertapeError, from_wire
from tickertape.core.memory import Limits, MemoryPlan
from tickertape.core.ports import EngineStats, Progress
from tickertape.core.request import Request, TokenDelta

__all__ = [
    "Abort",
    "Configure",
    "Emit",
    "Failure",
    "Fetch",
    "FetchOptions",
    "FromFetcher",
    "FromWorker",
    "Loading",
    "Ready",
    "Resolved",
    "Stop",
    "StoppedEarly",
    "Submit",
    "ToFetcher",
    "ToWorker",
    "WarmupCounts",
]


class Failure(Struct, frozen=True):
    """An error of the tree as plain data."""

    name: str
    message: str
    code: str
    param: str | None = None

    @classmethod
    def of(cls, error: TickertapeError) -> Failure:
        return cls(type(error).__name__, error.message, error.code, error.param)

    def error(self) -> TickertapeError:
        return from_wire(self.name, self.message, self.code, self.param)


class Configure(Struct, frozen=True, tag="configure", kw_only=True):
    """The first message to a worker: everything it needs. `plugins` are the settings of the plugin manager, `store` is
    the directory of the node's store ("": none). When not `complete`, the weights lie in a staging directory and are
    still being fetched."""

    epoch: int
    spec: ModelSpec
    complete: bool = True
    store: str = ""
    backend: str
    options: BackendOptions
    limits: Limits
    policy: str = "arrival"
    num_blocks: int | None = None  # per group, as the operator asked; None: by kv_cache_bytes
    kv_cache_bytes: int | None = None
    memory_share: float = 0.5  # of the free memory, for the KV cache when neither of the two above is given
    plugins: dict[str, Any]
    log_level: str = "info"


class Submit(Struct, frozen=True, tag="submit"):
    request: Request


class Abort(Struct, frozen=True, tag="abort"):
    """Cancels; an unknown or finished id is no error."""

    ids: tuple[int, ...]


class Stop(Struct, frozen=True, tag="stop"):
    """The worker exits after the step it is in."""


ToWorker = Configure | Submit | Abort | Stop


class Loading(Struct, frozen=True, tag="loading"):
    epoch: int
    progress: Progress


class Ready(Struct, frozen=True, tag="ready"):
    """The model is loaded and warm; `num_blocks` per cache group."""

    epoch: int
    plan: MemoryPlan
    num_blocks: tuple[int, ...]
    stats: EngineStats


class Emit(Struct, frozen=True, tag="emit"):
    """Once per step: what it added, which requests failed, and how the engine stands."""

    epoch: int
    deltas: list[tuple[int, TokenDelta]]
    failures: list[tuple[int, Failure]]
    stats: EngineStats


class StoppedEarly(Struct, frozen=True, tag="stopped"):
    """The worker's or the fetcher's last word before a non-zero exit."""

    epoch: int
    failure: Failure


FromWorker = Loading | Ready | Emit | StoppedEarly


class FetchOptions(Struct, frozen=True, kw_only=True):
    """How weights are fetched and kept. See the settings of the same names."""

    origin_connections: int = 8
    max_origin_mbps: float | None = None
    fetch_patience_s: float = 600.0
    origin_slots: str | None = None
    num_origin_slots: int = 2
    peers: tuple[str, ...] = ()
    peer_host: str = "127.0.0.1"
    peer_port: int | None = None
    peer_token: str | None = None
    peer_uploads: int = 4
    peer_upload_mbps: float | None = None
    store_high_bytes: int | None = None
    store_low_bytes: int | None = None
    store_reserve_bytes: int = 1 << 30


class Fetch(Struct, frozen=True, tag="fetch", kw_only=True):
    """The first message to the fetcher: (name to serve under, path or URI) of each model, in order; None: the model's
    own name, the default model. `compute` says which type of weights is wanted, "auto" the one they have, and what is
    made of linear layers; of which `backend` (None: whichever fits), so that what it refuses is not made or fetched.
    `plugins` are the settings of the plugin manager."""

    models: tuple[tuple[str | None, str | None], ...]
    store: str
    backend: str | None = None
    compute: BackendOptions = BackendOptions()
    trust_remote_code: bool = False
    options: FetchOptions = FetchOptions()
    plugins: dict[str, Any]
    log_level: str = "info"


ToFetcher = Fetch | Stop


class Resolved(Struct, frozen=True, tag="resolved"):
    """One per model, in the order asked: it lies at `spec.path`, verified. When not `complete`, what is there is enough
    to begin with (configuration, tokenizer, the headers of the weights); tensors come later, and another Resolved says
    when all have and where they lie then."""

    spec: ModelSpec
    complete: bool = True


class WarmupCounts(Struct, frozen=True, tag="warmup", kw_only=True):
    """What the fetcher has done since it started. `num_bytes` is by source: origin, peer, derived (made here)."""

    num_bytes: dict[str, int] = {}
    num_hashed_bytes: int = 0
    num_origin_requests: int = 0
    num_origin_429: int = 0
    num_cache_hits: int = 0
    num_peer_uploads: int = 0
    num_uploaded_bytes: int = 0
    slot_wait_s: float = 0.0


FromFetcher = Loading | Resolved | WarmupCounts | StoppedEarly
