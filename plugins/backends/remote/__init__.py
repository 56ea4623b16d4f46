"""remote: another tickertape, vLLM or SGLang server as an engine, so that one front can stand before many.

This module only registers. Read `engine.py` for the port, then `dialects.py` (what the servers spell differently),
`asking.py` (a request as a body), `answering.py` (chunks as deltas), `faults.py` (errors), `upstream.py` (HTTP).
"""

from __future__ import annotations

from collections.abc import Callable

from tickertape.plugins import Backend, Capabilities, hookimpl

API = (1, 0)


@hookimpl
def register_backends(register: Callable[[Backend], None]) -> None:
    register(
        Backend(
            name="remote",
            kind="engine",
            factory="tickertape.plugins.backends.remote.engine:make",
            # The wire has no word for output that is to be gone on with, so nothing can be resumed exactly.
            capabilities=Capabilities(logits_processors=True, resume=False, dtypes=()),
            by_name_only=True,
            summary="another server (tickertape, vLLM, SGLang), named by --backend-option url=...",
        )
    )
