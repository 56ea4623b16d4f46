"""transformers: any decoder-only causal language model of that library, computed over our paged KV memory.

This module only registers, and imports neither torch nor transformers. Read `runner.py` for the port, then
`interface.py` (how the library calls us), `probe.py` and `self_check.py` (what is refused, and how it is found out),
`paged_model.py` (a step), `checkpoint.py` (weights without copies).
"""

from __future__ import annotations

from collections.abc import Callable

from tickertape.plugins import Backend, Capabilities, hookimpl
from tickertape.plugins.backends.transformers.suitability import refuses, supports

API = (1, 0)


@hookimpl
def register_backends(register: Callable[[Backend], None]) -> None:
    register(
        Backend(
            name="transformers",
            kind="runner",
            factory="tickertape.plugins.backends.transformers.runner:make",
            capabilities=Capabilities(
                logits_processors=True,
                dtypes=("float32", "float64", "bfloat16", "float16"),
                devices=("cpu", "cuda"),
                quantizations=("int8",),
            ),
            supports=supports,
            refuses=refuses,
            options=("kernels", "self_check"),
            summary="any decoder-only model of the transformers library, on CPU (on CUDA: experimental)",
        )
    )
