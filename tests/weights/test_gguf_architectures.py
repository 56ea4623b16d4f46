"""GGUF of every architecture that is converted: a random model of the transformers library, written as llama.cpp's
converter writes it, computes the same when it comes back. The names are those of the `gguf` library's own map."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
)

from tickertape.core.errors import StartupError
from tickertape.weights.gguf.architectures import ARCHITECTURES
from tickertape.weights.gguf.convert import convert_gguf
from tickertape.weights.spec import read_spec

COMMON = {
    "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 2, "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": 0, "pad_token_id": 0,
}  # fmt: skip
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8}

CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig(**COMMON, tie_word_embeddings=True),
    "mistral": MistralConfig(**COMMON, sliding_window=8),
    "granite": GraniteConfig(
        **COMMON, embedding_multiplier=3.0, attention_multiplier=0.2, residual_multiplier=0.3, logits_scaling=4.0
    ),
    "qwen2": Qwen2Config(**COMMON, rope_theta=5e4),
    "qwen3": Qwen3Config(**COMMON, head_dim=32, tie_word_embeddings=True),
    "phi3": Phi3Config(**COMMON, sliding_window=8, partial_rotary_factor=0.75, original_max_position_embeddings=128),
    "gemma2": Gemma2Config(**COMMON, **GEMMA, attn_logit_softcapping=20.0, final_logit_softcapping=10.0),
    "gemma3": Gemma3TextConfig(**COMMON | {"num_hidden_layers": 7}, **GEMMA),  # the sixth layer sees everything
}


def random_model(config: Any) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.ndim == 1:  # norms and biases are constants in a fresh model, and would show nothing
                weights += torch.randn_like(weights) * 0.3
            elif "embed" not in name:
                weights *= 5
    return model


def write(path: Path, model: Any, name: str, change: Callable[[Any], None] = lambda _: None, skip: str = "-") -> Path:
    config = model.config
    writer = gguf.GGUFWriter(path, name)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    _particular(writer, name, config)
    change(writer)
    tokens = ["<eos>", "<bos>", *(f"t{i}" for i in range(298))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 300)
    writer.add_token_types([3, 3, *([1] * 298)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_pad_token_id(0)
    # "mistral" is what some converters wrote; the map knows that layout as llama's.
    known = {text: key for key, text in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(known["llama" if name == "mistral" else name], config.num_hidden_layers)
    for theirs, weights in model.state_dict().items():
        if config.tie_word_embeddings and theirs == "lm_head.weight":
            continue
        stem, _, kind = theirs.rpartition(".")
        values = weights.numpy()
        if name in ("llama", "mistral", "granite"):
            for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
                if stem.endswith(part):
                    values = values.reshape(heads, 2, -1, values.shape[-1]).swapaxes(1, 2).reshape(values.shape)
        if name in ("gemma2", "gemma3") and theirs.endswith("norm.weight"):
            values = values + 1
        found = f"{names.get_name(stem)}.{kind}"
        if found != skip:
            writer.add_tensor(found, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _particular(writer: Any, name: str, config: Any) -> None:
    if name in ("qwen3", "gemma2", "gemma3"):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if name in ("mistral", "phi3", "gemma2", "gemma3"):
        writer.add_sliding_window(config.sliding_window)
    if name in ("llama", "mistral", "granite"):
        writer.add_rope_dimension_count(16)
    if name == "phi3":
        writer.add_rope_dimension_count(12)
        writer.add_rope_scaling_orig_ctx_len(128)
    if name == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if name == "granite":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)


def convert(source: Path) -> Path:
    target = source.with_suffix(".model")
    target.mkdir()
    convert_gguf(source, target, lambda _: None)
    return target


def test_every_architecture_is_tested() -> None:
    assert set(CONFIGS) == set(ARCHITECTURES)


@pytest.mark.parametrize("name", CONFIGS)
def test_it_computes_the_same(tmp_path: Path, name: str) -> None:
    model = random_model(CONFIGS[name])
    directory = convert(write(tmp_path / "m.gguf", model, name))
    loaded, report = AutoModelForCausalLM.from_pretrained(
        directory, output_loading_info=True, attn_implementation="eager"
    )
    assert not report["missing_keys"] | report["unexpected_keys"] | report["mismatched_keys"]
    assert type(loaded) is type(model)
    assert read_spec(directory, "m").architecture == type(model).__name__
    ids = torch.arange(40)[None] * 7 % 300
    with torch.no_grad():
        expected, found = model(ids).logits, loaded.eval()(ids).logits
    assert expected.std() > 0.1  # a model that computes nothing would show nothing
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("qwen2", "blk.1.attn_q.bias"),
        ("qwen3", "blk.1.attn_k_norm.weight"),
        ("phi3", "blk.0.attn_qkv.weight"),
        ("gemma2", "blk.0.post_ffw_norm.weight"),
    ],
)
def test_a_tensor_that_is_missing_is_named(tmp_path: Path, name: str, tensor: str) -> None:
    with pytest.raises(StartupError) as caught:
        convert(write(tmp_path / "m.gguf", random_model(CONFIGS[name]), name, skip=tensor))
    assert caught.value.code == "MissingTensor"
    assert tensor in caught.value.message


def test_a_bias_that_the_architecture_does_not_have_is_refused(tmp_path: Path) -> None:
    def change(writer: Any) -> None:
        writer.add_tensor("blk.0.attn_q.bias", np.zeros(128, np.float32))

    with pytest.raises(StartupError) as caught:
        convert(write(tmp_path / "m.gguf", random_model(CONFIGS["qwen3"]), "qwen3", change))
    assert caught.value.code == "UnsupportedFormat"
    assert "attn_q.bias" in caught.value.message


@pytest.mark.parametrize(("name", "layers", "scalar"), [("gemma2", 46, 64 // 4), ("gemma3", 62, 64 // 4)])
def test_the_largest_gemmas_scale_by_width(tmp_path: Path, name: str, layers: int, scalar: int) -> None:
    """llama.cpp tells them by their number of layers, since GGUF has no key for it."""
    parameters = CONFIGS[name].to_dict() | {"num_hidden_layers": layers, "head_dim": 8, "layer_types": None}
    directory = convert(write(tmp_path / "m.gguf", random_model(type(CONFIGS[name])(**parameters)), name))
    assert json.loads((directory / "config.json").read_text())["query_pre_attn_scalar"] == scalar


def test_gemma3_scales_its_full_layers_alone(tmp_path: Path) -> None:
    def change(writer: Any) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(8.0)

    directory = convert(write(tmp_path / "m.gguf", random_model(CONFIGS["gemma3"]), "gemma3", change))
    rope = AutoModelForCausalLM.from_pretrained(directory).config.rope_parameters
    assert rope["full_attention"] == {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0}
    assert rope["sliding_attention"] == {"rope_type": "default", "rope_theta": 10_000.0}
