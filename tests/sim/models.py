"""Models to move about: random shards of a chosen size, served by the scripted backend, which reads none of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
from tokenizers import Tokenizer

from tickertape.testing.models import write_scripted
from tickertape.testing.tokenizers import write_byte_level

__all__ = ["NUM_SHARDS", "write_sharded"]

NUM_SHARDS: Final = 16
_PIECE_BYTES: Final = 1 << 22


def write_sharded(
    directory: Path, size_bytes: int, *, num_shards: int = NUM_SHARDS, seed: int = 0, token_s: float = 0.0
) -> Path:
    """A scripted model with weights of about `size_bytes`, which nothing compresses. "endless" in a prompt never ends,
    anything else comes back, a token every `token_s`."""
    write_byte_level(directory)
    end = Tokenizer.from_file(str(directory / "tokenizer.json")).token_to_id("<|im_end|>")
    assert end is not None
    plays: list[dict[str, Any]] = [
        {"when": list(b"endless"), "tokens": list(b"tick "), "then": "repeat"},
        {"echo": True},
    ]
    write_scripted(directory, plays, eos_token_id=end, max_model_len=1 << 16, token_s=token_s)
    (directory / "model.safetensors").unlink()
    rng = np.random.default_rng(seed)
    names = [f"model-{n:05}-of-{num_shards:05}.safetensors" for n in range(1, num_shards + 1)]
    for n, name in enumerate(names):
        _write_shard(directory / name, f"layer.{n}", size_bytes // num_shards, rng)
    index = {
        "metadata": {"total_size": size_bytes // num_shards * num_shards},
        "weight_map": {f"layer.{n}": name for n, name in enumerate(names)},
    }
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def _write_shard(path: Path, tensor: str, size_bytes: int, rng: np.random.Generator) -> None:
    header = json.dumps({tensor: {"dtype": "U8", "shape": [size_bytes], "data_offsets": [0, size_bytes]}}).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for start in range(0, size_bytes, _PIECE_BYTES):
            file.write(rng.bytes(min(_PIECE_BYTES, size_bytes - start)))
