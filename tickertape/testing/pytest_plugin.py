"""The pytest plugin, loaded in every run where tickertape is installed: fixtures, and readable asserts in the kit.

It must stay light: what a fixture needs is imported when the fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tickertape.plugins import ModelSpec
    from tickertape.testing.local_server import LocalServer, MakeServer

pytest.register_assert_rewrite(
    "tickertape.testing.checks",
    "tickertape.testing.engine",
    "tickertape.testing.logits_processor",
    "tickertape.testing.ranged_source",
    "tickertape.testing.rig",
    "tickertape.testing.runner",
    "tickertape.testing.serving",
    "tickertape.testing.stepper",
    "tickertape.testing.subject",
    "tickertape.testing.tokenizer",
    "tickertape.testing.trials",
    "tickertape.testing.weight_source",
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
    """A random Llama in float64 with a byte-level tokenizer, made on the fly, in a directory of Hugging Face layout."""
    from tickertape.testing.models import write_llama
    from tickertape.testing.tokenizers import write_byte_level

    directory = tmp_path_factory.mktemp("tiny_model")
    write_byte_level(directory)
    return write_llama(directory, vocab_size=512)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MakeServer]:
    """Starts servers in this process, without a socket: `server({"mine": my_module}, spec)` gives a LocalServer with
    `get`, `post`, `complete` and `chat`. Without a model, one that answers everything with "A known text."."""
    from tickertape.testing.local_server import LocalServer
    from tickertape.testing.models import write_scripted
    from tickertape.testing.tokenizers import byte_level_tokenizer, write_byte_level

    with ExitStack() as stack:

        def make(
            plugins: Mapping[str, object] | None = None, spec: ModelSpec | None = None, **options: Any
        ) -> LocalServer:
            if spec is None:
                directory = tmp_path / "scripted"
                write_byte_level(directory)
                end = byte_level_tokenizer().token_to_id("<|im_end|>") or 0
                spec = write_scripted(directory, [{"tokens": list(b"A known text.")}], eos_token_id=end)
            return stack.enter_context(LocalServer(spec, plugins, **options))

        yield make
