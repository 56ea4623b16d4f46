"""From mapped tensors to a model: in place where the file has the type we compute in, through the library's own
renaming and merging, and with the sum known before anything is taken."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from safetensors import safe_open
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from tickertape.plugins import SCALE_SUFFIX, Progress, StartupError, WeightSet
from tickertape.plugins.backends.transformers.int8 import (
    Int8Layers,
    Int8Weight,
    expanded,
    int8_weight,
    mapped,
    put_in_place,
    scaled,
)
from tickertape.plugins.backends.transformers.library import one_line, quietly

__all__ = ["Footprint", "Stored", "footprint", "load_model", "own_names", "read_headers"]

_NO_LAYERS: Final = Int8Layers({}, {})
_TYPES: Final = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class Stored(NamedTuple):
    """A tensor as its file holds it."""

    dtype: str
    shape: tuple[int, ...]


class Footprint(NamedTuple):
    """`mapped_bytes` are used where they lie in the files; `private_bytes` are copies: tensors of another type, merged
    ones, and buffers that no file holds."""

    mapped_bytes: int
    private_bytes: int


def read_headers(directory: Path) -> dict[str, Stored]:
    """What the safetensors files of a model directory hold, by name. Reads no tensor."""
    found = {}
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                view = file.get_slice(name)
                found[name] = Stored(view.get_dtype(), tuple(view.get_shape()))
    return found


def own_names(skeleton: Any, stored: Iterable[str]) -> dict[str, str]:
    """Names of the files -> the model's own, of the tensors that become its tensors as they are: renamed at most."""
    transforms = get_model_conversion_mapping(skeleton)
    renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
    converters = [each for each in transforms if isinstance(each, WeightConverter)]
    state = skeleton.state_dict()
    found = {}
    for name in stored:
        own, converted = rename_source_key(name, renamings, converters, skeleton.base_model_prefix, state)
        own = own if own in state else name
        if own in state and converted is None:
            found[name] = own
    return found


def footprint(
    skeleton: Any, stored: Mapping[str, Stored], own: Mapping[str, str], layers: Int8Layers = _NO_LAYERS
) -> Footprint:
    """What loading `stored` into a model like `skeleton` (on the meta device, in the types it will have) will take.
    Tied tensors are counted once."""
    tensors: dict[int, torch.Tensor] = {}
    in_place: set[int] = set()
    int8: dict[int, bool] = {}  # whether they are mapped
    dtypes = {name: stored[key].dtype for key, name in own.items()}
    is_mapped = layers.is_mapped
    for name, tensor in _tensors(skeleton):
        tensors[id(tensor)] = tensor
        if name in dtypes and _TYPES.get(dtypes[name]) == tensor.dtype:
            in_place.add(id(tensor))
        if name in is_mapped:
            int8[id(tensor)] = is_mapped[name]
    sizes = {True: 0, False: 0}
    for key, tensor in tensors.items():
        size = tensor.numel() + 4 * tensor.shape[0] if key in int8 else tensor.nbytes
        sizes[int8.get(key, key in in_place)] += size
    return Footprint(sizes[True], sizes[False])


def load_model(
    model_class: Any,
    config: Any,
    weights: WeightSet,
    dtype: torch.dtype,
    attention: str,
    layers: Int8Layers = _NO_LAYERS,
) -> Generator[Progress, None, Any]:
    """Yields progress in bytes; returns the model, on the CPU and ready to compute, but for `layers`: their weights are
    of int8, and who computes with them must replace them.

    Tensors of type `dtype`, and of int8, stay where they are mapped. Raises StartupError: MissingTensor,
    UnexpectedTensor or BadTensor, naming the first few that are to blame, and OutOfRange.
    """
    scales = {name + SCALE_SUFFIX for name in weights.names() if weights.dtype(name) == "I8"}
    # As they lie in their files, and come when they are still being fetched.
    names = [name for name in weights.names() if name not in scales]
    if strange := [name for name in names if weights.dtype(name) not in (*_TYPES, "I8")]:
        raise StartupError(f"weights of a type that is not computed with: {_some(strange)}", code="BadTensor")
    tensors: dict[str, torch.Tensor] = {}
    narrow: dict[str, Int8Weight] = {}
    done, total = 0, sum(_size(weights, name) for name in names)
    for name in names:
        own = layers.stored.get(name) or layers.made.get(name)
        if own is not None:
            narrow[own] = int8_weight(weights, name) if name in layers.stored else scaled(name, _view(weights, name))
            # The library gets a shape, without the memory.
            tensors[name] = torch.zeros((), dtype=dtype).expand(weights.shape(name))
        elif weights.dtype(name) == "I8":
            tensors[name] = expanded(int8_weight(weights, name), dtype)
        else:
            tensors[name] = _view(weights, name)
        done += _size(weights, name)
        yield Progress("load", done, total)
    with quietly():
        try:
            model, report = model_class.from_pretrained(
                None,
                config=config,
                state_dict=tensors,
                dtype=dtype,
                attn_implementation=attention,
                # The library's grouped product knows no float64.
                experts_implementation="eager" if dtype == torch.float64 else None,
                ignore_mismatched_sizes=True,  # they are in the report, and refused below
                output_loading_info=True,
            )
        except (RuntimeError, ValueError) as error:
            raise StartupError(f"the weights do not fit the model: {one_line(error)}", code="BadTensor") from error
    _verify(report)
    put_in_place(model, narrow)
    return model.eval().requires_grad_(False)


def _verify(report: Mapping[str, Any]) -> None:
    """The library has left out already what it knows to be harmless."""
    if missing := report["missing_keys"]:
        raise StartupError(f"the model's files lack {_some(missing)}", code="MissingTensor")
    if mismatched := report["mismatched_keys"]:
        shapes = [f"{name} {tuple(found)} (not {tuple(wanted)})" for name, found, wanted in mismatched]
        raise StartupError(f"tensors of another shape than config.json says: {_some(shapes)}", code="BadTensor")
    if unexpected := report["unexpected_keys"]:
        raise StartupError(f"the model has no place for {_some(unexpected)}", code="UnexpectedTensor")


def _tensors(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _view(weights: WeightSet, name: str) -> torch.Tensor:
    tensor = mapped(weights, name)
    return tensor.view(torch.bfloat16) if weights.dtype(name) == "BF16" else tensor


def _size(weights: WeightSet, name: str) -> int:
    itemsize = _TYPES.get(weights.dtype(name), torch.int8).itemsize
    return int(torch.Size(weights.shape(name)).numel() * itemsize)


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:3]) + (f" and {len(ordered) - 3} more" if len(ordered) > 3 else "")
