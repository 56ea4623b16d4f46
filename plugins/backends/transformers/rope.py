"""Rotary frequencies that depend on the longest position of a call are fixed once, for the context that is served.

The library recomputes them in every forward pass (kinds "dynamic" and "longrope"): in a batch, one long row would then
change what the short ones compute, and a cached key would not fit the next query. Pinned, a row is the same in any
company: within the original length it is the model as it was trained; when a longer context is served, all rows have
the long frequencies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tickertape.plugins.backends.transformers.interface import unsupported

__all__ = ["pin_frequencies"]


def pin_frequencies(model: Any, max_model_len: int) -> None:
    """Raises StartupError when the config asks for such a kind and no module is found to pin."""
    num_pinned = sum(_pin(module, max_model_len) for module in model.modules())
    if _wanted(model.config.get_text_config()) and not num_pinned:
        raise unsupported("its rotary frequencies depend on the longest position of a call and cannot be fixed")


def _pin(module: torch.nn.Module, max_model_len: int) -> int:
    kinds = getattr(module, "rope_type", None)
    if isinstance(kinds, Mapping):
        moving = [layer_type for layer_type, kind in kinds.items() if _moves(kind)]
        module.rope_type = {**kinds, **dict.fromkeys(moving, "pinned")}
    elif _moves(kinds):
        moving, module.rope_type = [None], "pinned"
    else:
        return 0
    for layer_type in moving:
        prefix = f"{layer_type}_" if layer_type else ""
        kind = kinds[layer_type] if isinstance(kinds, Mapping) else kinds
        device = getattr(module, f"{prefix}inv_freq").device
        frequencies, scale = ROPE_INIT_FUNCTIONS[kind](
            module.config, device, seq_len=max_model_len, **({"layer_type": layer_type} if layer_type else {})
        )
        module.register_buffer(f"{prefix}inv_freq", frequencies, persistent=False)
        setattr(module, f"{prefix}attention_scaling", scale)
    return len(moving)


def _moves(kind: object) -> bool:
    return isinstance(kind, str) and (kind == "longrope" or "dynamic" in kind)


def _wanted(config: Any) -> bool:
    rope = getattr(config, "rope_parameters", None) or {}
    nested = [part for part in rope.values() if isinstance(part, Mapping)] or [rope]
    return any(_moves(part.get("rope_type")) for part in nested)
