"""What is taken from vllm. The one place that imports it, when a worker starts."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from msgspec import Struct

from tickertape.plugins import StartupError

__all__ = ["KNOWN", "Library", "load_library"]

KNOWN: Final = "0.29 to 0.32"
"""The minors whose signatures were read; others are tried all the same."""

_ABSENT: Final = object()


class Library(Struct, frozen=True, kw_only=True):
    """Classes by their names in vllm; those that may be None are not in every version, and what needs them is refused
    then. `device` is the kind that this build computes on: cpu, cuda, ..."""

    version: str
    device: str
    AsyncLLM: Any
    AsyncEngineArgs: Any
    SamplingParams: Any
    delta_outputs: Any  # RequestOutputKind.DELTA
    EngineDeadError: type[Exception]
    client_errors: tuple[type[Exception], ...]
    overload_errors: tuple[type[Exception], ...]
    StructuredOutputsParams: Any | None
    LoRARequest: Any | None


def load_library() -> Library:
    """Raises StartupError when vllm is not there, cannot be imported, or lacks what is needed."""
    try:
        vllm = import_module("vllm")
        version = str(getattr(vllm, "__version__", "unknown"))
    except Exception as error:
        raise StartupError(f"vllm cannot be imported: {_line(error)}", code="BackendMissing") from error
    found = _Finder(version)
    error_base = found.optional("vllm.exceptions", "VLLMClientError")
    graceful = found.optional("vllm.exceptions", "GracefulHTTPError")
    platform = found.optional("vllm.platforms", "current_platform")
    return Library(
        version=version,
        device=str(getattr(platform, "device_type", "cuda")),
        AsyncLLM=found.needed("vllm.v1.engine.async_llm", "AsyncLLM"),
        AsyncEngineArgs=found.needed("vllm.engine.arg_utils", "AsyncEngineArgs"),
        SamplingParams=found.needed("vllm.sampling_params", "SamplingParams"),
        delta_outputs=found.needed("vllm.sampling_params", "RequestOutputKind").DELTA,
        EngineDeadError=found.needed("vllm.v1.engine.exceptions", "EngineDeadError"),
        # Before its own errors there were, a request that is wrong was a ValueError; parts of vllm still raise that.
        client_errors=(ValueError, error_base) if error_base else (ValueError,),
        overload_errors=(graceful,) if graceful else (),
        StructuredOutputsParams=found.optional("vllm.sampling_params", "StructuredOutputsParams"),
        LoRARequest=found.optional("vllm.lora.request", "LoRARequest"),
    )


class _Finder:
    def __init__(self, version: str) -> None:
        self._version = version

    def needed(self, module: str, name: str) -> Any:
        try:
            return getattr(import_module(module), name)
        except Exception as error:
            raise StartupError(
                f"vllm {self._version} has no {module}.{name} ({_line(error)}); versions {KNOWN} are known to do",
                code="BackendMissing",
            ) from error

    def optional(self, module: str, name: str) -> Any | None:
        try:
            found = getattr(import_module(module), name, _ABSENT)
        except ImportError:
            return None
        return None if found is _ABSENT else found


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
