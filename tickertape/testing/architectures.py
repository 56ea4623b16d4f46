"""Tiny random models of the transformers library's architectures, made on the fly. Needs torch and transformers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tickertape.plugins import ModelSpec
from tickertape.weights.spec import read_spec

__all__ = ["ARCHITECTURES", "write_architecture"]

_SIZES: Mapping[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
_MIXED: Mapping[str, Any] = {
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}

ARCHITECTURES: Mapping[str, Mapping[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 11},
    "starcoder2": {"sliding_window": 11},
    "qwen2": {"use_sliding_window": True, "sliding_window": 11, **_MIXED},
    "qwen3": {},
    "gemma2": {"sliding_window": 11, "query_pre_attn_scalar": 8, **_MIXED},
    "gemma3_text": {"sliding_window": 11, "query_pre_attn_scalar": 8, **_MIXED},
    "phi3": {},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512},
    "gpt_neox": {},
    "olmo2": {},
    "granite": {
        "attention_multiplier": 0.2,
        "embedding_multiplier": 2.0,
        "residual_multiplier": 0.7,
        "logits_scaling": 3.0,
    },
    "cohere2": {"sliding_window": 11, **_MIXED},
    "smollm3": {"no_rope_layers": [1, 0]},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "decoder_sparse_step": 1},
    "gpt_oss": {"sliding_window": 11, "num_local_experts": 4, "num_experts_per_tok": 2, **_MIXED},
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 12,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "moe_intermediate_size": 24,
        "first_k_dense_replace": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
}
"""What sets a tiny model of each kind apart; windows are shorter than the prompts of the conformance kit."""


def write_architecture(
    directory: Path, model_type: str, *, seed: int = 0, dtype: str = "float64", **config: Any
) -> ModelSpec:
    """A random model of the library's `model_type` in `directory`; `config` overrides what ARCHITECTURES says of it.

    As with `write_llama`, the weights are larger than an initialiser's, so that a wrong position or window shows.
    """
    import torch
    import transformers

    fields = {**_SIZES, **ARCHITECTURES.get(model_type, {}), **config}
    settings = transformers.AutoConfig.for_model(model_type, **fields)
    model = transformers.AutoModelForCausalLM.from_config(settings, dtype=getattr(torch, dtype))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.empty(parameter.shape, dtype=torch.float64).normal_(generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(noise * 1.5 / math.sqrt(parameter.shape[-1]))
            else:
                parameter.add_(0.2 * noise)
    model.save_pretrained(directory)
    written = json.loads((directory / "config.json").read_text())
    assert written["architectures"] == [type(model).__name__]
    return read_spec(directory, directory.name)
