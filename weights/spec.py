"""What a model directory says about its model, checked before any worker starts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

from tickertape.core.backend import ModelSpec
from tickertape.core.errors import StartupError
from tickertape.weights.shards import Shards, read_shards

__all__ = ["read_spec", "served_name", "spec_of"]

_LENGTHS: Final = (
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
)
_DTYPES: Final = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_BESIDE_THE_PATH: Final = re.compile(r"[?#].*$")
_REVISION: Final = re.compile(r"@(?:refs/(?:pr|convert)/)?[^/]*")
_QUANTISED = re.compile(r"[._-](i?q\d\w*|tq\d_\d|b?f16|f32|mxfp4\w*|nvfp4)$", re.IGNORECASE)


def served_name(model: str) -> str:
    """The one name a model gets by where it came from: the last part of its path or URI (without revision, query and
    fragment, which may be secret); of a GGUF file, without the extension and the quantisation; of a safetensors file,
    its directory's."""
    scheme, is_uri, where = model.rpartition("://")
    if is_uri:
        where = _BESIDE_THE_PATH.sub("", where)
    if scheme == "hf":
        where = _REVISION.sub("", where)
    path = Path(where).absolute()
    name = path.parent.name if path.suffix == ".safetensors" else path.name
    if name.endswith(".gguf"):
        name = _QUANTISED.sub("", name.removesuffix(".gguf"))
    return name or "model"


def read_spec(directory: Path, name: str, opened: Mapping[Path, int] = MappingProxyType({})) -> ModelSpec:
    """Reads config.json and the headers of all weight files, of `opened` ones through their descriptors.

    Raises StartupError with one line and a code: PathNotFound, NotAModel (no directory, no config.json, one that is
    not a model's), BadConfig (a number that cannot be), and what `read_shards` raises.
    """
    directory = directory.absolute()
    if not directory.exists():
        raise StartupError(f"path not found: {directory}", code="PathNotFound")
    if not directory.is_dir():
        raise StartupError(f"{directory.name}: not a model directory", code="NotAModel")
    config = _read_config(directory)
    shards = read_shards(directory, opened)
    return spec_of(config, directory, name, dtype=_dtype(shards), weight_bytes=shards.weight_bytes)


def spec_of(config: Mapping[str, Any], directory: Path, name: str, *, dtype: str, weight_bytes: int = 0) -> ModelSpec:
    """What config.json says of a model. Raises StartupError: NotAModel, BadConfig."""
    return ModelSpec(
        name=name,
        path=str(directory),
        architecture=_architecture(config),
        config=config,
        weight_bytes=weight_bytes,
        dtype=dtype,
        max_model_len=_max_model_len(config),
        vocab_size=_positive(config, "vocab_size"),
    )


def _read_config(directory: Path) -> dict[str, Any]:
    path = directory / "config.json"
    if not path.is_file():
        if ggufs := sorted(directory.glob("*.gguf")):
            raise StartupError(
                f"{ggufs[0].name}: not converted; name this file, not its directory", code="UnsupportedFormat"
            )
        raise StartupError(f"{directory.name or directory}: no config.json, so not a model directory", code="NotAModel")
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise StartupError(f"config.json: {error}", code="NotAModel") from error


def _architecture(config: Mapping[str, Any]) -> str:
    match config.get("architectures"):
        case [str(name), *_]:
            return name
    raise StartupError("config.json: names no architecture", code="NotAModel")


def _max_model_len(config: Mapping[str, Any]) -> int:
    text = _text(config)
    key = next((key for key in _LENGTHS if text.get(key) is not None), _LENGTHS[0])
    length = _positive(config, key)
    match text.get("rope_scaling") or text.get("rope_parameters"):
        case {
            "rope_type": "yarn" | "linear",
            "factor": int() | float() as factor,
            "original_max_position_embeddings": original,
        } if factor >= 1:
            if isinstance(original, int):
                length = max(length, int(original * factor))
    return length


def _positive(config: Mapping[str, Any], key: str) -> int:
    value = _text(config).get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        shown = "missing" if value is None else f"{value!r}, not a positive number"
        raise StartupError(f"config.json: {key} is {shown}", code="BadConfig")
    return value


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part about the language model: models that also see or hear nest it."""
    nested = config.get("text_config")
    return {**config, **nested} if isinstance(nested, Mapping) else config


def _dtype(shards: Shards) -> str:
    """The float type that most of the bytes have."""
    sizes: Counter[str] = Counter()
    for _, info in shards.tensors.values():
        if info.dtype in _DTYPES:
            sizes[info.dtype] += info.size_bytes
    return _DTYPES[sizes.most_common(1)[0][0]] if sizes else "float32"
