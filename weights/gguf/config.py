"""config.json and generation_config.json of a GGUF file."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from tickertape.core.errors import StartupError
from tickertape.weights.gguf.architectures import ARCHITECTURES, Architecture
from tickertape.weights.gguf.reader import GgufFile

__all__ = ["architecture_of", "make_config", "make_generation_config"]

_GEMMA_27B_LAYERS: Final = {"gemma2": 46, "gemma3": 62}
_GEMMA3_LOCAL_BASE: Final = 10_000.0
_GEMMA3_PATTERN: Final = 6
_CLOSERS: Final = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>")


class _Keys:
    """The metadata under one architecture's prefix. Raises StartupError, code BadHeader, for what must be there."""

    def __init__(self, file: GgufFile, prefix: str) -> None:
        self._file = file
        self.prefix = prefix

    def get(self, key: str, default: Any = None) -> Any:
        return self._file.metadata.get(f"{self.prefix}.{key}", default)

    def count(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if not isinstance(value, int) or value < 1:
            raise StartupError(f"{self._file.name}: {self.prefix}.{key} is {value!s:.40}", code="BadHeader")
        return value


def architecture_of(file: GgufFile) -> Architecture:
    """Raises StartupError, code UnsupportedArchitecture, or UnsupportedFormat for a part of a file that was split."""
    if (num_parts := file.metadata.get("split.count", 1)) not in (0, 1):
        raise StartupError(
            f"{file.name}: one of {num_parts} parts; merge them first (llama-gguf-split --merge)",
            code="UnsupportedFormat",
        )
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        *most, last = ARCHITECTURES
        raise StartupError(
            f"{file.name}: the architecture {name!r} cannot be converted from GGUF ({', '.join(most)} and {last} can)",
            code="UnsupportedArchitecture",
        )
    return ARCHITECTURES[name]


def make_config(file: GgufFile) -> dict[str, Any]:
    """What transformers would have in config.json, the dtype aside. Raises StartupError: UnsupportedArchitecture,
    UnsupportedFormat (a rotary scaling or expert layers that cannot be expressed), BadHeader."""
    architecture = architecture_of(file)
    keys = _Keys(file, file.metadata["general.architecture"])
    if keys.get("expert_count", 0):
        raise StartupError(f"{file.name}: mixture-of-experts GGUF cannot be converted", code="UnsupportedFormat")
    if (embedding := file.tensors.get("token_embd.weight")) is None:
        raise StartupError(f"{file.name}: no tensor 'token_embd.weight'", code="MissingTensor")
    hidden_size, num_heads = keys.count("embedding_length"), keys.count("attention.head_count")
    head_dim = hidden_size // num_heads
    if architecture.interleaved:  # of the llama family, where all of a head is rotated
        head_dim = keys.count("rope.dimension_count", head_dim)
    config: dict[str, Any] = {
        "architectures": [architecture.model_class],
        "model_type": architecture.model_type,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "head_dim": keys.count("attention.key_length", head_dim),
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
    if (scaling := _rope_scaling(file, keys, config)) is not None:
        config["rope_scaling"] = scaling
    ids = {key: file.metadata.get(f"tokenizer.ggml.{key}") for key in ("bos_token_id", "eos_token_id")}
    config |= {key: value for key, value in ids.items() if value is not None}
    return config | _PARTICULARS.get(architecture.model_type, _nothing)(file, keys, config)


def _nothing(file: GgufFile, keys: _Keys, config: Mapping[str, Any]) -> dict[str, Any]:
    return {}


def _mistral(file: GgufFile, keys: _Keys, config: Mapping[str, Any]) -> dict[str, Any]:
    return {"sliding_window": keys.get("attention.sliding_window")}


def _granite(file: GgufFile, keys: _Keys, config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "attention_multiplier": _shortest(keys.get("attention.scale", config["head_dim"] ** -0.5)),
        "embedding_multiplier": _shortest(keys.get("embedding_scale", 1.0)),
        "residual_multiplier": _shortest(keys.get("residual_scale", 1.0)),
        "logits_scaling": _shortest(keys.get("logit_scale", 1.0)),
    }


def _phi3(file: GgufFile, keys: _Keys, config: Mapping[str, Any]) -> dict[str, Any]:
    length, head_dim = config["max_position_embeddings"], config["head_dim"]
    return {
        "original_max_position_embeddings": keys.count("rope.scaling.original_context_length", length),
        "pad_token_id": file.metadata.get("tokenizer.ggml.padding_token_id"),
        "partial_rotary_factor": keys.count("rope.dimension_count", head_dim) / head_dim,
        "sliding_window": keys.get("attention.sliding_window"),
    }


def _gemma(file: GgufFile, keys: _Keys, config: Mapping[str, Any]) -> dict[str, Any]:
    largest = config["num_hidden_layers"] == _GEMMA_27B_LAYERS[keys.prefix]
    scalar = config["hidden_size"] // config["num_attention_heads"] if largest else config["head_dim"]
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "pad_token_id": file.metadata.get("tokenizer.ggml.padding_token_id"),
        "query_pre_attn_scalar": scalar,
        "sliding_window": keys.count("attention.sliding_window"),
    }


def _gemma2(file: GgufFile, keys: _Keys, config: Mapping[str, Any]) -> dict[str, Any]:
    return _gemma(file, keys, config) | {
        "attn_logit_softcapping": _shortest(keys.get("attn_logit_softcapping", 50.0)),
        "final_logit_softcapping": _shortest(keys.get("final_logit_softcapping", 30.0)),
    }


def _gemma3(file: GgufFile, keys: _Keys, config: Mapping[str, Any]) -> dict[str, Any]:
    if keys.get("attention.sliding_window_pattern", _GEMMA3_PATTERN) != _GEMMA3_PATTERN:
        raise StartupError(f"{file.name}: windows in an unknown pattern", code="UnsupportedFormat")
    full = {"rope_type": "default", **config.get("rope_scaling", {}), "rope_theta": config["rope_theta"]}
    local = {"rope_type": "default", "rope_theta": _shortest(keys.get("rope.freq_base_swa", _GEMMA3_LOCAL_BASE))}
    cap = keys.get("final_logit_softcapping")
    return _gemma(file, keys, config) | {
        "final_logit_softcapping": None if cap is None else _shortest(cap),
        "rope_parameters": {"full_attention": full, "sliding_attention": local},
        "rope_scaling": None,
        "sliding_window_pattern": _GEMMA3_PATTERN,
    }


_PARTICULARS: Final[Mapping[str, Callable[[GgufFile, _Keys, Mapping[str, Any]], dict[str, Any]]]] = {
    "mistral": _mistral, "granite": _granite, "phi3": _phi3, "gemma2": _gemma2, "gemma3_text": _gemma3,
}  # fmt: skip


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
    if any(name.startswith("rope_factors_") for name in file.tensors):
        raise StartupError(f"{file.name}: the rotary scaling 'longrope' cannot be converted", code="UnsupportedFormat")
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
