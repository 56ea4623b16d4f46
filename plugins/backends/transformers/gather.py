"""Attention over paged memory in plain torch: gathers what a span sees and multiplies. Runs on any device and in any
type; the truth that faster ways are measured against.

Shapes: B spans taken together, T tokens of each, K key positions, G query heads to a kv head.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import torch

from tickertape.plugins.backends.transformers.spans import Spans

__all__ = ["PagedAttention", "gather_attention", "write_kv"]

_SPAN_TOKENS: Final = 64  # a longer span is cut, so that the scores held at once stay small
_GATHER_TOKENS: Final = 8192  # keys gathered at once, unless a single span sees more


class PagedAttention(Protocol):
    """q [T, H, D]; caches [num_blocks, block_tokens, Hkv, D or Dv], which hold the step's own keys and values already;
    `sinks` [H] are logits of one more column of the softmax. Writes the mixed values to `out` [T, H, Dv]."""

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        spans: Spans,
        *,
        scale: float,
        softcap: float | None,
        sinks: torch.Tensor | None,
        out: torch.Tensor,
    ) -> None: ...


def write_kv(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, places: torch.Tensor
) -> None:
    """Keeps k [T, Hkv, D] and v [T, Hkv, Dv] at `places` int64 [T]: block * block_tokens + offset."""
    k_cache.view(-1, *k_cache.shape[2:])[places] = k
    v_cache.view(-1, *v_cache.shape[2:])[places] = v


def gather_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    spans: Spans,
    *,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """See PagedAttention. Scores are summed in float32 at least."""
    block_tokens, num_kv_heads = k_cache.shape[1], k_cache.shape[2]
    keys, values = k_cache.view(-1, *k_cache.shape[2:]), v_cache.view(-1, *v_cache.shape[2:])
    precise = q.dtype if q.dtype == torch.float64 else torch.float32
    for count, pieces in _alike(spans):
        of, token, start, begin = torch.tensor(pieces, dtype=torch.int64, device=q.device).T[:, :, None]
        asking = start + torch.arange(count, device=q.device)  # [B, T]
        newest = asking[:, -1:]
        seen = begin + torch.arange(int((newest - begin).max()) + 1, device=q.device)  # [B, K]
        # Padding reads the span's own newest token, never memory that is not ours: 0 * NaN would be NaN.
        real = torch.minimum(seen, newest)
        places = spans.tables[of, real // block_tokens].long() * block_tokens + real % block_tokens
        distance = asking[:, :, None] - seen[:, None]
        hidden = (distance < 0) | (distance >= spans.window if spans.window else torch.zeros_like(distance).bool())
        tokens = token + torch.arange(count, device=q.device)

        asked = q[tokens].to(precise).unflatten(2, (num_kv_heads, -1))  # [B, T, Hkv, G, D]
        scores = torch.einsum("bthgd,bkhd->bhgtk", asked, keys[places].to(precise)) * scale
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        scores = scores.masked_fill(hidden[:, None, None], float("-inf"))
        if sinks is not None:
            column = sinks.to(precise).view(1, num_kv_heads, -1, 1, 1).expand(*scores.shape[:-1], 1)
            scores = torch.cat([scores, column], dim=-1)
        weights = scores.softmax(dim=-1)[..., : seen.shape[1]]
        mixed = torch.einsum("bhgtk,bkhd->bthgd", weights, values[places].to(precise))
        out[tokens] = mixed.flatten(2, 3).to(out.dtype)


def _alike(spans: Spans) -> Iterator[tuple[int, Sequence[tuple[int, int, int, int]]]]:
    """Pieces (span, first token of the step, its position, first position seen) that bring as many tokens as each
    other and see about as many: padding at most doubles what is read."""
    alike = defaultdict(list)
    bounds = spans.query_start.tolist()
    for of, first_position in enumerate(spans.start.tolist()):
        first, end = bounds[of], bounds[of + 1]
        for token in range(first, end, _SPAN_TOKENS):
            count = min(_SPAN_TOKENS, end - token)
            start = first_position + token - first
            begin = max(0, start - spans.window + 1) if spans.window else 0
            alike[count, (start + count - begin).bit_length()].append((of, token, start, begin))
    for (count, reach), pieces in alike.items():
        together = max(1, _GATHER_TOKENS >> reach)
        for i in range(0, len(pieces), together):
            yield count, pieces[i : i + together]
