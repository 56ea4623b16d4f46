"""The library's two registries, through which every model that follows it computes attention and makes masks.

Both are registered under one name of our own, and the masks are tokens of ours rather than tensors. So a model cannot
look into a mask, forget it, or fall back on an attention of its own without our noticing: causality is computed from
positions, never from what a model hands over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol
from uuid import uuid4

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from tickertape.plugins import StartupError

__all__ = ["Attend", "AttentionCall", "Registration", "WantedMask", "read_call", "unsupported"]

# What models pass along that changes nothing about one attention: the rest is refused unless it is None.
_NOISE: Final = frozenset(
    {
        "position_ids",
        "use_cache",
        "output_router_logits",
        "output_attentions",
        "output_hidden_states",
        "sliding_window",  # the mask says the same, and it is the mask that the library's own attention follows
    }
)


def unsupported(reason: str) -> StartupError:
    return StartupError(f"the transformers backend cannot serve this model: {reason}", code="UnsupportedArchitecture")


@dataclass(frozen=True, eq=False)
class WantedMask:
    """Stands for the mask a model asked for. `size`: the window or chunk, where there is one."""

    function: Callable[..., Any]
    size: int | None


class AttentionCall:
    """One call of the attention function, checked. q [T, H, D], k [T, Hkv, D], v [T, Hkv, Dv]; `sinks` [H]."""

    __slots__ = ("k", "layer_index", "mask", "q", "scale", "sinks", "softcap", "v")

    def __init__(
        self,
        layer_index: int,
        mask: WantedMask,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        scale: float,
        softcap: float | None,
        sinks: torch.Tensor | None,
    ) -> None:
        self.layer_index, self.mask = layer_index, mask
        self.q, self.k, self.v = q, k, v
        self.scale, self.softcap, self.sinks = scale, softcap, sinks


class Attend(Protocol):
    """Answers a call with the mixed values [T, H, Dv]."""

    def __call__(self, call: AttentionCall) -> torch.Tensor: ...


def read_call(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: object,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: object,
) -> AttentionCall:
    """The library's arguments (q [1, H, T, D], k and v alike) in our terms. Raises StartupError for what we would
    have to ignore to go on."""
    if type(attention_mask) is not WantedMask:
        raise unsupported("it makes attention masks of its own")
    if is_causal is False or dropout:
        raise unsupported("its attention is not causal")
    for name, other in others.items():
        if other is not None and name not in _NOISE:
            raise unsupported(f"its attention has an argument {name!r} that is not understood")
    layer_index = getattr(module, "layer_idx", None)
    if not isinstance(layer_index, int) or query.shape[0] != 1:
        raise unsupported("its attention does not say which layer it is, or takes the rows apart")
    return AttentionCall(
        layer_index,
        attention_mask,
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        query.shape[-1] ** -0.5 if scaling is None else scaling,
        softcap,
        s_aux,
    )


class Registration:
    """`attend` in both registries of the process, under `name`, until `close`."""

    def __init__(self, attend: Attend) -> None:
        # The name holds none of "sdpa", "flash" and "flex", for which the library has checks of its own.
        self.name = f"tickertape-{uuid4().hex}"
        self._attend = attend
        AttentionInterface.register(self.name, self._attention)
        AttentionMaskInterface.register(self.name, self._mask)

    def close(self) -> None:
        for registry in (AttentionInterface, AttentionMaskInterface):
            registry._global_mapping.pop(self.name, None)  # there is no public way to leave

    def _attention(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: object = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        return self._attend(read_call(module, query, key, value, attention_mask, **kwargs))[None], None

    @staticmethod
    def _mask(*, mask_function: Callable[..., Any], local_size: int | None = None, **_: object) -> WantedMask:
        return WantedMask(mask_function, local_size)
