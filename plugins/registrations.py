"""What plugins register: checked as it comes, and taken over only when its plugin has loaded whole."""

from __future__ import annotations

from collections.abc import Container
from typing import get_args

from tickertape.core.backend import Backend, BackendKind
from tickertape.core.errors import PluginError
from tickertape.core.output_parser import OutputParserKind, OutputParserSpec
from tickertape.core.sources import WeightSource
from tickertape.plugins.output_parsers import AUTO, NONE

__all__ = ["Draft", "Registrations"]


class Registrations:
    """Everything the loaded plugins registered, by name, in the order in which they did."""

    def __init__(self) -> None:
        self.backends: dict[str, Backend] = {}
        self.parsers: dict[str, OutputParserSpec] = {}
        self.sources: dict[str, WeightSource] = {}  # by URI scheme
        self.owners: dict[tuple[str, str], str] = {}  # (kind, name) -> the plugin that has it

    def take(self, draft: Draft) -> None:
        self.backends |= draft.backends
        self.parsers |= draft.parsers
        self.sources |= draft.sources
        self.owners |= {("backend", name): draft.plugin for name in draft.backends}
        self.owners |= {("output parser", name): draft.plugin for name in draft.parsers}
        self.owners |= {("weight source", name): draft.plugin for name in draft.sources}


class Draft:
    """What one plugin registers while it loads. A refusal is raised to the plugin and kept as well, so that a plugin
    that swallows it does not pass for whole."""

    def __init__(self, plugin: str, taken: Registrations) -> None:
        self.plugin = plugin
        self.backends: dict[str, Backend] = {}
        self.parsers: dict[str, OutputParserSpec] = {}
        self.sources: dict[str, WeightSource] = {}
        self._taken = taken
        self._refusal: PluginError | None = None

    def add_backend(self, backend: Backend) -> None:
        if not isinstance(backend, Backend):
            raise self._refuse(f"register_backends takes Backend records, not {type(backend).__name__}")
        if backend.kind not in get_args(BackendKind):
            raise self._refuse(f"backend {backend.name!r}: kind {backend.kind!r} is none of {get_args(BackendKind)}")
        module, _, function = backend.factory.partition(":")
        if not module or not function:
            raise self._refuse(f"backend {backend.name!r}: factory {backend.factory!r} is not 'package.module:name'")
        self._claim("backend", backend.name, self.backends)
        self.backends[backend.name] = backend

    def add_parser(self, parser: OutputParserSpec) -> None:
        if not isinstance(parser, OutputParserSpec):
            raise self._refuse(f"register_output_parsers takes OutputParserSpec records, not {type(parser).__name__}")
        kinds = get_args(OutputParserKind)
        if parser.kind not in kinds:
            raise self._refuse(f"output parser {parser.name!r}: kind {parser.kind!r} is none of {kinds}")
        if parser.name in (AUTO, NONE):
            raise self._refuse(f"output parser {parser.name!r}: the name has a meaning of its own")
        self._claim("output parser", parser.name, self.parsers)
        self.parsers[parser.name] = parser

    def add_source(self, source: WeightSource) -> None:
        schemes = getattr(source, "schemes", ())
        if not isinstance(schemes, tuple) or not schemes:
            raise self._refuse(f"weight source {type(source).__name__} names no schemes")
        for scheme in schemes:
            self._claim("weight source", scheme, self.sources)
            self.sources[scheme] = source

    def verify(self) -> None:
        """Raises the first refusal, if there was one."""
        if self._refusal is not None:
            raise self._refusal

    def _claim(self, kind: str, name: str, mine: Container[str]) -> None:
        owner = self._taken.owners.get((kind, name)) or (self.plugin if name in mine else None)
        if owner is not None:
            raise self._refuse(f"{kind} {name!r} is already registered by plugin {owner!r}")
        if not name:
            raise self._refuse(f"a {kind} needs a name")

    def _refuse(self, message: str) -> PluginError:
        self._refusal = self._refusal or PluginError(message)
        return PluginError(message)
