"""Takes the settings apart into the records that the rooms below understand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tickertape.api.admission import AdmissionLimits
from tickertape.api.options import WireOptions
from tickertape.core.backend import Backend, BackendOptions, ModelSpec
from tickertape.core.errors import StartupError
from tickertape.core.memory import Limits
from tickertape.core.messages import Configure, Fetch
from tickertape.settings import Settings

__all__ = ["admission_limits", "configure_message", "fetch_message", "plugin_settings", "wire_options"]

_MEMORY_SHARE = 0.5


def plugin_settings(settings: Settings) -> dict[str, Any]:
    """Keyword arguments of `Plugins.load`, as plain data."""
    return {
        "allow": settings.plugins_allow,
        "block": settings.plugins_block,
        "directory": str(settings.plugins_dir) if settings.plugins_dir else None,
        "strict": settings.strict_plugins,
    }


def fetch_message(settings: Settings) -> Fetch:
    return Fetch(
        models=tuple((choice.name, choice.model) for choice in settings.model_choices()) or ((None, None),),
        store=str(settings.store),
        plugins=plugin_settings(settings),
        log_level=settings.log_level,
    )


def configure_message(settings: Settings, spec: ModelSpec, backend: Backend, *, num_models: int) -> Configure:
    """What a worker needs to serve `spec`. Raises StartupError when the settings ask for what the model or the
    backend does not have."""
    able = backend.capabilities
    device = settings.device.partition(":")[0]
    _require("dtype", settings.dtype, ("auto", *able.dtypes), backend)
    _require("device", device, able.devices, backend)
    _require("quantization", settings.quantization, ("none", *able.quantizations), backend)
    max_model_len = settings.max_model_len or spec.max_model_len
    if max_model_len > spec.max_model_len:
        raise StartupError(
            f"max_model_len is {max_model_len}, but {spec.name} takes {spec.max_model_len} tokens at most",
            code="UnsupportedOption",
        )
    return Configure(
        epoch=0,
        spec=spec,
        backend=backend.name,
        options=BackendOptions(
            dtype=settings.dtype,
            device=settings.device,
            quantization=settings.quantization,
            num_threads=settings.threads,
            extra=settings.backend_option,
        ),
        limits=Limits(
            max_model_len=max_model_len,
            max_num_seqs=settings.max_num_seqs,
            max_batch_tokens=settings.max_batch_tokens,
            block_tokens=settings.block_size,
        ),
        policy=settings.policy,
        num_blocks=settings.kv_blocks,
        kv_cache_bytes=int(settings.kv_cache_bytes) if settings.kv_cache_bytes is not None else None,
        memory_share=_MEMORY_SHARE / num_models,
        plugins=plugin_settings(settings),
        log_level=settings.log_level,
    )


def admission_limits(settings: Settings) -> AdmissionLimits:
    return AdmissionLimits(max_waiting_requests=settings.max_waiting)


def wire_options(settings: Settings) -> WireOptions:
    """Raises StartupError when the file of API keys cannot be used."""
    return WireOptions(
        keep_alive_s=settings.sse_keep_alive_s,
        request_timeout_s=settings.request_timeout_s,
        lenient=settings.lenient,
        max_body_bytes=int(settings.max_body_bytes),
        api_keys=_api_keys(settings),
    )


def _api_keys(settings: Settings) -> tuple[str, ...]:
    """The keys that clients may send; none: everybody is let in. Raises StartupError when the file cannot be read or
    holds none."""
    if settings.api_key is not None:
        return (settings.api_key.get_secret_value(),)
    if settings.api_keys is None:
        return ()
    return _read_keys(settings.api_keys)


def _read_keys(path: Path) -> tuple[str, ...]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise StartupError(f"the file of API keys {path} cannot be read: {reason}", code="BadKeyFile") from error
    keys = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    if not keys:
        # An empty file must not mean that everybody may come in.
        raise StartupError(f"the file of API keys {path} holds none", code="BadKeyFile")
    return keys


def _require(option: str, value: str, able: Sequence[str], backend: Backend) -> None:
    if value not in able:
        raise StartupError(
            f"backend {backend.name!r} does not do {option} {value}; it does {', '.join(dict.fromkeys(able))}",
            code="UnsupportedOption",
        )
