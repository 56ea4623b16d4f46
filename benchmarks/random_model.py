"""Writes a Llama of random weights in a wanted shape: for speed alone, its text means nothing.

    python benchmarks/random_model.py OUT --tokenizer-from DIR [--layers 16 --hidden 2048 --inner 8192 --heads 32 ...]

The defaults are a model of 1.07 B parameters. The vocabulary is the tokenizer's. Written tensor by tensor, so that
memory does not bound the size.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SHARED = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
PIECE = 1 << 22  # numbers made at once


def main() -> None:
    options = _parser().parse_args()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    for name in SHARED:
        shutil.copyfile(options.tokenizer_from / name, out / name)
    like = json.loads((options.tokenizer_from / "config.json").read_text())
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": like["vocab_size"],
        "bos_token_id": like.get("bos_token_id"),
        "eos_token_id": like.get("eos_token_id"),
        "hidden_size": options.hidden,
        "intermediate_size": options.inner,
        "num_hidden_layers": options.layers,
        "num_attention_heads": options.heads,
        "num_key_value_heads": options.kv_heads,
        "head_dim": options.hidden // options.heads,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
    }
    (out / "config.json").write_text(json.dumps(config, indent=2))
    num_bytes = _write(out / "model.safetensors", _shapes(options, config["vocab_size"]))
    print(f"{out}: {num_bytes / 4e9:.2f} B parameters, float32")


def _shapes(options: argparse.Namespace, vocab_size: int) -> dict[str, tuple[int, ...]]:
    hidden, kv = options.hidden, options.hidden // options.heads * options.kv_heads
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab_size, hidden)}
    for i in range(options.layers):
        at = f"model.layers.{i}"
        shapes |= {
            f"{at}.input_layernorm.weight": (hidden,),
            f"{at}.self_attn.q_proj.weight": (hidden, hidden),
            f"{at}.self_attn.k_proj.weight": (kv, hidden),
            f"{at}.self_attn.v_proj.weight": (kv, hidden),
            f"{at}.self_attn.o_proj.weight": (hidden, hidden),
            f"{at}.post_attention_layernorm.weight": (hidden,),
            f"{at}.mlp.gate_proj.weight": (options.inner, hidden),
            f"{at}.mlp.up_proj.weight": (options.inner, hidden),
            f"{at}.mlp.down_proj.weight": (hidden, options.inner),
        }
    return shapes | {"model.norm.weight": (hidden,)}


def _write(path: Path, shapes: dict[str, tuple[int, ...]]) -> int:
    header: dict[str, object] = {}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in shapes.values():
            for piece in _values(rng, shape):
                file.write(piece.data)
    return end


def _values(rng: np.random.Generator, shape: tuple[int, ...]) -> Iterator[NDArray[np.float32]]:
    """Norms are ones; the rest is small enough that activations stay finite."""
    left = int(np.prod(shape))
    while left:
        count = min(left, PIECE)
        left -= count
        if len(shape) == 1:
            yield np.ones(count, np.float32)
        else:
            yield rng.standard_normal(count, np.float32) * np.float32(shape[1] ** -0.5)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokenizer-from", type=Path, required=True)
    for name, default in (("layers", 16), ("hidden", 2048), ("inner", 8192), ("heads", 32), ("kv-heads", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser


if __name__ == "__main__":
    main()
