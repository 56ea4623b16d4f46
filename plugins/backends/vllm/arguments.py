"""What vllm is started with: the settings of ours that it has a word for, and its own through `--backend-option`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from tickertape.plugins import BackendOptions, ModelSpec, StartupError

__all__ = ["Arguments", "read_arguments"]

_ADAPTERS: Final = "lora_modules"
_OURS: Final = frozenset({"model", "tokenizer", "skip_tokenizer_init", "trust_remote_code"})
"""Not to be set by hand: they follow from the model that is served, or are settings of ours."""

_OPTIONAL: Final = frozenset({"enable_log_requests", "disable_log_stats"})
"""What it logs may be called otherwise in another version."""


class Arguments(Struct, frozen=True):
    """`engine` are keyword arguments of AsyncEngineArgs; `adapters` the directories of LoRA adapters by name."""

    engine: dict[str, Any]
    adapters: Mapping[str, str]


def read_arguments(spec: ModelSpec, options: BackendOptions, engine_args: Any, device: str) -> Arguments:
    """`engine_args` is AsyncEngineArgs, `device` the kind that this vllm computes on. Raises StartupError for a setting
    that this version does not have."""
    _check_device(options.device, device)
    known = {field.name for field in dataclasses.fields(engine_args)}
    extra = dict(options.extra)
    adapters = extra.pop(_ADAPTERS, {})
    if not isinstance(adapters, dict):
        raise _wrong(f"{_ADAPTERS} is a table of directories by name")
    for name in extra:
        if name in _OURS or name not in known:
            near = get_close_matches(name, known - _OURS, 1)
            raise _wrong(f"vllm has no setting {name!r}{f'; did you mean {near[0]!r}?' if near else ''}")
    chosen = {**_translated(spec, options), **extra}
    if adapters:
        chosen["enable_lora"] = True
    for name in sorted(chosen.keys() - known - _OPTIONAL):
        raise _wrong(f"vllm has no setting {name!r}")
    return Arguments({name: value for name, value in chosen.items() if name in known}, adapters)


def _translated(spec: ModelSpec, options: BackendOptions) -> dict[str, Any]:
    found: dict[str, Any] = {
        "model": spec.path,
        "served_model_name": spec.name,
        "dtype": options.dtype,
        "trust_remote_code": spec.trust_remote_code,
        # Only grammars need its tokenizer; ids go in and come out.
        "skip_tokenizer_init": not (Path(spec.path) / "tokenizer.json").exists(),
        "generation_config": "vllm",  # defaults and stop ids of the model's are the front's to send
        "enable_log_requests": False,
        "disable_log_stats": False,  # the figures come this way
    }
    if (limits := options.limits) is not None:
        # The size of a block is left to it: what is good depends on the device, and some sizes are refused.
        found["max_model_len"] = limits.max_model_len
        found["max_num_seqs"] = limits.max_num_seqs
        found["max_num_batched_tokens"] = max(limits.max_batch_tokens, limits.max_num_seqs)
    if options.num_blocks is not None:
        found["num_gpu_blocks_override"] = options.num_blocks
    if options.kv_cache_bytes is not None:
        found["kv_cache_memory_bytes"] = options.kv_cache_bytes
    return found


def _check_device(asked: str, device: str) -> None:
    kind, _, number = asked.partition(":")
    if kind != device:
        raise _wrong(f"this vllm computes on {device}, not on {kind}: --device {device}")
    if number:
        raise _wrong("which devices vllm uses is for CUDA_VISIBLE_DEVICES to say")


def _wrong(reason: str) -> StartupError:
    return StartupError(f"backend 'vllm': {reason}", code="UnsupportedOption")
