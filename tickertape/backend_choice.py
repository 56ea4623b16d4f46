"""Which backend serves a model, and whether it does what the operator asks for: known from config.json and settings."""

from __future__ import annotations

from collections.abc import Sequence

from tickertape.core.backend import Backend, BackendOptions, ModelSpec
from tickertape.core.errors import StartupError
from tickertape.plugins.loader import one_line
from tickertape.plugins.manager import Plugins

__all__ = ["check_options", "choose_backend"]


def choose_backend(plugins: Plugins, name: str | None, spec: ModelSpec, options: BackendOptions) -> Backend:
    """The backend `name`, or else the one that fits best. Cheap. Raises StartupError: UnsupportedArchitecture,
    UnsupportedOption, BadOption; PluginError when there is no backend of that name."""
    backend = plugins.choose(spec, name)
    check_options(backend, options)
    try:
        reason = backend.refuses(spec, options)
    except Exception as error:
        reason = f"backend {backend.name!r}: its refuses() raised {one_line(error)}"
    if reason is not None:
        raise StartupError(reason, code="BadOption")
    return backend


def check_options(backend: Backend, options: BackendOptions) -> None:
    """Raises StartupError (UnsupportedOption) when they ask for what the backend does for no model."""
    able = backend.capabilities
    _require("dtype", options.dtype, ("auto", *able.dtypes), backend)
    _require("device", options.device.partition(":")[0], able.devices, backend)
    _require("quantization", options.quantization, ("none", *able.quantizations), backend)
    if backend.options is not None and (unknown := options.extra.keys() - set(backend.options)):
        known = ", ".join(backend.options) or "none"
        raise StartupError(
            f"backend {backend.name!r} has no option {min(unknown)[:100]!r}; it has {known}",
            code="UnsupportedOption",
        )


def _require(option: str, value: str, able: Sequence[str], backend: Backend) -> None:
    if value not in able:
        raise StartupError(
            f"backend {backend.name!r} does not do {option} {value}; it does {', '.join(dict.fromkeys(able))}",
            code="UnsupportedOption",
        )
