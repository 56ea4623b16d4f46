"""A GGUF file turned into a model directory, tensor by tensor, in memory of a few megabytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from tickertape.core.errors import StartupError
from tickertape.core.ports import Progress
from tickertape.weights.gguf.architectures import IGNORED
from tickertape.weights.gguf.config import architecture_of, make_config, make_generation_config
from tickertape.weights.gguf.reader import GgufFile
from tickertape.weights.gguf.rotary import unpermuted_rows
from tickertape.weights.gguf.tokenizer import make_tokenizer
from tickertape.weights.ledger import Ledger
from tickertape.weights.objects import DigestWriter
from tickertape.weights.writer import to_bfloat16, write_tensors

__all__ = ["CONVERTER_VERSION", "convert_gguf"]

CONVERTER_VERSION: Final = "1"
"""Part of the recipe of what is made here: raise it whenever the output changes."""

_FLOAT32_BELOW_BYTES: Final = 1_000_000_000
_PIECE_BYTES: Final = 8 << 20  # of float32 values at a time


def convert_gguf(
    source: Path,
    target: Path,
    report: Callable[[Progress], None],
    *,
    float32_below_bytes: int = _FLOAT32_BELOW_BYTES,
    ledger: Ledger | None = None,
    make_room: Callable[[int], None] = lambda _: None,
    check: Callable[[dict[str, Any]], None] = lambda _: None,
) -> dict[str, str]:
    """Fills the empty directory `target` and returns the sha256 of each file in it, by name.

    Every quantisation that the `gguf` library knows is expanded: to float32 when the result stays below
    `float32_below_bytes`, else to bfloat16. Bytes written count as "derived" in `ledger`; before, `check` hears what
    config.json will be, and `make_room` is asked. Raises StartupError, naming the file, when it cannot be read or
    expressed, and what those two raise.
    """
    with GgufFile(source) as file:
        config = make_config(file)
        names = _names(file, config)
        num_values = sum(math.prod(file.tensors[name].shape) for name in names)
        narrow = num_values * 4 >= float32_below_bytes
        config["dtype"] = "bfloat16" if narrow else "float32"
        check(config)
        documents = {
            "config.json": config,
            "generation_config.json": make_generation_config(file.metadata),
            **make_tokenizer(file.name, file.metadata),
        }
        num_bytes = num_values * (2 if narrow else 4)
        make_room(num_bytes)
        digests = {name: _write_document(target / name, content) for name, content in documents.items()}
        with DigestWriter(target / "model.safetensors") as out:
            dtype = "BF16" if narrow else "F32"
            layout = {names[name]: (dtype, file.tensors[name].shape) for name in names}
            pieces = _pieces(file, names, config, narrow=narrow)
            write_tensors(out, layout, _reported(pieces, num_bytes, report))
            digests["model.safetensors"] = out.sha256
    if ledger is not None:
        ledger.received("derived", sum((target / name).stat().st_size for name in digests))
    return digests


def _names(file: GgufFile, config: dict[str, Any]) -> dict[str, str]:
    """GGUF name -> Hugging Face name, in file order. The model must be whole, and every tensor known and readable."""
    names, architecture = {}, architecture_of(file)
    for name, tensor in file.tensors.items():
        if name in IGNORED:
            continue
        if (renamed := architecture.hugging_face_name(name)) is None:
            raise StartupError(f"{file.name}: unknown tensor {name!r}", code="UnsupportedFormat")
        if not _readable(tensor.kind):
            raise StartupError(f"{file.name}: {name!r} has the type {tensor.kind.name}", code="UnsupportedFormat")
        names[name] = renamed
    _check_shapes(file, config)
    if len(file.metadata.get("tokenizer.ggml.tokens", ())) > config["vocab_size"]:
        raise StartupError(f"{file.name}: more tokens than the {config['vocab_size']} embeddings", code="BadHeader")
    return names


def _check_shapes(file: GgufFile, config: dict[str, Any]) -> None:
    hidden = config["hidden_size"]
    expected: dict[str, tuple[int, ...]] = {"output_norm.weight": (hidden,)}
    expected["token_embd.weight"] = (config["vocab_size"], hidden)
    if not config["tie_word_embeddings"]:
        expected["output.weight"] = (config["vocab_size"], hidden)
    shapes = architecture_of(file).layer_shapes(config)
    for layer in range(config["num_hidden_layers"]):
        expected.update({f"blk.{layer}.{part}": shape for part, shape in shapes.items()})
        if f"blk.{layer}.attn_norm.weight" not in file.tensors:
            break  # reported below; a wild layer count must not make a list of its own size
    for name, shape in expected.items():
        if name not in file.tensors:
            raise StartupError(f"{file.name}: no tensor {name!r}", code="MissingTensor")
        if file.tensors[name].shape != shape:
            found = list(file.tensors[name].shape)
            raise StartupError(f"{file.name}: {name!r} is {found}, not {list(shape)}", code="BadHeader")


def _pieces(
    file: GgufFile, names: dict[str, str], config: dict[str, Any], *, narrow: bool
) -> Iterator[npt.NDArray[Any]]:
    architecture = architecture_of(file)
    counts = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    heads = counts if architecture.interleaved else {}
    for name in names:
        tensor = file.tensors[name]
        rows = unpermuted_rows(name, tensor.num_rows, heads) if len(tensor.shape) > 1 else np.arange(1)
        step = max(1, _PIECE_BYTES // (4 * tensor.shape[-1]))
        for first in range(0, len(rows), step):
            values = file.rows(name, rows[first : first + step])
            if len(tensor.shape) == 1:  # a bias is permuted along its only dimension
                values = values[:, unpermuted_rows(name, tensor.shape[0], heads)]
            if architecture.norm_offset and name.endswith("norm.weight"):
                values = values - np.float32(architecture.norm_offset)
            yield to_bfloat16(values) if narrow else values


def _reported(
    pieces: Iterator[npt.NDArray[Any]], total: int, report: Callable[[Progress], None]
) -> Iterator[npt.NDArray[Any]]:
    done = 0
    report(Progress("convert", done, total))
    for piece in pieces:
        yield piece
        done += piece.nbytes
        report(Progress("convert", done, total))


def _write_document(path: Path, content: Any) -> str:
    raw = content if isinstance(content, bytes) else msgspec.json.format(msgspec.json.encode(content), indent=2)
    with DigestWriter(path) as out:
        out.write(raw)
        return out.sha256


def _readable(kind: GGMLQuantizationType) -> bool:
    """Whether the library can expand it: tried on one block of zeros."""
    try:
        quants.dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True
