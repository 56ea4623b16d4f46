"""A small twin of a model: the same class and the same switches, a few narrow layers, short windows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch

from tickertape.plugins.backends.transformers.library import build, quietly

__all__ = ["make_twin"]

_DROPPED: Final = ("architectures", "auto_map", "dtype", "model_type", "quantization_config", "transformers_version")
_CAPS: Final = {
    "vocab_size": 128, "vocab_size_per_layer_input": 128,
    "ffn_dim": 64, "n_inner": 64, "ffn_hidden_size": 64,
    "sliding_window": 8, "attention_chunk_size": 16,
    "num_experts": 8, "num_local_experts": 8, "n_routed_experts": 8, "moe_num_experts": 8,
    "num_experts_per_tok": 2, "moe_k": 2, "moe_topk": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip
_MOST_LAYERS: Final = 8


def make_twin(config: Any, *, all_layers: bool = False, trust_remote_code: bool = False) -> Any:
    """A model on the CPU in float32 with random weights, the same every time, large enough that a wrong position or
    mask shows in the logits. It has a layer of every kind, or all of them. Raises whatever the library raises for a
    config that does not bear shrinking."""
    fields = {key: value for key, value in config.to_dict().items() if key not in _DROPPED}
    kept = list(range(config.num_hidden_layers)) if all_layers else _layers_kept(config.num_hidden_layers, fields)
    fields.update(dict(_shrunk(config, fields, kept)))
    with quietly():
        own = type(config)(**fields)
        if trust_remote_code and getattr(config, "auto_map", None):
            own.auto_map, own.name_or_path = config.auto_map, config.name_or_path
        twin = build(own, torch.float32, "cpu", trust_remote_code=trust_remote_code)
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        for parameter in twin.parameters():
            noise = torch.empty(parameter.shape).normal_(generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(noise * 1.5 / math.sqrt(parameter.shape[-1]))
            else:  # norms and biases, around what they start from
                parameter.add_(0.2 * noise)
    return twin


def _shrunk(config: Any, fields: Mapping[str, Any], kept: Sequence[int]) -> Iterator[tuple[str, Any]]:
    own_name = config.attribute_map or {}
    yield own_name.get("num_hidden_layers", "num_hidden_layers"), len(kept)
    if fields.get("num_kv_shared_layers") and len(kept) < config.num_hidden_layers:
        yield "num_kv_shared_layers", len(kept) // 2

    heads, hidden = config.num_attention_heads, config.hidden_size
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    fewer_kv_heads = min(kv_heads, 2)
    fewer_heads = fewer_kv_heads * min(heads // kv_heads, 4)
    narrow = max(1, hidden // heads) * fewer_heads
    yield own_name.get("num_attention_heads", "num_attention_heads"), fewer_heads
    if "num_key_value_heads" in fields:
        yield "num_key_value_heads", fewer_kv_heads
    yield own_name.get("hidden_size", "hidden_size"), narrow
    if fields.get("word_embed_proj_dim") == hidden:
        yield "word_embed_proj_dim", narrow

    for key, value in fields.items():
        if isinstance(value, list) and len(value) == config.num_hidden_layers:
            yield key, [_capped(key, value[layer]) for layer in kept]
        elif key.endswith("token_id"):
            yield key, 0 if isinstance(value, int) else None
        elif (capped := _capped(key, value)) != value:
            yield key, capped


def _capped(key: str, value: Any) -> Any:
    """Widths of feed-forward layers have many names, with one word in common."""
    cap = 64 if "intermediate" in key else _CAPS.get(key)
    return min(value, cap) if cap and isinstance(value, int) and not isinstance(value, bool) else value


def _layers_kept(num_layers: int, fields: Mapping[str, Any]) -> list[int]:
    """The first so many that every kind of layer is among them; twice over when later layers use the keys and values of
    earlier ones, which must be of the same kinds."""
    num_kept = 1 + min(fields.get("first_k_dense_replace") or 1, 1)
    for value in fields.values():
        if isinstance(value, list) and len(value) == num_layers and all(isinstance(item, (str, int)) for item in value):
            num_kept = max(num_kept, 1 + max(value.index(kind) for kind in set(value)))
    kept = list(range(min(num_kept, num_layers, _MOST_LAYERS)))
    return kept * 2 if fields.get("num_kv_shared_layers") else kept
