"""A model of the library over paged memory: rows in, logits out. Knows no sampling and no scheduling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tickertape.plugins import LAST, Array, Row
from tickertape.plugins.backends.transformers.gather import PagedAttention, write_kv
from tickertape.plugins.backends.transformers.interface import AttentionCall, Registration
from tickertape.plugins.backends.transformers.layout import Attention, Layout, Paging
from tickertape.plugins.backends.transformers.spans import Spans, places_of, spans_of

__all__ = ["PagedModel"]


class _Step:
    """What the attentions of one forward pass share. `num_calls` counts those made so far."""

    def __init__(self, spans: Sequence[Spans], places: Sequence[torch.Tensor]) -> None:
        self.spans, self.places = spans, places
        self.num_calls = 0


class PagedModel:
    """Keys and values lie in two tensors per attention, [num_blocks, block_tokens, kv_heads, dim]; the attentions of a
    cache group share its block table. One thread calls everything.

    The attention function of the library has to find its memory: it does so by counting its calls in a forward pass,
    which come in the same order every time (`probe.py` saw to that), and checks the layer each of them names.
    """

    def __init__(self, layout: Layout, paging: Paging, attention: PagedAttention, device: torch.device) -> None:
        self._layout, self._paging, self._attention, self._device = layout, paging, attention, device
        self._registration = Registration(self._attend)
        self._caches: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._model: Callable[..., Any] | None = None
        self._step: _Step | None = None

    @property
    def attention_name(self) -> str:
        """What the model's attention implementation must be set to."""
        return self._registration.name

    def adopt(self, model: torch.nn.Module) -> None:
        """Takes in the model that is to be computed, loaded and in evaluation mode."""
        self._model = model

    def allocate(self, num_blocks: Sequence[int], dtype: torch.dtype, fill: float | None = None) -> None:
        """Takes the memory of `num_blocks` per cache group, as it comes or filled."""

        def cache(attention: Attention, group: int, dim: int) -> torch.Tensor:
            shape = (num_blocks[group], self._paging.groups[group].block_tokens, attention.num_kv_heads, dim)
            taken = torch.empty(shape, dtype=dtype, device=self._device)
            return taken if fill is None else taken.fill_(fill)

        self._caches = [
            (cache(attention, group, attention.key_dim), cache(attention, group, attention.value_dim))
            for attention, group in zip(self._layout, self._paging.group_of, strict=True)
        ]

    def logits(
        self, rows: Sequence[Row], tables: Sequence[NDArray[np.int32]], last: Array | None = None
    ) -> torch.Tensor:
        """The wanted logits [sum of num_logits, V], in row order. `last` [num_slots] holds what LAST stands for."""
        assert self._model is not None, "no model was adopted"
        counts = [len(row.tokens) for row in rows]
        slots = np.repeat(np.array([row.slot for row in rows], dtype=np.int64), counts)
        positions = np.concatenate([np.arange(row.start, row.start + len(row.tokens)) for row in rows])
        ends = zip(rows, np.cumsum(counts).tolist(), strict=True)
        wanted = np.concatenate([np.arange(end - row.num_logits, end) for row, end in ends])
        groups = list(zip(self._paging.groups, self._paging.patterns, tables, strict=True))
        self._step = _Step(
            [self._moved(spans_of(rows, table, pattern, group.block_tokens)) for group, pattern, table in groups],
            [places_of(slots, positions, table, g.block_tokens).to(self._device) for g, _, table in groups],
        )
        with torch.inference_mode():
            ids = self._ids(rows, slots, last)[None]
            output = self._model(
                input_ids=ids,
                position_ids=torch.from_numpy(positions).to(self._device)[None],
                # All ones: without a mask the library looks for sequences packed side by side, and wraps what we get.
                attention_mask=torch.ones_like(ids),
                use_cache=False,
                logits_to_keep=torch.from_numpy(wanted).to(self._device),
            )
        if self._step.num_calls != len(self._layout):
            raise RuntimeError(f"the model made {self._step.num_calls} of its {len(self._layout)} attention calls")
        logits: torch.Tensor = output.logits[0]
        return logits

    def close(self) -> None:
        self._registration.close()
        self._caches = []
        self._model = None

    def _ids(self, rows: Sequence[Row], slots: NDArray[np.int64], last: Array | None) -> torch.Tensor:
        host = np.concatenate([np.asarray(row.tokens, dtype=np.int64) for row in rows])
        at = np.flatnonzero(host == LAST) if last is not None else ()
        if len(at) and isinstance(last, np.ndarray):
            host[at] = last[slots[at]]
        ids = torch.from_numpy(host).to(self._device)
        if len(at) and isinstance(last, torch.Tensor):
            ids[torch.from_numpy(at).to(self._device)] = last[torch.from_numpy(slots[at]).to(self._device)]
        return ids

    def _moved(self, spans: Spans) -> Spans:
        if self._device.type == "cpu":
            return spans
        query_start, start, tables, window = spans
        return Spans(query_start.to(self._device), start.to(self._device), tables.to(self._device), window)

    def _attend(self, call: AttentionCall) -> torch.Tensor:
        step = self._step
        assert step is not None
        number, step.num_calls = step.num_calls, step.num_calls + 1
        if number >= len(self._layout) or self._layout[number].layer_index != call.layer_index:
            raise RuntimeError(f"attention call {number} came from layer {call.layer_index}, out of order")
        group = self._paging.group_of[number]
        k_cache, v_cache = self._caches[number]
        write_kv(call.k, call.v, k_cache, v_cache, step.places[group])
        out = call.q.new_empty((*call.q.shape[:2], v_cache.shape[3]))
        self._attention(
            call.q,
            k_cache,
            v_cache,
            step.spans[group],
            scale=call.scale,
            softcap=call.softcap,
            sinks=call.sinks,
            out=out,
        )
        return out
