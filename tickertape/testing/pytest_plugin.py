"""The pytest plugin, loaded in every run where tickertape is installed: fixtures, and readable asserts in the kit.

It must stay light: what a fixture needs is imported when the fixture is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tickertape.plugins import ModelSpec

pytest.register_assert_rewrite(
    "tickertape.testing.checks",
    "tickertape.testing.engine",
    "tickertape.testing.rig",
    "tickertape.testing.runner",
    "tickertape.testing.serving",
    "tickertape.testing.stepper",
    "tickertape.testing.subject",
)


class FakeClock:
    """Time that passes when it is told to: `clock()` reads it, `sleep` and `advance` move it on."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds

    sleep = advance


@pytest.fixture
def fake_clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    """A random Llama in float64, made on the fly, in a directory of Hugging Face layout without a tokenizer."""
    from tickertape.testing.models import write_llama

    return write_llama(tmp_path_factory.mktemp("tiny_model"))
