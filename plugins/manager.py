"""What the plugins of this process registered, and how each of them fared."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import MappingProxyType

from tickertape.core.backend import Backend, ModelSpec
from tickertape.core.errors import PluginError, StartupError
from tickertape.core.logits_processor import LogitsProcessorSpec
from tickertape.core.output_parser import OutputParserSpec
from tickertape.core.sources import AnySource
from tickertape.core.tokenizer import TokenizerSpec
from tickertape.plugins.authenticators import Authenticators
from tickertape.plugins.candidates import Candidate, files_of, installed
from tickertape.plugins.faults import Faults
from tickertape.plugins.guarded_parser import guarded_parser
from tickertape.plugins.guarded_processor import guarded_check
from tickertape.plugins.hookspecs import PROJECT, Process
from tickertape.plugins.loader import Loader, one_line
from tickertape.plugins.observers import Observers
from tickertape.plugins.records import PluginRecord
from tickertape.plugins.registrations import Registrations
from tickertape.plugins.routes import PluginRoute

__all__ = ["PluginRecord", "Plugins"]


class Plugins:
    """Does not change once loaded, but for the faults that are counted."""

    def __init__(
        self, registrations: Registrations, records: Iterable[PluginRecord], process: Process | None = None
    ) -> None:
        owners = registrations.owners
        self.faults = faults = Faults()
        self.backends: Mapping[str, Backend] = MappingProxyType(registrations.backends)
        self.sources: Mapping[str, AnySource] = MappingProxyType(registrations.sources)
        self.tokenizers: Mapping[str, TokenizerSpec] = MappingProxyType(registrations.tokenizers)
        self.parsers: Mapping[str, OutputParserSpec] = MappingProxyType(
            {
                name: guarded_parser(owners["parsers", name], spec, faults)
                for name, spec in registrations.parsers.items()
            }
        )
        self.processors: Mapping[str, LogitsProcessorSpec] = MappingProxyType(
            {
                name: guarded_check(owners["processors", name], spec, faults)
                for name, spec in registrations.processors.items()
            }
        )
        self.routes: Mapping[str, PluginRoute] = MappingProxyType(registrations.routes)
        self.authenticators = Authenticators(registrations.authenticators, faults)
        self.observers = Observers(registrations.observers, faults)
        self.records = tuple(records)
        self._process = process
        self._shutdowns = tuple(registrations.shutdowns)

    @classmethod
    def load(
        cls,
        *,
        allow: Collection[str] | None = None,
        block: Collection[str] = (),
        directory: str | Path | None = None,
        strict: bool = False,
        process: Process | None = None,
        routes: Collection[str] = (),
        required: Collection[str] = (),
        found: Iterable[EntryPoint] | None = None,
        given: Mapping[str, object] = MappingProxyType({}),
    ) -> Plugins:
        """Loads the built-in plugins, then the installed ones by name, then each `*.py` of `directory`.

        `allow` names the only strangers to load (built-ins load in any case), `block` names plugins never to load.
        With `process` they are started up. `routes` names those that may serve HTTP, `required` those that must
        authenticate. `found` stands in for the entry points of the environment; `given` are plugin modules by name,
        imported already, which load last.

        Raises StartupError: PathNotFound when there is no such `directory`, PluginFailed when a plugin of `required`
        did not load or does not authenticate. With `strict`, PluginError for the first plugin that failed.
        """
        candidates = installed(entry_points(group=PROJECT) if found is None else found)
        if directory is not None:
            candidates += files_of(Path(directory))
        candidates += [Candidate(name, "", "", partial(_same, module)) for name, module in given.items()]
        loader = Loader(process, routes)
        for candidate in candidates:
            stranger = not candidate.builtin and allow is not None and candidate.name not in allow
            if stranger or candidate.name in block:
                loader.record(candidate, "blocked")
            else:
                loader.admit(candidate)
        for name in sorted(set(allow or ()) - {candidate.name for candidate in candidates}):
            missing = PluginRecord(name=name, state="failed", stage="discover", error="allowed, but not installed")
            loader.records.append(missing)
        plugins = cls(loader.registrations, loader.records, process)
        plugins._check(strict, required)
        return plugins

    @classmethod
    def none(cls) -> Plugins:
        """A host without plugins."""
        return cls(Registrations(), ())

    def shutdown(self) -> None:
        """Tells those that were started up, the last one first. Never raises."""
        for plugin, stop in reversed(self._shutdowns):
            try:
                stop(process=self._process)
            except Exception as error:
                self.faults.report(plugin, "shutdown", error)

    def backend(self, name: str) -> Backend:
        """Raises PluginError, saying which backends there are and what became of a plugin of that name."""
        if name in self.backends:
            return self.backends[name]
        raise PluginError(f"no backend {name!r}; there are: {', '.join(self.backends) or 'none'}{self._fate(name)}")

    def choose(self, spec: ModelSpec, name: str | None = None) -> Backend:
        """The backend `name`, or else the most preferred that supports the model, the first registered among equals.
        Raises StartupError (UnsupportedArchitecture) with each backend's reason, PluginError when there is no backend
        of that name."""
        by_preference = sorted(
            (backend for backend in self.backends.values() if not backend.by_name_only),
            key=lambda backend: -backend.preference,
        )
        reasons = []
        for backend in by_preference if name is None else [self.backend(name)]:
            reason = self.verdict(backend, spec)
            if reason is None:
                return backend
            reasons.append(f"{backend.name}: {reason}")
        raise StartupError(
            f"no backend serves {spec.name} ({spec.architecture}): {'; '.join(reasons) or 'none is registered'}",
            code="UnsupportedArchitecture",
        )

    def verdict(self, backend: Backend, spec: ModelSpec) -> str | None:
        """None when the backend can serve the model, else the reason why not, in one line."""
        try:
            return backend.supports(spec)
        except Exception as error:
            return f"its supports() raised {one_line(error)}"

    def _check(self, strict: bool, required: Collection[str]) -> None:
        for failed in (record for record in self.records if strict and record.state == "failed"):
            raise PluginError(f"plugin {failed.name!r} failed at {failed.stage}: {failed.error}")
        able = {record.name for record in self.records if record.state == "loaded" and "authenticate" in record.hooks}
        for name in sorted(set(required) - able):
            fate = self._fate(name) or "; it is not installed"
            raise StartupError(f"plugin {name!r} must authenticate, and does not{fate}", code="PluginFailed")

    def _fate(self, name: str) -> str:
        """What became of the plugins of a name, as the end of a sentence."""
        fates = [f"; plugin {r.name!r} {r.state} {r.stage} {r.error}".rstrip() for r in self.records if r.name == name]
        return "".join(fates)


def _same(module: object) -> object:
    return module
