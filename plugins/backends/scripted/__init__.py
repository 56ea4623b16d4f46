"""scripted: no model at all; plays token ids that the model directory gives. For tests and for measuring the engine.

config.json holds "architectures": ["ScriptedForCausalLM"], vocab_size, max_position_embeddings, eos_token_id, and a
"script" as `script.py` describes it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tickertape.plugins import Backend, Capabilities, ModelSpec, hookimpl
from tickertape.plugins.backends.scripted.script import Script

API = (1, 0)


def supports(spec: ModelSpec) -> str | None:
    """Why this backend cannot serve the model; None when it can."""
    if spec.architecture != "ScriptedForCausalLM":
        return "it plays ScriptedForCausalLM only"
    try:
        Script.of(spec)
    except msgspec.ValidationError as error:
        return f"config.json: script: {error}"
    return None


@hookimpl
def register_backends(register: Callable[[Backend], None]) -> None:
    register(
        Backend(
            name="scripted",
            kind="runner",
            factory="tickertape.plugins.backends.scripted.runner:make",
            capabilities=Capabilities(
                ahead=True,
                logits_processors=True,
                dtypes=("float32", "float64", "bfloat16", "float16"),
                devices=("cpu",),
            ),
            supports=supports,
            options=(),
            summary="plays given token ids; for tests",
        )
    )
