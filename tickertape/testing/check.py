"""Runs the conformance kit on a backend that is installed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType, ModuleType
from typing import Final

import pytest

from tickertape.core.errors import StartupError
from tickertape.plugins import Backend, ModelSpec
from tickertape.testing.models import write_llama
from tickertape.testing.tokenizers import write_byte_level

__all__ = ["check_backend"]

_SUITES: Final[Mapping[str, str]] = MappingProxyType({"runner": "check_runner.py", "engine": "check_engine.py"})


def check_backend(backend: Backend, spec: ModelSpec | None = None) -> int:
    """pytest's exit status. `spec` None: a tiny random Llama. Raises StartupError when the backend does not take the
    model, or is of a kind that has no kit."""
    if backend.kind not in _SUITES:
        raise StartupError(f"backend {backend.name!r} is a {backend.kind}, which has no kit")
    with TemporaryDirectory(prefix="tickertape-check-") as scratch:
        tiny = spec is None
        if spec is None:
            write_byte_level(Path(scratch) / "tiny")
            spec = write_llama(Path(scratch) / "tiny", vocab_size=512)
        reason = backend.supports(spec)
        if reason is not None and tiny:
            raise StartupError(
                f"backend {backend.name!r} needs a model of its own, since it does not take the kit's tiny Llama "
                f"({reason}): --model DIR",
                code="ModelNeeded",
            )
        if reason is not None:
            raise StartupError(
                f"backend {backend.name!r} does not serve {spec.name}: {reason}; name a --model it serves"
            )
        suite = Path(__file__).parent / "suites" / _SUITES[backend.kind]
        arguments = [str(suite), "-p", "no:cacheprovider", "-p", "no:asyncio", "--import-mode=importlib"]
        arguments += ["-c", os.devnull, "--rootdir", scratch, "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        return int(pytest.main(arguments, plugins=[_handing_in(backend, spec)]))


def _handing_in(backend: Backend, spec: ModelSpec) -> ModuleType:
    """A pytest plugin with the fixture `checked`. The kit is imported inside of pytest, which then can explain its
    asserts."""

    @pytest.fixture(scope="session")
    def checked() -> object:
        from tickertape.testing.checked import engine_subject, runner_subject

        return (runner_subject if backend.kind == "runner" else engine_subject)(backend, spec)

    plugin = ModuleType("checked")
    plugin.__dict__["checked"] = checked
    return plugin
