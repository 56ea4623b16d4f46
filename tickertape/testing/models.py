"""Tiny models made on the fly: random Llamas and their like, and scripted ones. Writes what a model directory holds,
tokenizer files aside."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from tickertape.plugins import ModelSpec, WeightSet
from tickertape.weights.mapping import MappedWeights
from tickertape.weights.spec import read_spec

__all__ = ["model_spec", "model_weights", "plain_model", "write_llama", "write_scripted"]


def model_spec(directory: str | Path) -> ModelSpec:
    """What a model directory holds, named after it. Raises StartupError when that is no model."""
    directory = Path(directory).absolute()
    return read_spec(directory, directory.name)


def model_weights(spec: ModelSpec) -> WeightSet:
    """The tensors of a model, mapped; close them."""
    return MappedWeights(Path(spec.path))


def write_llama(directory: Path, *, seed: int = 0, dtype: str = "float64", **config: Any) -> ModelSpec:
    """A random Llama of two layers and 64 hidden dimensions; `config` overrides entries of config.json. With
    architecture MistralForCausalLM (and sliding_window) or MinistralForCausalLM (and layer_types) it is one of those.

    The weights are larger than an initialiser's, so that greedy text varies and a wrong position or window shows.
    """
    settings: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 199,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "eos_token_id": 0,
        "bos_token_id": 1,
    }
    settings |= config
    settings["model_type"] = settings["architectures"][0].removesuffix("ForCausalLM").lower()
    rng = np.random.default_rng(seed)
    tensors = {name: _random(rng, shape).astype(dtype) for name, shape in _llama_tensors(settings).items()}
    return _write(directory, settings, tensors)


def write_scripted(
    directory: Path,
    plays: Sequence[Mapping[str, Any]],
    *,
    vocab_size: int = 512,
    max_model_len: int = 2048,
    eos_token_id: int = 2,
    **script: Any,
) -> ModelSpec:
    """A model of the scripted backend; its plays and its times (`token_s`, `chunk_s`) as that backend describes. Its
    weights are one number, since a model directory without weights is refused."""
    config = {
        "architectures": ["ScriptedForCausalLM"],
        "model_type": "scripted",
        "vocab_size": vocab_size,
        "max_position_embeddings": max_model_len,
        "eos_token_id": eos_token_id,
        "script": {"plays": list(plays), **script},
    }
    return _write(directory, config, {"unused": np.zeros(1, np.float32)})


def plain_model(spec: ModelSpec, dtype: str = "float64") -> Callable[[Sequence[int]], NDArray[np.float64]]:
    """transformers' own model of the directory, eager, one sequence at a time and without a cache: token ids [T] to
    logits [T, V]. Needs torch and transformers."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        spec.path,
        dtype=getattr(torch, dtype),
        attn_implementation="eager",
        experts_implementation="eager",  # the others know no float64
    ).eval()

    def logits(ids: Sequence[int]) -> NDArray[np.float64]:
        with torch.inference_mode():
            output = model(input_ids=torch.tensor([list(ids)]), use_cache=False)
        found: NDArray[np.float64] = output.logits[0].double().numpy()
        return found

    return logits


def _llama_tensors(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads = config["num_attention_heads"] * config["head_dim"]
    kv_heads = config["num_key_value_heads"] * config["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, hidden)
    for i in range(config["num_hidden_layers"]):
        shapes |= {
            f"model.layers.{i}.input_layernorm.weight": (hidden,),
            f"model.layers.{i}.self_attn.q_proj.weight": (heads, hidden),
            f"model.layers.{i}.self_attn.k_proj.weight": (kv_heads, hidden),
            f"model.layers.{i}.self_attn.v_proj.weight": (kv_heads, hidden),
            f"model.layers.{i}.self_attn.o_proj.weight": (hidden, heads),
            f"model.layers.{i}.post_attention_layernorm.weight": (hidden,),
            f"model.layers.{i}.mlp.gate_proj.weight": (inner, hidden),
            f"model.layers.{i}.mlp.up_proj.weight": (inner, hidden),
            f"model.layers.{i}.mlp.down_proj.weight": (hidden, inner),
        }
    return shapes


def _random(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Norms near 1; projections that keep the size of what they are given, or a little more."""
    if len(shape) == 1:
        return 1 + 0.2 * rng.standard_normal(shape)
    return rng.standard_normal(shape) * (1.5 / math.sqrt(shape[1]))


def _write(directory: Path, config: Mapping[str, Any], tensors: dict[str, NDArray[Any]]) -> ModelSpec:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return read_spec(directory, directory.name)
