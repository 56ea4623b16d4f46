"""The port: plans, loads, allocates, and computes one step at a time."""

from collections.abc import Iterator, Sequence

import numpy as np

from tickertape.plugins import (
    Array,
    BackendOptions,
    Batch,
    CacheGroup,
    Limits,
    Masks,
    MemoryPlan,
    ModelSpec,
    Progress,
    Sampler,
    StartupError,
    StepOutput,
    WeightSet,
)
from tickertape.plugins.backends.reference.attention import GATHER_TOKENS, SPAN_TOKENS, places_of, views_of
from tickertape.plugins.backends.reference.llama import Llama, Shape, linear, rope_table


def make(spec: ModelSpec, options: BackendOptions) -> "ReferenceRunner":
    """Raises StartupError for an option it cannot follow. The number of threads is BLAS's own affair."""
    dtype = options.dtype if options.dtype != "auto" else "float64" if spec.dtype == "float64" else "float32"
    if dtype not in ("float32", "float64") or options.device != "cpu" or options.quantization != "none":
        raise StartupError("reference computes in float32 or float64, on cpu, unquantized", code="BadOption")
    return ReferenceRunner(spec, np.dtype(dtype))


class ReferenceRunner:
    """Computes in `forward` and samples in `sample`; nothing is in flight between them."""

    def __init__(self, spec: ModelSpec, dtype: np.dtype) -> None:
        self._spec, self._dtype, self._shape = spec, dtype, Shape(spec)
        self._windows = tuple(dict.fromkeys(self._shape.windows))  # one cache group per window
        self._group_of = [self._windows.index(window) for window in self._shape.windows]  # by layer

    def plan(self, limits: Limits) -> MemoryPlan:
        shape, item = self._shape, self._dtype.itemsize
        token_bytes = 2 * shape.num_kv_heads * shape.head_dim * item
        self._limits = limits
        self._groups = tuple(
            CacheGroup(
                kind="full" if window is None else "sliding",
                window=window,
                block_tokens=limits.block_tokens,
                block_bytes=self._group_of.count(group) * limits.block_tokens * token_bytes,
            )
            for group, window in enumerate(self._windows)
        )
        stored = np.dtype("float16" if self._spec.dtype == "bfloat16" else self._spec.dtype)
        copies = 0 if stored == self._dtype else self._spec.weight_bytes * item // stored.itemsize
        states = 8 * shape.hidden + 3 * shape.inner + shape.vocab_size  # per token; a scored prompt wants all logits
        gathered = token_bytes + 3 * SPAN_TOKENS * shape.num_heads * item  # per key: it and its scores
        num_gathered = max(GATHER_TOKENS, limits.max_model_len)
        return MemoryPlan(
            weight_bytes=self._spec.weight_bytes,
            private_bytes=copies + limits.max_model_len * shape.head_dim * item,
            workspace_bytes=limits.max_batch_tokens * states * item + num_gathered * gathered,
            groups=self._groups,
        )

    def load(self, weights: WeightSet) -> Iterator[Progress]:
        shape = self._shape

        def read(name: str, expected: tuple[int, ...]) -> Array:
            return read_tensor(weights, f"{name}.weight", expected, self._dtype)

        layers: list[dict[str, Array]] = []
        for i in range(shape.num_layers):
            layers.append({name: read(f"model.layers.{i}.{name}", size) for name, size in shape.tensors().items()})
            yield Progress("load", i + 1, shape.num_layers + 1, "layers")
        embedding = read("model.embed_tokens", (shape.vocab_size, shape.hidden))
        head = embedding if shape.tied else read("lm_head", embedding.shape)
        norm = read("model.norm", (shape.hidden,))
        self._model = Llama(shape, embedding, layers, norm, head)
        yield Progress("load", shape.num_layers + 1, shape.num_layers + 1, "layers")

    def allocate(self, num_blocks: Sequence[int]) -> None:
        shape, size = self._shape, self._limits.block_tokens
        self._caches = [
            np.empty((num_blocks[group] * size, 2, shape.num_kv_heads, shape.head_dim), self._dtype)
            for group in self._group_of
        ]
        self._turns = rope_table(shape, self._limits.max_model_len, self._dtype)
        self._sampler = Sampler(np, self._limits.max_num_seqs, shape.vocab_size)

    def forward(self, batch: Batch) -> None:
        for slot in batch.closed:
            self._sampler.close(slot)
        for opened in batch.opened:
            self._sampler.open(opened)
        rows, groups = batch.rows, zip(batch.tables, self._groups, strict=True)
        counts = [len(row.tokens) for row in rows]
        slots = np.repeat([row.slot for row in rows], counts)
        positions = np.concatenate([row.start + np.arange(len(row.tokens)) for row in rows])
        pages = [
            (places_of(slots, positions, table, group), list(views_of(rows, table, group, self._dtype)))
            for table, group in groups
        ]
        states = self._model.hidden(
            ids=np.concatenate([row.tokens for row in rows]),
            turns=self._turns[:, positions],
            memory=[(cache, *pages[group]) for cache, group in zip(self._caches, self._group_of, strict=True)],
        )
        ends = zip(rows, np.cumsum(counts), strict=True)
        wanted = np.concatenate([np.arange(end - row.num_logits, end) for row, end in ends])
        self._rows, self._logits = rows, linear(states[wanted], self._model.head)

    def sample(self, masks: Masks | None) -> StepOutput:
        return self._sampler.sample(self._rows, self._logits, masks)

    def close(self) -> None:
        self._caches = []


def read_tensor(weights: WeightSet, name: str, expected: tuple[int, ...], dtype: np.dtype) -> Array:
    """A view on the mapped tensor, or a copy where the file holds another dtype. Raises StartupError."""
    try:
        stored, tensor = weights.dtype(name), weights.open(name)
    except KeyError:
        raise StartupError(f"the model has no tensor {name}", code="MissingTensor") from None
    if tensor.shape != expected or stored not in ("F64", "F32", "F16", "BF16"):
        raise StartupError(f"{name} is {stored} {tensor.shape}, config.json says {expected}", code="BadTensor")
    if stored == "BF16":
        tensor = (tensor.astype(np.uint32) << 16).view(np.float32)
    return tensor.astype(dtype, copy=False)
