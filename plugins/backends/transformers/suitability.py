"""What can be told from config.json alone, in the front: no torch, no transformers, a few milliseconds.

Whatever passes here is still looked at by the worker, which builds the model without its weights (`probe.py`) and
computes with a small twin of it (`self_check.py`) before it loads anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from tickertape.plugins import BackendOptions, ModelSpec, is_int8

__all__ = ["REMOTE_CODE", "refuses", "supports"]

REMOTE_CODE: Final = "it brings code of its own (remote code), which is run with --trust-remote-code only"

PAGED_LAYERS: Final = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
_RECURRENT: Final = (
    "conv_L_cache",
    "linear_conv_kernel_dim",
    "lru_width",
    "mamba_d_state",
    "ssm_state_size",
    "state_size",
)
_TABLE: Final = re.compile(r"^MODEL_FOR_CAUSAL_LM_MAPPING_NAMES = .*?^\)$", re.MULTILINE | re.DOTALL)


def supports(spec: ModelSpec) -> str | None:
    """Why this backend cannot serve the model; None when it looks as if it could."""
    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        return f"{' and '.join(missing)} not installed (pip install 'tickertape[cpu]')"
    return next(_faults(spec), None)


def refuses(spec: ModelSpec, options: BackendOptions) -> str | None:
    """Why it cannot be served as the operator wants it, in as far as torch need not be asked."""
    if options.quantization != "int8" and not is_int8(spec.config):
        return None
    device = options.device.partition(":")[0]
    if device != "cpu":
        return f"weights of int8 are computed on the CPU only, not on {device}"
    if find_spec("numba") is None:
        return "weights of int8 need numba (pip install 'tickertape[cpu]')"
    if not options.extra.get("kernels", True):
        return "weights of int8 need the compiled kernels (kernels=true)"
    if options.dtype == "float64":
        return "weights of int8 are not computed in float64"
    return None


def _faults(spec: ModelSpec) -> Iterator[str]:
    config = spec.config
    known = _causal_architectures()
    if known and spec.architecture not in known:
        remote = "AutoModelForCausalLM" in (config.get("auto_map") or ())
        if remote and not spec.trust_remote_code:
            yield REMOTE_CODE
        if not remote:
            yield f"transformers has no causal language model {spec.architecture}"
    if config.get("is_encoder_decoder"):
        yield "it is an encoder-decoder model"
    if any(isinstance(config.get(part), Mapping) for part in ("vision_config", "audio_config")):
        yield "it sees or hears; only models of text alone are served"
    if is_int8(config) and find_spec("numba") is None:
        yield "its weights are of int8, which needs numba (pip install 'tickertape[cpu]')"
    for key in ("quantization_config", "compression_config"):
        if (found := config.get(key)) and not is_int8(config):
            yield f"its weights are quantized ({_method(found)}), which this backend does not compute with"
    for key in _RECURRENT:
        if config.get(key):
            yield f"it keeps a recurrent state ({key} in config.json), which is not paged"
    for kind in config.get("layer_types") or ():
        if kind not in PAGED_LAYERS:
            yield f"its {kind} layers keep a state that is not paged"


def _method(quantization: Any) -> str:
    return str(quantization.get("quant_method", "unnamed")) if isinstance(quantization, Mapping) else "unnamed"


def _causal_architectures() -> frozenset[str]:
    """The class names in the library's own table, read as text because importing it takes seconds. Empty when the
    table is not where it was: then the worker decides."""
    package = find_spec("transformers")
    for place in (package.submodule_search_locations if package else None) or ():
        path = Path(place) / "models" / "auto" / "modeling_auto.py"
        if path.is_file() and (table := _TABLE.search(path.read_text(encoding="utf-8"))):
            return frozenset(re.findall(r'^ +\("[^"]+", "(\w+)"\),$', table[0], re.MULTILINE))
    return frozenset()
