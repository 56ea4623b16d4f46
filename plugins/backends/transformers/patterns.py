"""Which earlier tokens a token attends to. The library says so with a mask; we compute from positions instead, after
making sure that the mask is one of the three patterns we know."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, NamedTuple

import torch

__all__ = ["FULL", "Pattern", "recognise"]


class Pattern(NamedTuple):
    """A query at q sees the key at k <= q if: full, always; sliding, k > q - size; chunked, q // size == k // size."""

    kind: Literal["full", "sliding", "chunked"]
    size: int = 0

    def sees(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        causal = k <= q
        if self.kind == "sliding":
            return causal & (k > q - self.size)
        if self.kind == "chunked":
            return causal & (q // self.size == k // self.size)
        return causal


FULL: Final = Pattern("full")


def recognise(mask_function: Callable[..., Any], size: int | None) -> Pattern | None:
    """The pattern that a mask function of the library (batch, head, q, k -> bool) follows, by trying it out at the
    places where patterns differ; None when it is none of ours. `size` is the window or chunk it is said to have."""
    reach = 3 * size + 2 if size else 4096
    edges = {0, 1, 2, 63, 64, reach - 1}
    if size:
        edges |= {edge + near for edge in (size, 2 * size, 3 * size) for near in (-1, 0, 1)}
    q = torch.tensor(sorted(edge for edge in edges if edge < reach))[:, None]
    k = torch.arange(reach)[None]
    zero = torch.tensor(0)
    seen = mask_function(zero, zero, q, k)
    return next((pattern for pattern in _candidates(size) if torch.equal(seen, pattern.sees(q, k))), None)


def _candidates(size: int | None) -> Iterator[Pattern]:
    yield FULL
    if size:
        yield Pattern("sliding", size)
        yield Pattern("chunked", size)
