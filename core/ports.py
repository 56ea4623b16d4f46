"""The seams a plugin fills. Above them everything exists once; below them everything is a plugin.

All three speak token ids or tensors, never text. `Progress` is yielded while loading; `WeightSet` is how weights are
reached. A plugin imports these from `tickertape.plugins`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from tickertape.core.batch import Array, Batch, Masks, StepOutput
from tickertape.core.memory import Limits, MemoryPlan
from tickertape.core.request import Request, TokenDelta

__all__ = [
    "Answer",
    "Engine",
    "EngineStats",
    "Item",
    "ModelRunner",
    "Predictor",
    "Progress",
    "Signature",
    "TensorSpec",
    "WeightSet",
]


class Progress(Struct, frozen=True):
    """A step of a long job: `stage` is a word (download, convert, load, warm), counts are bytes unless `unit` says.
    `source` says where bytes come from (origin, peer), `detail` whatever else a person wants to know. `eta_s` is how
    long the stage still takes where that is known beforehand; else the rate tells. Of a fetch: whether it may read from
    the origin, and how many peers have or are getting any one of the files that are missing here, at most."""

    stage: str
    done: int
    total: int
    unit: str = "bytes"
    source: str = ""
    detail: str = ""
    eta_s: float | None = None
    has_slot: bool | None = None
    num_peers: int | None = None


class WeightSet(Protocol):
    """The tensors of one model, verified and mapped read-only. Arrays stay valid while the set is open; nobody
    writes to them. Thread-safe."""

    def names(self) -> Sequence[str]: ...
    def shape(self, name: str) -> tuple[int, ...]: ...
    def dtype(self, name: str) -> str:
        """As safetensors spells it: F32, F16, BF16, ..."""
        ...

    def open(self, name: str) -> Array:
        """A read-only numpy view on the mapping; BF16 comes as uint16. Waits until the tensor is verified.
        Raises KeyError when there is no such tensor."""
        ...

    def close(self) -> None: ...


class ModelRunner(Protocol):
    """The host schedules, the plugin computes and samples.

    One thread calls everything, in this order: plan, load, allocate, then any number of forward + sample pairs, then
    close (which may be called twice, and at any time). forward and sample always alternate. With the capability
    `ahead`, a batch may have been made before the output of the step before it was known: LAST stands in its rows, and
    a row may belong to a sequence that has ended meanwhile.
    """

    def plan(self, limits: Limits) -> MemoryPlan:
        """What this model will take. Allocates nothing, reads no weights."""
        ...

    def load(self, weights: WeightSet) -> Iterator[Progress]:
        """Brings the weights up, yielding progress; done when the iterator ends."""
        ...

    def allocate(self, num_blocks: Sequence[int]) -> None:
        """Takes the KV memory: per cache group, blocks 0..num_blocks - 1. Block 0 is the null block."""
        ...

    def forward(self, batch: Batch) -> None:
        """Computes a step; may return before the device is done, but not before it has read the batch. Raises
        RunnerError to fail all rows; anything else ends the worker."""
        ...

    def sample(self, masks: Masks | None) -> StepOutput:
        """The ids of the step last handed to forward. `masks` apply to the wanted logits, in row order."""
        ...

    def close(self) -> None: ...


class EngineStats(Struct, frozen=True, kw_only=True):
    """A snapshot. Block counts sum over the cache groups; free + cached + used = total (the null blocks aside)."""

    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    num_cached_blocks: int = 0  # held by nobody, kept for prefix hits, evictable
    num_used_blocks: int = 0
    kv_capacity_tokens: int = 0  # the longest sequence the pool can hold alone; 0: unknown
    max_model_len: int = 0
    num_steps: int = 0
    num_preemptions: int = 0
    num_prompt_tokens: int = 0  # computed or found in the cache, since the start
    num_cached_tokens: int = 0  # of those, found in the cache
    num_generated_tokens: int = 0
    step_p99_s: float = 0.0


@runtime_checkable
class Engine(Protocol):
    """Whatever turns requests into tokens: our own paged engine over a ModelRunner, or a plugin that brings its own
    scheduler. All methods are called on one asyncio loop."""

    def plan(self) -> MemoryPlan: ...
    async def start(self) -> None: ...

    def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        """Streams the tokens of one request. `aclose()` cancels it, whether it is queued, prefilling or decoding.
        Exactly one last delta has `finish`; a request that fails raises from the error tree instead."""
        ...

    def stats(self) -> EngineStats: ...

    async def health(self) -> None:
        """Raises EngineDead or Unavailable when no request can be served."""
        ...

    async def stop(self, grace_s: float) -> None:
        """Refuses new requests, lets running ones finish for `grace_s`, then ends the rest with Unavailable."""
        ...


class TensorSpec(Struct, frozen=True):
    """`datatype` in Open Inference Protocol spelling; a dimension of -1 is free."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False


class Signature(Struct, frozen=True):
    """`max_batch` 0: the model does not batch, shapes are whole; else the first dimension is the batch,
    not listed."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch: int = 0


class Item(Struct, frozen=True):
    """One client's share of a predict call."""

    tensors: Mapping[str, Array]
    parameters: Mapping[str, Any]


class Answer(Struct, frozen=True):
    """An answer to `items[item]`: tensors, or a one-line error. Several answers per item are allowed; the last one
    says `final`."""

    item: int
    tensors: Mapping[str, Array]
    error: str | None = None
    final: bool = True


class Predictor(Protocol):
    """An ordinary tensor model: embeddings, classifiers, rerankers. One thread calls everything."""

    def signature(self) -> Signature: ...
    def plan(self, limits: Limits) -> MemoryPlan: ...
    def load(self, weights: WeightSet) -> Iterator[Progress]: ...
    def cost(self, item: Item) -> int:
        """What this item adds to a batch: items, tokens or padded tokens."""
        ...

    def predict(self, items: Sequence[Item]) -> Iterable[Answer]: ...
    def close(self) -> None: ...
