"""What a model keeps of each token: one entry per attention in the order in which a forward pass makes them, and the
cache groups that follow for given limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tickertape.plugins import CacheGroup, Limits, StartupError
from tickertape.plugins.backends.transformers.patterns import FULL, Pattern

__all__ = ["Attention", "Layout", "Paging"]


class Attention(NamedTuple):
    """One attention of the model. A layer may have several (differential attention has two), each with keys and values
    of its own, and layers may differ in all of these."""

    layer_index: int
    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    pattern: Pattern


class Paging(NamedTuple):
    """`groups[group_of[i]]` is where attention i keeps its keys and values; `patterns[g]` is how group g is read."""

    groups: tuple[CacheGroup, ...]
    patterns: tuple[Pattern, ...]
    group_of: tuple[int, ...]


class Layout(tuple[Attention, ...]):
    """The attentions of a model, in call order."""

    def paging(self, limits: Limits, itemsize: int) -> Paging:
        """One group per pattern that makes a difference within `max_model_len`. Raises StartupError (BadOption) when
        the block size does not divide a chunk: a chunk then would not begin with a block."""
        patterns = [FULL if a.pattern.size >= limits.max_model_len else a.pattern for a in self]
        kinds = tuple(dict.fromkeys(patterns))
        group_of = tuple(kinds.index(pattern) for pattern in patterns)
        for kind in kinds:
            if kind.kind == "chunked" and kind.size % limits.block_tokens:
                raise StartupError(
                    f"the block size {limits.block_tokens} does not divide the model's attention chunk of {kind.size}",
                    code="BadOption",
                )
        groups = tuple(
            CacheGroup(
                # What lies a whole chunk back is in no chunk that is still attended to.
                kind="full" if kind == FULL else "sliding",
                window=kind.size or None,
                block_tokens=limits.block_tokens,
                block_bytes=limits.block_tokens * itemsize * self._values_of(g, group_of),
            )
            for g, kind in enumerate(kinds)
        )
        return Paging(groups, kinds, group_of)

    def _values_of(self, group: int, group_of: Sequence[int]) -> int:
        """Numbers per token over all attentions of a group."""
        members = (a for a, g in zip(self, group_of, strict=True) if g == group)
        return sum(a.num_kv_heads * (a.key_dim + a.value_dim) for a in members)
