"""reference: a Llama in numpy over paged KV memory. The backend to read before writing one.

This module only registers; `runner.py` fills the port, `llama.py` is the model, `attention.py` reads the pages.
"""

from __future__ import annotations

from collections.abc import Callable

from tickertape.plugins import Backend, Capabilities, ModelSpec, hookimpl

API = (1, 0)

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "MinistralForCausalLM")
ROPE_TYPES = ("default", "llama3")


def supports(spec: ModelSpec) -> str | None:
    """Why this backend cannot serve the model; None when it can."""
    config = spec.config
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if spec.architecture not in ARCHITECTURES:
        return f"it computes {', '.join(ARCHITECTURES)} only"
    if config.get("quantization_config"):
        return "it does not read quantized weights"
    if rope_type not in ROPE_TYPES:
        return f"it does not know rope type {rope_type!r}"
    if config.get("hidden_act", "silu") != "silu":
        return f"it does not know the activation {config['hidden_act']!r}"
    if config.get("attention_bias") or config.get("mlp_bias"):
        return "it computes no biases"
    return None


@hookimpl
def register_backends(register: Callable[[Backend], None]) -> None:
    register(
        Backend(
            name="reference",
            kind="runner",
            factory="tickertape.plugins.backends.reference.runner:make",
            capabilities=Capabilities(logits_processors=True, dtypes=("float32", "float64")),
            supports=supports,
            preference=-1,  # it is there to be read, and for when torch is not installed
            options=(),
            summary="Llama and Mistral in numpy: exact, readable, for small models",
        )
    )
