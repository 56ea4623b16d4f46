"""What a model is decoded with where a request says nothing: its generation_config.json, or the operator's word."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct, structs

from tickertape.api.calls import Decoding
from tickertape.api.model_files import read_json
from tickertape.api.ranges import Range
from tickertape.core.errors import StartupError

__all__ = ["GenerationDefaults"]

_FILE: Final = "generation_config.json"
_INT32: Final = 2**31 - 1
_FIELDS: Final = {
    # Wider than what requests may say: a model's makers may mean what a client must not ask for.
    "temperature": Range(0, 100),
    "top_p": Range(0, 1, above_low=True),
    "top_k": Range(-1, _INT32),
    "min_p": Range(0, 1),
    "repetition_penalty": Range(0.01, 100),
}


class GenerationDefaults(Struct, frozen=True, kw_only=True):
    """`max_tokens` None: as the API has it, 16 for a completion and up to the context for a chat."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None

    @classmethod
    def of(
        cls, directory: Path, mode: Literal["auto", "none"] = "auto", given: Mapping[str, Any] | None = None
    ) -> GenerationDefaults:
        """What is `given` (by the operator; None: nothing) wins over the model's generation_config.json, which `none`
        leaves aside, and that over ours. A config that says `"do_sample": false` means greedy decoding: temperature 0,
        its other numbers for sampling aside. Raises StartupError (BadConfig) naming the field that cannot be."""
        found = _read(directory) if mode == "auto" else {}
        return cls(**found | {name: value for name, value in (given or {}).items() if value is not None})

    def over(self, decoding: Decoding) -> GenerationDefaults:
        """These, with what a request says in their place."""
        said = {name: value for name in self.__struct_fields__ if (value := getattr(decoding, name)) is not None}
        return structs.replace(self, **said)


def _read(directory: Path) -> dict[str, Any]:
    config = read_json(directory, _FILE)
    found = {name: _number(config, name, bounds) for name, bounds in _FIELDS.items() if config.get(name) is not None}
    if config.get("do_sample") is False:
        penalty = found.get("repetition_penalty")
        found = {"temperature": 0.0} | ({} if penalty is None else {"repetition_penalty": penalty})
    if config.get("max_new_tokens") is not None:
        found["max_tokens"] = _number(config, "max_new_tokens", Range(1, _INT32))
    return found


def _number(config: Mapping[str, Any], name: str, bounds: Range) -> float | int:
    value = config[name]
    whole = name in ("top_k", "max_new_tokens")
    if isinstance(value, bool) or value not in bounds or (whole and value != int(value)):
        raise StartupError(f"{_FILE}: {name} is {value!r}; it must be {bounds}", code="BadConfig")
    return int(value) if whole else float(value)
