"""What plugins register: checked as it comes, and taken over only when its plugin has loaded whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from tickertape.core.backend import Backend, BackendKind
from tickertape.core.errors import PluginError
from tickertape.core.logits_processor import LogitsProcessorSpec
from tickertape.core.output_parser import OutputParserKind, OutputParserSpec
from tickertape.core.sources import AnySource
from tickertape.core.tokenizer import TokenizerSpec
from tickertape.plugins.output_parsers import AUTO, NONE
from tickertape.plugins.routes import PluginRoute

__all__ = ["Draft", "Hook", "Registrations"]

Hook = tuple[str, Callable[..., Any]]
"""A plugin's name and its function, to be called with keywords."""

KINDS: Final = {
    "backends": "backend",
    "sources": "weight source",
    "tokenizers": "tokenizer",
    "parsers": "output parser",
    "processors": "logits processor",
    "routes": "route",
}
"""By attribute, what a thing that plugins register is called."""


@dataclass
class Registrations:
    """What was registered, by name, in the order in which it was; and the hooks that are called later."""

    backends: dict[str, Backend] = field(default_factory=dict)
    sources: dict[str, AnySource] = field(default_factory=dict)  # by URI scheme
    tokenizers: dict[str, TokenizerSpec] = field(default_factory=dict)
    parsers: dict[str, OutputParserSpec] = field(default_factory=dict)
    processors: dict[str, LogitsProcessorSpec] = field(default_factory=dict)
    routes: dict[str, PluginRoute] = field(default_factory=dict)  # by path, the prefix of the plugin included
    authenticators: list[Hook] = field(default_factory=list)
    observers: list[Hook] = field(default_factory=list)
    shutdowns: list[Hook] = field(default_factory=list)
    owners: dict[tuple[str, str], str] = field(default_factory=dict)  # (kind, name) -> the plugin that has it

    def take(self, plugin: str, more: Registrations) -> None:
        """Everything that `plugin` brought."""
        for kind in KINDS:
            getattr(self, kind).update(getattr(more, kind))
            self.owners |= {(kind, name): plugin for name in getattr(more, kind)}
        self.authenticators += more.authenticators
        self.observers += more.observers
        self.shutdowns += more.shutdowns

    def names(self) -> dict[str, tuple[str, ...]]:
        """What there is, by kind; kinds of which there is nothing are left out."""
        return {kind: tuple(getattr(self, kind)) for kind in KINDS if getattr(self, kind)}


class Draft:
    """What one plugin registers while it loads. A refusal is raised to the plugin and kept as well, so that a plugin
    that swallows it does not pass for whole."""

    def __init__(self, plugin: str, taken: Registrations) -> None:
        self.plugin = plugin
        self.found = Registrations()
        self._taken = taken
        self._refusal: PluginError | None = None

    def add_backend(self, backend: Backend) -> None:
        self._expect("register_backends", Backend, backend)
        if backend.kind not in get_args(BackendKind):
            raise self._refuse(f"backend {backend.name!r}: kind {backend.kind!r} is none of {get_args(BackendKind)}")
        module, _, function = backend.factory.partition(":")
        if not module or not function:
            raise self._refuse(f"backend {backend.name!r}: factory {backend.factory!r} is not 'package.module:name'")
        self._claim("backends", backend.name, backend)

    def add_source(self, source: AnySource) -> None:
        schemes = getattr(source, "schemes", ())
        if not isinstance(schemes, tuple) or not schemes:
            raise self._refuse(f"weight source {type(source).__name__} names no schemes")
        for scheme in schemes:
            self._claim("sources", scheme, source)

    def add_tokenizer(self, tokenizer: TokenizerSpec) -> None:
        self._expect("register_tokenizers", TokenizerSpec, tokenizer)
        self._claim("tokenizers", tokenizer.name, tokenizer)

    def add_parser(self, parser: OutputParserSpec) -> None:
        self._expect("register_output_parsers", OutputParserSpec, parser)
        kinds = get_args(OutputParserKind)
        if parser.kind not in kinds:
            raise self._refuse(f"output parser {parser.name!r}: kind {parser.kind!r} is none of {kinds}")
        if parser.name in (AUTO, NONE):
            raise self._refuse(f"output parser {parser.name!r}: the name has a meaning of its own")
        self._claim("parsers", parser.name, parser)

    def add_processor(self, processor: LogitsProcessorSpec) -> None:
        self._expect("register_logits_processors", LogitsProcessorSpec, processor)
        self._claim("processors", processor.name, processor)

    def add_route(self, route: PluginRoute) -> None:
        self._expect("register_routes", PluginRoute, route)
        if not route.path.startswith("/") or not route.methods:
            raise self._refuse(f"route {route.path!r}: a path begins with '/', and at least one method is served")
        self._claim("routes", f"/plugins/{self.plugin}{route.path}", route)

    def verify(self) -> None:
        """Raises the first refusal, if there was one."""
        if self._refusal is not None:
            raise self._refusal

    def _expect(self, hook: str, wanted: type[Any], given: object) -> None:
        if not isinstance(given, wanted):
            raise self._refuse(f"{hook} takes {wanted.__name__} records, not {type(given).__name__}")

    def _claim(self, kind: str, name: str, thing: object) -> None:
        mine = getattr(self.found, kind)
        owner = self._taken.owners.get((kind, name)) or (self.plugin if name in mine else None)
        if owner is not None:
            raise self._refuse(f"{KINDS[kind]} {name!r} is already registered by plugin {owner!r}")
        if not name:
            raise self._refuse(f"a {KINDS[kind]} needs a name")
        mine[name] = thing

    def _refuse(self, message: str) -> PluginError:
        self._refusal = self._refusal or PluginError(message)
        return PluginError(message)
