"""Builders of tiny model files. They write the formats by other means than the code under test reads them."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from tokenizers import pre_tokenizers

Tensors = Mapping[str, npt.NDArray[Any]]

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "max_position_embeddings": 128,
    "vocab_size": 32,
    "hidden_size": 8,
}
DTYPES = {"float32": "F32", "float16": "F16", "uint16": "BF16", "int64": "I64", "bool": "BOOL", "uint8": "U8"}
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def safetensors_bytes(tensors: Tensors) -> bytes:
    header, body = {}, b""
    for name, values in tensors.items():
        offsets = [len(body), len(body) + values.nbytes]
        header[name] = {"dtype": DTYPES[str(values.dtype)], "shape": list(values.shape), "data_offsets": offsets}
        body += values.tobytes()
    raw = json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + body


class Models:
    """Writes model directories under a temporary one."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def directory(self, name: str, files: Mapping[str, Tensors], **more: Any) -> Path:
        """A directory with config.json and safetensors files; `more` are further files: text, bytes or JSON."""
        directory = self.root / name
        directory.mkdir(parents=True)
        (directory / "config.json").write_text(json.dumps(CONFIG))
        for file, tensors in files.items():
            (directory / file).write_bytes(safetensors_bytes(tensors))
        for file, content in more.items():
            raw = content if isinstance(content, bytes) else json.dumps(content).encode()
            (directory / file).write_bytes(raw)
        return directory

    def sharded(self, name: str, files: Mapping[str, Tensors], weight_map: Mapping[str, str]) -> Path:
        return self.directory(name, files, **{"model.safetensors.index.json": {"weight_map": weight_map}})


@pytest.fixture
def models(tmp_path: Path) -> Models:
    return Models(tmp_path / "models")


def llama_tensors(
    *, hidden: int = 64, layers: int = 2, heads: int = 4, kv_heads: int = 2, vocab: int = 300, seed: int = 0
) -> dict[str, npt.NDArray[np.float32]]:
    """Random weights of a llama under their Hugging Face names."""
    random = np.random.default_rng(seed)
    kv, inner = hidden // heads * kv_heads, hidden * 2
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    for layer in range(layers):
        parts = {
            "input_layernorm": (hidden,), "self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden), "self_attn.o_proj": (hidden, hidden),
            "post_attention_layernorm": (hidden,), "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }  # fmt: skip
        shapes.update({f"model.layers.{layer}.{part}.weight": shape for part, shape in parts.items()})
    return {name: random.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}


def gguf_name(name: str) -> str:
    renames = {
        "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "model.layers": "blk",
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.o_proj": "attn_output",
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    }  # fmt: skip
    for ours, theirs in renames.items():
        name = name.replace(ours, theirs)
    return name


def byte_level_vocabulary(extra: int = 300) -> tuple[list[str], list[int], list[str]]:
    """Tokens, types and merges: three control tokens, all bytes, a few merges, filled up to `extra` tokens."""
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "Ġ Ġ"]
    tokens = [*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in merges)]
    kinds = [3] * len(SPECIALS) + [1] * (len(tokens) - len(SPECIALS))
    fill = [f"[PAD{i}]" for i in range(extra - len(tokens))]
    return tokens + fill, kinds + [5] * len(fill), merges


class Ggufs:
    """Writes GGUF files with the library's own writer."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(
        self,
        name: str = "tiny.gguf",
        *,
        tensors: Tensors | None = None,
        sizes: tuple[int, int, int, int] | None = None,
        kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
        architecture: str = "llama",
        heads: int = 4,
        kv_heads: int = 2,
        change: Callable[[gguf.GGUFWriter], None] = lambda _: None,
        tokenizer: bool = True,
        tokens: int | None = None,
        pre: str = "smollm",
    ) -> Path:
        """As many tokens as embeddings unless `tokens` says otherwise; `change` may add to the file. With `sizes`
        (tokens, width, inner width, layers) it adds all tensors."""
        if sizes is None:
            tensors = llama_tensors() if tensors is None else tensors
            vocab, hidden = tensors["model.embed_tokens.weight"].shape
            inner = tensors["model.layers.0.mlp.up_proj.weight"].shape[0]
            layers = sum(name.endswith("q_proj.weight") for name in tensors)
        else:
            tensors, (vocab, hidden, inner, layers) = {}, sizes
        self.root.mkdir(parents=True, exist_ok=True)
        writer = gguf.GGUFWriter(self.root / name, architecture)
        writer.add_context_length(256)
        writer.add_embedding_length(hidden)
        writer.add_feed_forward_length(inner)
        writer.add_block_count(layers)
        writer.add_head_count(heads)
        writer.add_head_count_kv(kv_heads)
        writer.add_rope_freq_base(10000.0)
        writer.add_layer_norm_rms_eps(1e-5)
        if tokenizer:
            texts, kinds, merges = byte_level_vocabulary(tokens or vocab)
            writer.add_tokenizer_model("gpt2")
            writer.add_tokenizer_pre(pre)
            writer.add_token_list(texts)
            writer.add_token_types(kinds)
            writer.add_token_merges(merges)
            writer.add_bos_token_id(1)
            writer.add_eos_token_id(0)
            writer.add_pad_token_id(0)
            writer.add_chat_template(TEMPLATE)
        change(writer)
        for ours, values in tensors.items():
            self._add(writer, ours, values, kind, heads, kv_heads)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return self.root / name

    def _add(
        self,
        writer: gguf.GGUFWriter,
        name: str,
        values: npt.NDArray[Any],
        kind: gguf.GGMLQuantizationType,
        heads: int,
        kv_heads: int,
    ) -> None:
        for part, count in (("q_proj", heads), ("k_proj", kv_heads)):
            if part in name:  # what llama.cpp's converter does to the rotary projections
                halves = values.reshape(count, 2, -1, *values.shape[1:])
                values = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))
        if values.ndim == 1 or kind == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(gguf_name(name), values)
        elif kind == gguf.GGMLQuantizationType.F16:
            writer.add_tensor(gguf_name(name), values.astype(np.float16))
        else:
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(values, kind), raw_dtype=kind)


@pytest.fixture
def ggufs(tmp_path: Path) -> Ggufs:
    return Ggufs(tmp_path / "gguf")


class Wheels:
    """A folder of wheels that pip can be pointed at."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.root.mkdir()

    @property
    def pip_options(self) -> tuple[str, ...]:
        return ("--no-index", "--find-links", str(self.root))

    def add(
        self, package: str, version: str, files: Mapping[str, bytes], recorded: Mapping[str, bytes] | None = None
    ) -> Path:
        """`recorded` are contents whose digests RECORD gives, where they are to differ from what is in the wheel."""
        stem = f"{package.replace('-', '_')}-{version}"
        path = self.root / f"{stem}-py3-none-any.whl"
        meta = {
            f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n".encode(),
            f"{stem}.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        lines = []
        for name, content in {**files, **meta, **(recorded or {})}.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(content)}")
        lines.append(f"{stem}.dist-info/RECORD,,")
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in {**files, **meta}.items():
                archive.writestr(name, content)
            archive.writestr(f"{stem}.dist-info/RECORD", "\n".join(lines) + "\n")
        return path


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheels:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")  # the machine's own index has no say
    return Wheels(tmp_path / "wheels")
