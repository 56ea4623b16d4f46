"""The models that the front serves, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from msgspec import Struct

from tickertape.api.generation_defaults import GenerationDefaults
from tickertape.api.health import Readiness
from tickertape.api.model_tokenizer import ModelTokenizer
from tickertape.api.output_format import OutputFormat
from tickertape.api.templates import ChatTemplate
from tickertape.core.backend import Capabilities
from tickertape.core.errors import ModelNotFound
from tickertape.core.logits_processor import LogitsProcessorSpec
from tickertape.core.ports import Engine
from tickertape.core.request import Grammar

__all__ = ["GrammarChecker", "Models", "ServedModel"]


class GrammarChecker(Protocol):
    """Tells what is wrong with a grammar before it is queued. Does its work off the event loop, within limits."""

    async def check(self, grammar: Grammar) -> None:
        """Raises InvalidRequest, which does not know the field's name, and Overloaded."""
        ...


class ServedModel(Struct, frozen=True, kw_only=True):
    """A model and everything that turns text into its tokens and back. `created` is seconds since the epoch,
    `fingerprint` the `system_fingerprint` of its answers, `priorities` whether its queue is ordered by them,
    `own_engine` whether its sequences are ours, so that the core's own powers over them can be had,
    `grammars` checks what answers are to follow (None: they cannot be made to follow anything),
    `output` how it writes what is no plain content, `processors` the logits processors that requests may name,
    `defaults` what holds where they say nothing."""

    name: str
    engine: Engine
    tokenizer: ModelTokenizer
    template: ChatTemplate | None
    max_model_len: int
    vocab_size: int
    created: int
    capabilities: Capabilities = Capabilities()
    priorities: bool = False
    own_engine: bool = True
    grammars: GrammarChecker | None = None
    output: OutputFormat = OutputFormat()
    processors: Mapping[str, LogitsProcessorSpec] = MappingProxyType({})
    defaults: GenerationDefaults = GenerationDefaults()
    fingerprint: str = "fp_tickertape"


class Models:
    """Mutated on the front's loop only."""

    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness
        self._by_name: dict[str, ServedModel] = {}
        self._expected: set[str] = set()

    def expect(self, name: str) -> None:
        """A model of this name will be served."""
        self._expected.add(name)

    def known(self, name: str) -> bool:
        """Whether it is served, or will be."""
        return name in self._by_name or name in self._expected

    def add(self, model: ServedModel) -> None:
        """Raises ValueError when the name is taken."""
        if model.name in self._by_name:
            raise ValueError(f"a model named {model.name!r} is served already")
        self._by_name[model.name] = model

    def replace(self, model: ServedModel) -> None:
        """Serves `model` under its name from now on; what runs on the one before it ends there."""
        self._by_name[model.name] = model

    def remove(self, name: str) -> None:
        self._by_name.pop(name, None)

    def get(self, name: str) -> ServedModel:
        """Raises Unavailable while the server loads or drains, then ModelNotFound."""
        if (refusal := self._readiness.refusal()) is not None:
            raise refusal
        if (model := self._by_name.get(name)) is None:
            shown = name if len(name) <= 200 else name[:200] + "..."
            raise ModelNotFound(f"The model {shown!r} does not exist", param="model")
        return model

    def list(self) -> Sequence[ServedModel]:
        return tuple(self._by_name.values())
