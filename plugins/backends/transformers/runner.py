"""The port: what is promised, loaded, computed and sampled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import get_ident
from typing import Any

import array_api_compat.torch
import numpy as np
import torch

from tickertape.plugins import (
    Array,
    BackendOptions,
    Batch,
    Limits,
    Masks,
    MemoryPlan,
    ModelSpec,
    Progress,
    Row,
    Sampler,
    StepOutput,
    WeightSet,
    is_int8,
)
from tickertape.plugins.backends.transformers.checkpoint import (
    Footprint,
    footprint,
    load_model,
    own_names,
    read_headers,
)
from tickertape.plugins.backends.transformers.cpu.attention import make_attention
from tickertape.plugins.backends.transformers.cpu.linears import replace_linears
from tickertape.plugins.backends.transformers.cpu.threads import use_threads
from tickertape.plugins.backends.transformers.gather import PagedAttention, gather_attention
from tickertape.plugins.backends.transformers.int8 import Int8Layers, find_layers
from tickertape.plugins.backends.transformers.interface import unsupported
from tickertape.plugins.backends.transformers.layout import Layout
from tickertape.plugins.backends.transformers.library import build, read_config
from tickertape.plugins.backends.transformers.options import Placement, placement
from tickertape.plugins.backends.transformers.paged_model import PagedModel
from tickertape.plugins.backends.transformers.probe import probe
from tickertape.plugins.backends.transformers.rope import pin_frequencies
from tickertape.plugins.backends.transformers.self_check import check_twin
from tickertape.plugins.backends.transformers.suitability import REMOTE_CODE

__all__ = ["TransformersRunner", "make"]


def make(spec: ModelSpec, options: BackendOptions) -> TransformersRunner:
    """Finds out whether the model can be paged, without its weights: see `probe` and `check_twin`.

    Code that comes with the model runs when `spec.trust_remote_code` says so. `options.extra`: self_check (true)
    computes with a small twin of the model first; kernels (true) uses the CPU's compiled ones, without which torch does
    it all. Raises StartupError: UnsupportedArchitecture, BadOption.
    """
    place = placement(spec, options)
    trust = spec.trust_remote_code
    config = read_config(spec, trust_remote_code=trust)
    if not trust and spec.config.get("auto_map") and type(config).__module__.split(".")[0] != "transformers":
        raise unsupported(REMOTE_CODE)
    if is_int8(spec.config):
        del config.quantization_config  # the library knows nothing of it, and need not
    skeleton = build(config, place.dtype, "meta", trust_remote_code=trust)
    stored = read_headers(Path(spec.path))
    own = own_names(skeleton, stored)
    layers = find_layers(skeleton, stored, own, quantize=place.quantize)
    taken = footprint(skeleton, stored, own, layers)
    pin_frequencies(skeleton, spec.max_model_len)
    layout = probe(skeleton.to(torch.bfloat16))  # of all types the one that mixtures of experts can do without values
    if options.extra.get("self_check", True):
        check_twin(config, trust_remote_code=trust)
    return TransformersRunner(spec, type(skeleton), config, layout, layers, taken, place)


class TransformersRunner:
    """Computes in `forward` and samples in `sample`. On the CPU nothing is in flight between them."""

    def __init__(
        self,
        spec: ModelSpec,
        model_class: Any,
        config: Any,
        layout: Layout,
        layers: Int8Layers,
        taken: Footprint,
        place: Placement,
    ) -> None:
        self._spec, self._model_class, self._config = spec, model_class, config
        self._layout, self._layers, self._taken, self._place = layout, layers, taken, place
        self._paged: PagedModel | None = None
        self._rows: tuple[Row, ...] = ()
        self._thread: int | None = None

    def plan(self, limits: Limits) -> MemoryPlan:
        self._limits = limits
        self._paging = self._layout.paging(limits, self._place.dtype.itemsize)
        return MemoryPlan(
            weight_bytes=self._taken.mapped_bytes,
            private_bytes=self._taken.private_bytes,
            workspace_bytes=self._workspace_bytes(limits),
            groups=self._paging.groups,
        )

    def load(self, weights: WeightSet) -> Iterator[Progress]:
        yield Progress("compile", 0, 1, "kernels")
        self._paged = PagedModel(self._layout, self._paging, self._make_attention(), self._place.device)
        yield Progress("compile", 1, 1, "kernels")
        model = yield from load_model(
            self._model_class, self._config, weights, self._place.dtype, self._paged.attention_name, self._layers
        )
        pin_frequencies(model, self._limits.max_model_len)
        if self._place.kernels:
            replace_linears(model, dtype=self._place.dtype, fuse=True, num_threads=self._place.num_threads)
        self._paged.adopt(model.to(self._place.device))

    def allocate(self, num_blocks: Sequence[int]) -> None:
        assert self._paged is not None, "load comes first"
        self._paged.allocate(num_blocks, self._place.dtype)
        num_slots, vocab_size = self._limits.max_num_seqs, self._spec.vocab_size
        if self._place.device.type == "cpu":
            self._sampler = Sampler(np, num_slots, vocab_size)  # 2 to 10 times as fast there as torch
        else:
            self._sampler = Sampler(array_api_compat.torch, num_slots, vocab_size, device=self._place.device)

    def forward(self, batch: Batch) -> None:
        assert self._paged is not None, "load comes first"
        for slot in batch.closed:
            self._sampler.close(slot)
        for opened in batch.opened:
            self._sampler.open(opened)
        if self._thread != (thread := get_ident()):
            self._thread = thread
            use_threads(self._place.num_threads)  # counts for the thread it is called on
        self._rows = batch.rows
        logits = self._paged.logits(batch.rows, batch.tables, self._sampler.last)
        self._logits: Array = self._place.for_sampling(logits)

    def sample(self, masks: Masks | None) -> StepOutput:
        with torch.inference_mode():  # the logits were made in it
            return self._sampler.sample(self._rows, self._logits, masks)

    def close(self) -> None:
        if self._paged is not None:
            self._paged.close()

    def _make_attention(self) -> PagedAttention:
        if self._place.kernels:
            return make_attention(self._place.dtype, num_threads=self._place.num_threads)
        return gather_attention

    def _workspace_bytes(self, limits: Limits) -> int:
        """What one full step holds at once: its states, and all logits when prompts are scored."""
        config = self._config.get_text_config()
        heads = max(a.num_heads * (a.key_dim + a.value_dim) for a in self._layout)
        inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
        inner = max(inner) if isinstance(inner, list) else inner
        per_token = 8 * config.hidden_size + 2 * heads + 3 * inner + config.vocab_size
        return int(limits.max_batch_tokens * per_token * self._place.dtype.itemsize)
