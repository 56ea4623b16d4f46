"""The architectures that can be converted: what their tensors are called there and here, and what was changed on the
way to GGUF. The facts are those of llama.cpp's converter and loader."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

__all__ = ["ARCHITECTURES", "IGNORED", "Architecture"]

IGNORED: Final = frozenset({"rope_freqs.weight"})
"""Read by the configuration, not a weight here."""

_WHOLE: Final = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_ATTENTION: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_GATED: Final = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_LLAMA: Final = {**_ATTENTION, "ffn_norm": "post_attention_layernorm", **_GATED}
_HEAD_NORMS: Final = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_GEMMA: Final = {
    **_ATTENTION,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    **_GATED,
}
_FUSED: Final = {
    "attn_norm": "input_layernorm",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.gate_up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK: Final = re.compile(r"^blk\.(\d+)\.(\w+)\.(weight|bias)$")


class Architecture(Struct, frozen=True, kw_only=True):
    """`parts` are the tensors of a layer, by their names in GGUF; each has a weight, those in `biased` a bias too,
    those in `may_be_biased` perhaps.

    `interleaved`: the rows of the rotary projections were put into the order that llama.cpp rotates them in.
    `norm_offset`: what was added to the weights of all norms.
    """

    model_class: str
    model_type: str
    parts: Mapping[str, str]
    biased: frozenset[str] = frozenset()
    may_be_biased: frozenset[str] = frozenset()
    interleaved: bool = False
    norm_offset: float = 0.0

    def hugging_face_name(self, name: str) -> str | None:
        """None for a tensor that such a model does not have."""
        if name in _WHOLE:
            return _WHOLE[name]
        match = _BLOCK.match(name)
        if match is None or match[2] not in self.parts:
            return None
        if match[3] == "bias" and match[2] not in self.biased | self.may_be_biased:
            return None
        return f"model.layers.{match[1]}.{self.parts[match[2]]}.{match[3]}"

    def layer_shapes(self, config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        """What a layer must have, as "attn_q.weight", and in which shape."""
        hidden, inner, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
        queries = config["num_attention_heads"] * head_dim
        keys = config["num_key_value_heads"] * head_dim
        fused = "attn_qkv" in self.parts
        shapes: dict[str, tuple[int, ...]] = {
            "attn_q": (queries, hidden), "attn_k": (keys, hidden), "attn_v": (keys, hidden),
            "attn_qkv": (queries + 2 * keys, hidden), "attn_output": (hidden, queries),
            "attn_q_norm": (head_dim,), "attn_k_norm": (head_dim,),
            "ffn_gate": (inner, hidden), "ffn_up": (inner * 2 if fused else inner, hidden), "ffn_down": (hidden, inner),
        }  # fmt: skip
        weights = {f"{part}.weight": shapes.get(part, (hidden,)) for part in self.parts}
        return weights | {f"{part}.bias": shapes[part][:1] for part in self.biased}


_INPUTS: Final = frozenset({"attn_q", "attn_k", "attn_v"})
_LLAMA_BIASES: Final = frozenset({"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"})

ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "llama": Architecture(
        model_class="LlamaForCausalLM", model_type="llama", parts=_LLAMA, may_be_biased=_LLAMA_BIASES, interleaved=True
    ),
    "mistral": Architecture(
        model_class="MistralForCausalLM", model_type="mistral", parts=_LLAMA, may_be_biased=_LLAMA_BIASES,
        interleaved=True,
    ),
    "granite": Architecture(
        model_class="GraniteForCausalLM", model_type="granite", parts=_LLAMA, may_be_biased=_LLAMA_BIASES,
        interleaved=True,
    ),
    "qwen2": Architecture(
        model_class="Qwen2ForCausalLM", model_type="qwen2", parts=_LLAMA, biased=_INPUTS
    ),
    "qwen3": Architecture(model_class="Qwen3ForCausalLM", model_type="qwen3", parts={**_LLAMA, **_HEAD_NORMS}),
    "phi3": Architecture(model_class="Phi3ForCausalLM", model_type="phi3", parts=_FUSED),
    "gemma2": Architecture(model_class="Gemma2ForCausalLM", model_type="gemma2", parts=_GEMMA, norm_offset=1.0),
    "gemma3": Architecture(
        model_class="Gemma3ForCausalLM", model_type="gemma3_text", parts={**_GEMMA, **_HEAD_NORMS}, norm_offset=1.0
    ),
}  # fmt: skip
"""By what `general.architecture` says."""
