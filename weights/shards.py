"""Which file of a model directory holds which tensor, and what is wrong when none does."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec
from msgspec import Struct

from tickertape.core.errors import StartupError
from tickertape.weights.header import Header, TensorInfo, read_header

__all__ = ["INDEX", "Shards", "read_shards"]

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_NONE: Mapping[Path, int] = MappingProxyType({})
_NUMBERED = re.compile(r"^(?P<stem>.+)-(?P<part>\d+)-of-(?P<parts>\d+)\.safetensors$")


class Shards(Struct, frozen=True):
    """The tensors of a model directory: name -> (file, where in it), and the header of each file. A tensor that a
    file holds although the index gives it to another file is not among them."""

    tensors: dict[str, tuple[Path, TensorInfo]]
    headers: dict[Path, Header]

    @property
    def weight_bytes(self) -> int:
        return sum(info.size_bytes for _, info in self.tensors.values())


class _Index(Struct, frozen=True):
    weight_map: dict[str, str]


def read_shards(directory: Path, opened: Mapping[Path, int] = _NONE) -> Shards:
    """Reads and checks the headers of all files that the model needs: `model.safetensors`, else what
    `model.safetensors.index.json` lists, else every .safetensors file. `opened` has descriptors of those of them that
    the caller has open: they are read through these, whatever the path has come to mean.

    Raises StartupError: MissingShard, MissingTensor, BadIndex, NoWeights, PickleOnly, UnsupportedFormat, and what
    `read_header` raises.
    """
    single = directory / SINGLE
    if single in opened or single.is_file():
        return _union([single], opened)
    if (directory / INDEX).is_file():
        return _indexed(directory, opened)
    found = sorted(path for path in directory.glob("*.safetensors") if path in opened or path.is_file())
    if not found:
        raise _nothing(directory)
    _check_numbering(found)
    return _union(found, opened)


def _indexed(directory: Path, opened: Mapping[Path, int]) -> Shards:
    try:
        index = msgspec.json.decode((directory / INDEX).read_bytes(), type=_Index)
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise StartupError(f"{INDEX}: {error}", code="BadIndex") from error
    if not index.weight_map:
        raise StartupError(f"{INDEX}: lists no tensor", code="NoWeights")
    headers: dict[Path, Header] = {}
    for name in sorted(set(index.weight_map.values())):
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise StartupError(f"{INDEX}: {name!r} is not the name of a safetensors file", code="BadIndex")
        path = directory / name
        if path not in opened and not path.is_file():
            what = "is a directory" if path.is_dir() else "is missing"
            raise StartupError(f"{name}: named in {INDEX}, but it {what}", code="MissingShard")
        headers[path] = read_header(path, opened.get(path))
    tensors = {}
    for tensor, name in index.weight_map.items():
        info = headers[directory / name].tensors.get(tensor)
        if info is None:
            raise StartupError(f"{name}: tensor {tensor!r} should be in it, says {INDEX}", code="MissingTensor")
        tensors[tensor] = (directory / name, info)
    return Shards(tensors, headers)


def _union(paths: list[Path], opened: Mapping[Path, int]) -> Shards:
    headers = {path: read_header(path, opened.get(path)) for path in paths}
    tensors: dict[str, tuple[Path, TensorInfo]] = {}
    for path, header in headers.items():
        for tensor, info in header.tensors.items():
            if tensor in tensors:
                other = tensors[tensor][0].name
                raise StartupError(
                    f"{path.name}: {tensor!r} is in {other} too, and no {INDEX} decides", code="BadIndex"
                )
            tensors[tensor] = (path, info)
    if not tensors:
        raise StartupError(f"{paths[0].name}: holds no tensor", code="NoWeights")
    return Shards(tensors, headers)


def _check_numbering(paths: list[Path]) -> None:
    names = {path.name for path in paths}
    for name in sorted(names):
        if (numbered := _NUMBERED.match(name)) is None:
            continue
        width, parts = len(numbered["part"]), int(numbered["parts"])
        for part in range(1, min(parts, len(names) + 1) + 1):
            wanted = f"{numbered['stem']}-{part:0{width}d}-of-{numbered['parts']}.safetensors"
            if wanted not in names:
                raise StartupError(f"{wanted}: missing beside {name}", code="MissingShard")


def _nothing(directory: Path) -> StartupError:
    names = sorted(os.listdir(directory))
    for name in names:
        if name.endswith(".safetensors"):  # not a file, or it would have been read
            what = "a directory, not a file" if (directory / name).is_dir() else "a broken link"
            return StartupError(f"{name}: is {what}, and there are no other weights", code="NoWeights")
    for name in names:
        if name.endswith(".gguf"):
            return StartupError(
                f"{name}: the directory has only GGUF weights; name that file", code="UnsupportedFormat"
            )
    for name in names:
        if name.endswith(_PICKLES):
            return StartupError(f"{name}: pickled weights are never read; convert to safetensors", code="PickleOnly")
    return StartupError(f"no .safetensors file in {directory.name or directory}", code="NoWeights")
