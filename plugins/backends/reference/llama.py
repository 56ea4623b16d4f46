"""The Llama itself: its shape, and one pass over the flattened tokens of a step."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tickertape.plugins import Array, ModelSpec
from tickertape.plugins.backends.reference.attention import View, attend


class Shape:
    """What config.json says. `windows` has each layer's sliding window, None where it sees everything."""

    def __init__(self, spec: ModelSpec) -> None:
        config = spec.config
        self.vocab_size = config["vocab_size"]
        self.hidden = config["hidden_size"]
        self.inner = config["intermediate_size"]
        self.num_layers = config["num_hidden_layers"]
        self.num_heads = config["num_attention_heads"]
        self.num_kv_heads = config.get("num_key_value_heads") or self.num_heads
        self.head_dim = config.get("head_dim") or self.hidden // self.num_heads
        self.eps = config.get("rms_norm_eps", 1e-6)
        self.tied = config.get("tie_word_embeddings", False)
        window = None if spec.architecture == "LlamaForCausalLM" else config.get("sliding_window", 4096)
        kinds = config.get("layer_types") or ["sliding_attention"] * self.num_layers
        self.windows = tuple(window if kind == "sliding_attention" else None for kind in kinds)
        self.rope = {"rope_theta": config.get("rope_theta", 10000.0)}
        self.rope |= config.get("rope_scaling") or {}
        self.rope |= config.get("rope_parameters") or {}

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The tensors of a layer, by name. Projections are stored [out, in]."""
        heads, kv_heads = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return {
            "input_layernorm": (self.hidden,),
            "self_attn.q_proj": (heads, self.hidden),
            "self_attn.k_proj": (kv_heads, self.hidden),
            "self_attn.v_proj": (kv_heads, self.hidden),
            "self_attn.o_proj": (self.hidden, heads),
            "post_attention_layernorm": (self.hidden,),
            "mlp.gate_proj": (self.inner, self.hidden),
            "mlp.up_proj": (self.inner, self.hidden),
            "mlp.down_proj": (self.hidden, self.inner),
        }


class Llama(NamedTuple):
    shape: Shape
    embedding: Array  # [vocab, hidden]
    layers: Sequence[Mapping[str, Array]]
    norm: Array
    head: Array  # [vocab, hidden]

    def hidden(self, ids: Array, turns: Array, memory: Iterable[tuple[Array, Array, Sequence[View]]]) -> Array:
        """The final states of the step's tokens, [tokens, hidden]. `turns` are their lines of the rope table, `memory`
        has for each layer its cache, the places where the tokens' keys and values go, and the views to read."""
        shape, turns, x = self.shape, turns[:, :, None], self.embedding[ids]
        for layer, (cache, places, views) in zip(self.layers, memory, strict=True):
            normed = rms_norm(x, layer["input_layernorm"], shape.eps)
            q, k, v = (
                linear(normed, layer[f"self_attn.{name}_proj"]).reshape(len(ids), -1, shape.head_dim) for name in "qkv"
            )
            cache[places, 0] = rotate(k, turns)
            cache[places, 1] = v
            x = x + linear(attend(rotate(q, turns), cache, views), layer["self_attn.o_proj"])
            normed = rms_norm(x, layer["post_attention_layernorm"], shape.eps)
            gated = silu(linear(normed, layer["mlp.gate_proj"])) * linear(normed, layer["mlp.up_proj"])
            x = x + linear(gated, layer["mlp.down_proj"])
        return rms_norm(x, self.norm, shape.eps)


def linear(x: Array, weight: Array) -> Array:
    """x [tokens, in] times weight [out, in]. Up to four tokens go one by one: a matrix-vector product reads the weights
    at the speed of memory, a matrix product packs them first."""
    return np.stack([weight @ token for token in x]) if 0 < len(x) <= 4 else x @ weight.T


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    return x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + x.dtype.type(eps)) * weight


def silu(x: Array) -> Array:
    return x * (0.5 + 0.5 * np.tanh(0.5 * x))  # x / (1 + exp(-x)), without its overflow


def rotate(x: Array, turns: Array) -> Array:
    """Rotary position embedding of x [tokens, heads, head_dim]: dimension i turns with dimension i + head_dim / 2."""
    (cos, sin), (a, b) = turns, np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def rope_table(shape: Shape, num_positions: int, dtype: np.dtype) -> Array:
    """Cosine and sine of every angle, [2, positions, head_dim / 2]."""
    rope = shape.rope
    frequencies = rope["rope_theta"] ** -(np.arange(0, shape.head_dim, 2) / shape.head_dim)
    if rope.get("rope_type", rope.get("type")) == "llama3":
        # Waves longer than the original context are slowed by `factor`, short ones kept, those between blended.
        waves = rope["original_max_position_embeddings"] * frequencies / (2 * np.pi)
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        keep = np.clip((waves - low) / (high - low), 0, 1)
        frequencies = frequencies * (keep + (1 - keep) / rope["factor"])
    angles = np.arange(num_positions)[:, None] * frequencies
    return np.stack([np.cos(angles), np.sin(angles)]).astype(dtype)
