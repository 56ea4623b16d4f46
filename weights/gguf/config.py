"""config.json and generation_config.json of a GGUF file of the llama family."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from tickertape.core.errors import StartupError
from tickertape.weights.gguf.reader import GgufFile

__all__ = ["make_config", "make_generation_config"]

_ARCHITECTURES: Final = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM"}
_CLOSERS: Final = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>")


class _Keys:
    """The metadata under one architecture's prefix. Raises StartupError, code BadHeader, for what must be there."""

    def __init__(self, file: GgufFile, prefix: str) -> None:
        self._file = file
        self._prefix = prefix

    def get(self, key: str, default: Any = None) -> Any:
        return self._file.metadata.get(f"{self._prefix}.{key}", default)

    def count(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if not isinstance(value, int) or value < 1:
            raise StartupError(f"{self._file.name}: {self._prefix}.{key} is {value!s:.40}", code="BadHeader")
        return value


def make_config(file: GgufFile) -> dict[str, Any]:
    """What transformers would have in config.json, the dtype aside. Raises StartupError: UnsupportedArchitecture,
    UnsupportedFormat (a rotary scaling or expert layers that cannot be expressed), BadHeader."""
    architecture = file.metadata.get("general.architecture")
    if architecture not in _ARCHITECTURES:
        known = " and ".join(_ARCHITECTURES)
        raise StartupError(
            f"{file.name}: the architecture {architecture!r} cannot be converted from GGUF ({known} can)",
            code="UnsupportedArchitecture",
        )
    keys = _Keys(file, architecture)
    if keys.get("expert_count", 0):
        raise StartupError(f"{file.name}: mixture-of-experts GGUF cannot be converted", code="UnsupportedFormat")
    if (embedding := file.tensors.get("token_embd.weight")) is None:
        raise StartupError(f"{file.name}: no tensor 'token_embd.weight'", code="MissingTensor")
    hidden_size, num_heads = keys.count("embedding_length"), keys.count("attention.head_count")
    head_dim = keys.count("attention.key_length", keys.count("rope.dimension_count", hidden_size // num_heads))
    config: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[architecture]],
        "model_type": architecture,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "intermediate_size": keys.count("feed_forward_length"),
        "max_position_embeddings": keys.count("context_length"),
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
        "num_attention_heads": num_heads,
        "num_hidden_layers": keys.count("block_count"),
        "num_key_value_heads": keys.count("attention.head_count_kv", num_heads),
        "rms_norm_eps": _shortest(keys.get("attention.layer_norm_rms_epsilon", 1e-5)),
        "rope_theta": _shortest(keys.get("rope.freq_base", 10000.0)),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "vocab_size": embedding.shape[0],
    }
    if architecture == "mistral":
        config["sliding_window"] = keys.get("attention.sliding_window")
    if (scaling := _rope_scaling(file, keys, config)) is not None:
        config["rope_scaling"] = scaling
    ids = {key: file.metadata.get(f"tokenizer.ggml.{key}") for key in ("bos_token_id", "eos_token_id")}
    return config | {key: value for key, value in ids.items() if value is not None}


def make_generation_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The ids that begin and end generation: the end of text, the end of a turn, and any control token with which the
    chat template closes a message."""
    tokens: list[str] = metadata.get("tokenizer.ggml.tokens", [])
    template: str = metadata.get("tokenizer.chat_template", "")
    ends = [metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
    ends += [tokens.index(closer) for closer in _CLOSERS if closer in template and closer in tokens]
    unique = list(dict.fromkeys(end for end in ends if end is not None))
    config: dict[str, Any] = {}
    if unique:
        config["eos_token_id"] = unique[0] if len(unique) == 1 else unique
    for key in ("bos", "padding"):
        if (found := metadata.get(f"tokenizer.ggml.{key}_token_id")) is not None:
            config["bos_token_id" if key == "bos" else "pad_token_id"] = found
    return config


def _rope_scaling(file: GgufFile, keys: _Keys, config: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = keys.get("rope.scaling.type", "none")
    if "rope_freqs.weight" in file.tensors:
        return _llama3_scaling(file, config)
    if kind == "none":
        return None
    factor = float(keys.get("rope.scaling.factor", 1.0))
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    original = keys.get("rope.scaling.original_context_length")
    if kind == "yarn" and isinstance(original, int):
        return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    raise StartupError(f"{file.name}: the rotary scaling {kind!r} cannot be converted", code="UnsupportedFormat")


def _llama3_scaling(file: GgufFile, config: Mapping[str, Any]) -> dict[str, Any]:
    """GGUF keeps the divisors of the frequencies, not the four numbers they came from. Three of those are the same in
    every release and the fourth is the largest divisor; checked by computing the divisors again."""
    num_pairs = int(config["head_dim"]) // 2
    stored = file.rows("rope_freqs.weight", np.arange(1))[0].astype(np.float64)
    factor, low, high, original = float(stored.max()), 1.0, 4.0, 8192
    wavelength = 2 * math.pi * float(config["rope_theta"]) ** (np.arange(num_pairs) / num_pairs)
    smooth = np.clip((original / wavelength - low) / (high - low), 0.0, 1.0)
    if len(stored) != num_pairs or not np.allclose(stored, 1 / ((1 - smooth) / factor + smooth), rtol=1e-3):
        raise StartupError(f"{file.name}: rotary factors of an unknown kind", code="UnsupportedFormat")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def _shortest(value: float) -> float:
    """The decimal that was meant: GGUF stores float32, and 1e-05 comes back as 9.99999974e-06."""
    return float(str(np.float32(value)))
