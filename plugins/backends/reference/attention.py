"""Attention over paged memory: which places of the cache each token reads, and the reading itself.

A layer's cache is one array [places, 2, kv_heads, head_dim], the key and the value of a token; block b has the places
from b * block_tokens on.
Shapes: B spans taken together, T tokens of each, K key positions, H heads, D head_dim.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tickertape.plugins import Array, CacheGroup, Row

SPAN_TOKENS = 64  # a longer row is cut, so that the scores held at once stay small
GATHER_TOKENS = 8192  # keys gathered at once, unless a single span sees more


class View(NamedTuple):
    """Spans (whole rows, or pieces of one) that bring as many tokens as each other and see about as many."""

    tokens: Array  # [B, T] which tokens of the step
    places: Array  # [B, K] what they read
    bias: Array  # [B, 1, 1, T, K] 0 where a token sees the key, else -inf


def places_of(slots: Array, positions: Array, table: Array, group: CacheGroup) -> Array:
    """Where the token at each position of its slot's sequence lies."""
    return table[slots, positions // group.block_tokens] * group.block_tokens + positions % group.block_tokens


def views_of(rows: Sequence[Row], table: Array, group: CacheGroup, dtype: np.dtype) -> Iterator[View]:
    """Every token of the step is in exactly one view."""
    alike = defaultdict(list)
    token = 0
    for row in rows:
        end = row.start + len(row.tokens)
        for start in range(row.start, end, SPAN_TOKENS):
            count = min(SPAN_TOKENS, end - start)
            begin = 0 if group.window is None else max(0, start - group.window + 1)
            reach = (start + count - begin).bit_length()  # so padding at most doubles what is read
            alike[count, reach].append((row.slot, token, start, begin))
            token += count
    for (count, reach), spans in alike.items():
        together = max(1, GATHER_TOKENS >> reach)
        for i in range(0, len(spans), together):
            slots, tokens, starts, begins = np.array(spans[i : i + together]).T[:, :, None]  # each [B, 1]
            asking = starts + np.arange(count)  # [B, T]
            newest = asking[:, -1:]
            keys = begins + np.arange((newest - begins).max() + 1)  # [B, K]
            distance = asking[:, :, None] - keys[:, None]
            seen = (distance >= 0) & (distance < (group.window or np.inf))
            # Padding reads the span's own newest token, never memory that is not ours: 0 * NaN would be NaN.
            places = places_of(slots, np.minimum(keys, newest), table, group)
            bias = np.where(seen, 0, -np.inf).astype(dtype)
            yield View(tokens + np.arange(count), places, bias[:, None, None])


def attend(q: Array, cache: Array, views: Sequence[View]) -> Array:
    """Softmax attention of q [tokens, H, D] over what the views show, [tokens, H * D]. The step's own keys and values
    are in the cache already. H / kv_heads query heads share a kv head."""
    _, _, kv_heads, dim = cache.shape
    out = np.empty_like(q)
    for view in views:
        (b, t), k = view.tokens.shape, view.places.shape[1]
        keys, values = cache.take(view.places, axis=0).transpose(2, 0, 3, 1, 4)  # each [B, kv_heads, K, D]
        asked = q[view.tokens].reshape(b, t, kv_heads, -1, dim).transpose(0, 2, 3, 1, 4)
        scores = asked.reshape(b, kv_heads, -1, dim) @ keys.swapaxes(2, 3) * dim**-0.5
        scores = scores.reshape(b, kv_heads, -1, t, k) + view.bias
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed = weights.reshape(b, kv_heads, -1, k) @ values
        out[view.tokens] = mixed.reshape(b, kv_heads, -1, t, dim).transpose(0, 3, 1, 2, 4).reshape(b, t, -1, dim)
    return out.reshape(len(q), -1)
