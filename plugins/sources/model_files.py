"""Which of the files that lie in one place make up a model: weights in one format, and what is read beside them."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import PurePosixPath
from typing import Final

from tickertape.plugins import StartupError

__all__ = ["OPTIONAL_COMPANIONS", "PICKLES", "choose_files", "is_weights_file"]

PICKLES: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
OPTIONAL_COMPANIONS: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
)
"""What may lie beside a weights file, where nothing lists what does; `config.json` must."""

_INDEX: Final = ".safetensors.index.json"
_COMPANION: Final = re.compile(
    r"(?!.*\.index\.json$)(?!.*(trainer_state|training_args|_results)\.json$).+\.json|.+\.jinja"
    r"|merges\.txt|vocab\.txt|.+\.model|.+\.tiktoken"
)
_SHARD: Final = re.compile(r"^(?P<stem>.+)-\d+-of-\d+\.(safetensors|gguf)$")
_MAX_NAMED: Final = 12


def is_weights_file(path: str) -> bool:
    """Whether a path names one file of weights, and not a place where a model's files lie."""
    return path.endswith((".safetensors", ".gguf", *PICKLES))


def choose_files(paths: Collection[str], where: str, named: str | None = None) -> tuple[str, ...]:
    """The paths that a model needs of all those in a place, sorted. Without `named`: its safetensors, or else its only
    GGUF file. With it: this weights file and no other. GGUF files may lie below the top, all else does not count there.

    Pickles are never among them, nor copies in other formats. Raises StartupError: NotFound (no such `named`),
    PickleOnly, AmbiguousModel (several GGUF files), UnsupportedFormat (part of a split file), NotAModel.
    """
    if named is not None:
        return _with_named(paths, where, named)
    top = sorted(path for path in paths if "/" not in path)
    if weights := _safetensors(top):
        return tuple(sorted({*weights, *_companions(top), *_index(weights, top)}))
    ggufs = [path for path in sorted(paths) if path.endswith(".gguf") and "mmproj" not in path]
    if len(ggufs) == 1:
        return (_unsplit(ggufs[0]),)
    if ggufs:
        more = f" and {len(ggufs) - _MAX_NAMED} more" if len(ggufs) > _MAX_NAMED else ""
        raise StartupError(
            f"{where}: has {len(ggufs)} GGUF files, name one of them: {', '.join(ggufs[:_MAX_NAMED])}{more}",
            code="AmbiguousModel",
        )
    if any(path.endswith(PICKLES) for path in top):
        raise StartupError(
            f"{where}: has only pickled weights, which are never read; convert them to safetensors", code="PickleOnly"
        )
    raise StartupError(f"{where}: has neither safetensors nor a GGUF file", code="NotAModel")


def _with_named(paths: Collection[str], where: str, named: str) -> tuple[str, ...]:
    if named.endswith(PICKLES):
        raise StartupError(f"{named}: pickled weights are never read; convert to safetensors", code="PickleOnly")
    if named not in paths:
        raise StartupError(f"{where}: has no file {named}", code="NotFound")
    if not is_weights_file(named):
        raise StartupError(f"{named}: neither a safetensors nor a GGUF file", code="NotAModel")
    if named.endswith(".gguf"):
        return (_unsplit(named),)
    if "/" in named:
        raise StartupError(f"{named}: its model has to lie at the top", code="UnsupportedFormat")
    return tuple(sorted({_unsplit(named), *_companions(paths)}))


def _safetensors(top: Collection[str]) -> list[str]:
    """One copy of the weights: repositories hold several now and then. What is taken is what `read_shards` would read
    of all of them."""
    found = [path for path in top if path.endswith(".safetensors")]
    if "model.safetensors" in found:
        return ["model.safetensors"]
    ours = [path for path in found if not path.startswith("consolidated")]
    for stem in sorted(path.removesuffix(_INDEX) for path in top if path.endswith(_INDEX)):
        if shards := [path for path in ours if (match := _SHARD.match(path)) and match["stem"] == stem]:
            return shards
    return ours or found


def _index(weights: Collection[str], top: Collection[str]) -> set[str]:
    stems = {match["stem"] for path in weights if (match := _SHARD.match(path))}
    return {path for path in top if path.endswith(_INDEX) and path.removesuffix(_INDEX) in stems}


def _companions(paths: Collection[str]) -> set[str]:
    return {path for path in paths if "/" not in path and _COMPANION.fullmatch(path)}


def _unsplit(path: str) -> str:
    if _SHARD.match(path):
        kind = PurePosixPath(path).suffix[1:]
        advice = "name the place where they lie" if kind == "safetensors" else "merge them first"
        raise StartupError(f"{path}: is one part of several, {advice}", code="UnsupportedFormat")
    return path
