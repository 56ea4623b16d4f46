"""What a plugin registers: a backend, what it can do, and which models it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from tickertape.core.memory import Limits

__all__ = ["Backend", "BackendKind", "BackendOptions", "Capabilities", "ModelSpec", "load_factory"]

BackendKind = Literal["runner", "engine", "predictor"]


class ModelSpec(Struct, frozen=True, kw_only=True):
    """A model before it is loaded: what its files say. `path` is a directory with config.json, tokenizer.json and
    safetensors; `config` is config.json as it is; `weight_bytes` and `dtype` are read from the safetensors headers.
    `trust_remote_code`: the operator lets code that comes with the model run."""

    name: str
    path: str
    architecture: str
    config: Mapping[str, Any]
    weight_bytes: int = 0
    dtype: str = "float32"
    max_model_len: int
    vocab_size: int
    trust_remote_code: bool = False


class BackendOptions(Struct, frozen=True, kw_only=True):
    """What the operator chose. `num_threads` 0: the backend decides. `extra` holds backend-specific settings.

    `limits`, and the KV memory in blocks or bytes where the operator named it, are for engines, which bring their own
    scheduler; a runner is told by `plan` and `allocate`.
    """

    dtype: str = "auto"
    device: str = "cpu"
    quantization: str = "none"
    num_threads: int = 0
    extra: Mapping[str, Any] = msgspec.field(default_factory=dict)
    limits: Limits | None = None
    num_blocks: int | None = None
    kv_cache_bytes: int | None = None


_POWERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "logprobs": "log probabilities",
        "prompt_logprobs": "scoring of prompts",
        "masks": "grammars",
        "chunked": "prompts in pieces",
        "prefix_cache": "prefix caching",
        "logits_processors": "logits processors",
        "resume": "exact resumption",
    }
)


class Capabilities(Struct, frozen=True, kw_only=True):
    """What a backend can do beyond the six methods. The scheduler degrades by these and says so once.

    `ahead`: step n + 1 may be scheduled before the output of step n was read, with LAST in its rows, so that the device
    does not wait for the host; worth it when `forward` returns before the device is done.
    `prompt_logprobs`, `logprobs`, `masks` (grammars), `chunked` (a prompt may come in pieces), `prefix_cache`
    (KV may be reused between sequences), `logits_processors` (those in `Opened.processors` are applied, which
    `Sampler` does), `resume` (sampling is a function of seed and position alone, so a sequence
    replayed elsewhere goes on with the same tokens).
    """

    ahead: bool = False
    logprobs: bool = True
    prompt_logprobs: bool = True
    masks: bool = True
    chunked: bool = True
    prefix_cache: bool = True
    logits_processors: bool = False
    resume: bool = True
    dtypes: tuple[str, ...] = ("float32",)
    devices: tuple[str, ...] = ("cpu",)
    quantizations: tuple[str, ...] = ("none",)

    def lacking(self) -> tuple[str, ...]:
        """What a backend may do and this one does not, in words."""
        return tuple(words for name, words in _POWERS.items() if not getattr(self, name))


def _supports_everything(_: ModelSpec) -> str | None:
    return None


def _refuses_nothing(_: ModelSpec, __: BackendOptions) -> str | None:
    return None


class Backend(Struct, frozen=True, kw_only=True):
    """A registered backend. `factory` is "package.module:function", imported in the worker only and called with
    (ModelSpec, BackendOptions); it returns a ModelRunner, an Engine or a Predictor, by `kind`. `supports` runs in the
    front and the fetcher and must be cheap: None when the model can be served, else the reason why not, in one line.
    `refuses` is the same for a model with what the operator chose, beyond what the capabilities say. When the operator
    names no backend, the one with the highest `preference` goes first among those that support a model; among equals
    the one registered first. With `by_name_only` it is taken when the operator names it, and never else. `options`
    names the settings it knows in `BackendOptions.extra`; the server does not start with others. None: its factory
    looks at them itself."""

    name: str
    kind: BackendKind
    factory: str
    capabilities: Capabilities = Capabilities()
    supports: Callable[[ModelSpec], str | None] = _supports_everything
    refuses: Callable[[ModelSpec, BackendOptions], str | None] = _refuses_nothing
    preference: int = 0
    by_name_only: bool = False
    options: tuple[str, ...] | None = None
    summary: str = ""


def load_factory(backend: Backend) -> Callable[[ModelSpec, BackendOptions], Any]:
    """Imports `backend.factory`. Raises PluginError naming the backend when it cannot be had."""
    from importlib import import_module

    from tickertape.core.errors import PluginError

    module, _, name = backend.factory.partition(":")
    try:
        found = getattr(import_module(module), name)
    except Exception as error:
        raise PluginError(f"backend {backend.name!r}: cannot import {backend.factory}: {error}") from error
    if not callable(found):
        raise PluginError(f"backend {backend.name!r}: {backend.factory} is not callable")
    return found  # type: ignore[no-any-return]
