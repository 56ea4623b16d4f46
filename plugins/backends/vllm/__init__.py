"""vllm: vLLM's AsyncLLM as an engine, in the worker's process and vLLM's own.

This module only registers, and does not import vllm. Read `engine.py` for the port, then `library.py` (what is taken
from vllm, and which versions are known), `arguments.py` (settings), `asking.py` (a request), `answering.py` (outputs),
`recorder.py` (figures), `guardian.py` (no process is left behind).
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from tickertape.plugins import Backend, Capabilities, ModelSpec, hookimpl

API = (1, 0)


def supports(_: ModelSpec) -> str | None:
    """Which architectures it knows only vllm itself can say, and importing it takes seconds."""
    return None if find_spec("vllm") is not None else "vllm is not installed: pip install vllm"


@hookimpl
def register_backends(register: Callable[[Backend], None]) -> None:
    register(
        Backend(
            name="vllm",
            kind="engine",
            factory="tickertape.plugins.backends.vllm.engine:make",
            # Its random numbers depend on how many were drawn before, so a sampled answer cannot be gone on with.
            capabilities=Capabilities(resume=False, dtypes=("float32", "bfloat16", "float16"), devices=("cpu", "cuda")),
            supports=supports,
            preference=-2,  # taken by itself only for what no backend of ours computes
            summary="vLLM, with all that it can: quantized weights, several GPUs, Ray, LoRA",
        )
    )
