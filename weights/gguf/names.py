"""llama-family tensors: their names there and here, and the row order of the rotary projections."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["IGNORED", "hugging_face_name", "unpermuted_rows"]

IGNORED: Final = frozenset({"rope_freqs.weight"})
"""Read by the configuration, not a weight here."""

_WHOLE: Final = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_BLOCK: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK = re.compile(r"^blk\.(\d+)\.(\w+)\.(weight|bias)$")


def hugging_face_name(name: str) -> str | None:
    """None for a tensor that a llama-family model does not have."""
    if name in _WHOLE:
        return _WHOLE[name]
    match = _BLOCK.match(name)
    if match is None or match[2] not in _IN_BLOCK:
        return None
    return f"model.layers.{match[1]}.{_IN_BLOCK[match[2]]}.{match[3]}"


def unpermuted_rows(name: str, num_rows: int, heads: Mapping[str, int]) -> npt.NDArray[np.intp]:
    """Where each row of the result comes from. `heads` counts the heads of attn_q and attn_k.

    llama.cpp rotates neighbouring pairs, Hugging Face the two halves of a head, so the conversion to GGUF interleaved
    the halves of each head; this puts them back.
    """
    rows = np.arange(num_rows)
    match = _BLOCK.match(name)
    if match is None or match[2] not in heads:
        return rows
    return rows.reshape(heads[match[2]], -1, 2).swapaxes(1, 2).reshape(-1)
