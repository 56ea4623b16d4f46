"""Finds plugins, lets them register, and keeps what they registered. The only place that calls a hook.

Each plugin loads by itself and whole: at the first thing that is wrong (import, version, an unknown hook, a hook that
raises, a name that is taken) it is taken out again with one line in its record, and the others go on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import pluggy
from msgspec import Struct

from tickertape.core.backend import Backend, ModelSpec
from tickertape.core.errors import PluginError, StartupError
from tickertape.core.output_parser import OutputParserSpec
from tickertape.core.sources import WeightSource
from tickertape.plugins import hookspecs
from tickertape.plugins.candidates import Candidate, files_of, installed
from tickertape.plugins.registrations import Draft, Registrations

__all__ = ["PluginRecord", "Plugins"]


class PluginRecord(Struct, frozen=True, kw_only=True):
    """How one plugin fared. `api` is the version it declares, `stage` where it failed (discover, import, version,
    register, or the name of a hook), `error` one line."""

    name: str
    distribution: str = ""
    version: str = ""
    state: Literal["loaded", "failed", "blocked"]
    api: tuple[int, int] | None = None
    hooks: tuple[str, ...] = ()
    stage: str = ""
    error: str = ""


class Plugins:
    """What the plugins of this process registered, and how each of them fared. Does not change once loaded."""

    def __init__(self, registrations: Registrations, records: Iterable[PluginRecord]) -> None:
        self.backends: Mapping[str, Backend] = MappingProxyType(registrations.backends)
        self.parsers: Mapping[str, OutputParserSpec] = MappingProxyType(registrations.parsers)
        self.sources: Mapping[str, WeightSource] = MappingProxyType(registrations.sources)
        self.records = tuple(records)

    @classmethod
    def load(
        cls,
        *,
        allow: Collection[str] | None = None,
        block: Collection[str] = (),
        directory: str | Path | None = None,
        strict: bool = False,
        found: Iterable[EntryPoint] | None = None,
    ) -> Plugins:
        """Loads the built-in plugins, then the installed ones by name, then each `*.py` of `directory`.

        `allow` names the only strangers to load (built-ins load in any case), `block` names plugins never to load,
        `found` stands in for the entry points of the environment. Raises StartupError (PathNotFound) when there is
        no such `directory`, and with `strict` PluginError for the first plugin that failed.
        """
        candidates = installed(entry_points(group=hookspecs.PROJECT) if found is None else found)
        if directory is not None:
            candidates += files_of(Path(directory))
        host = _Host()
        for candidate in candidates:
            stranger = not candidate.builtin and allow is not None and candidate.name not in allow
            if stranger or candidate.name in block:
                host.record(candidate, "blocked")
            else:
                host.admit(candidate)
        for name in sorted(set(allow or ()) - {candidate.name for candidate in candidates}):
            missing = PluginRecord(name=name, state="failed", stage="discover", error="allowed, but not installed")
            host.records.append(missing)
        for failed in (record for record in host.records if strict and record.state == "failed"):
            raise PluginError(f"plugin {failed.name!r} failed at {failed.stage}: {failed.error}")
        return cls(host.registrations, host.records)

    def backend(self, name: str) -> Backend:
        """Raises PluginError, saying which backends there are and what became of a plugin of that name."""
        if name in self.backends:
            return self.backends[name]
        fates = [f"; plugin {r.name!r} {r.state} {r.stage} {r.error}".rstrip() for r in self.records if r.name == name]
        raise PluginError(f"no backend {name!r}; there are: {', '.join(self.backends) or 'none'}{''.join(fates)}")

    def choose(self, spec: ModelSpec, name: str | None = None) -> Backend:
        """The backend `name`, or else the most preferred that supports the model, the first registered among equals.
        Raises StartupError (UnsupportedArchitecture) with each backend's reason, PluginError when there is no backend
        of that name."""
        by_preference = sorted(self.backends.values(), key=lambda backend: -backend.preference)
        reasons = []
        for backend in by_preference if name is None else [self.backend(name)]:
            reason = _verdict(backend, spec)
            if reason is None:
                return backend
            reasons.append(f"{backend.name}: {reason}")
        raise StartupError(
            f"no backend serves {spec.name} ({spec.architecture}): {'; '.join(reasons) or 'none is registered'}",
            code="UnsupportedArchitecture",
        )


class _Host:
    """The loading itself: pluggy's manager, what was registered so far, and the records so far."""

    def __init__(self) -> None:
        self.registrations = Registrations()
        self.records: list[PluginRecord] = []
        self._pm = pluggy.PluginManager(hookspecs.PROJECT)
        self._pm.add_hookspecs(hookspecs)

    def admit(self, candidate: Candidate) -> None:
        """Loads one plugin, all of it or nothing."""
        stage, plugin = "import", None
        draft = Draft(candidate.name, self.registrations)
        try:
            plugin = candidate.load()
            stage = "version"
            _check_version(plugin)
            stage = "register"
            if self._pm.register(plugin, candidate.name) is None:
                raise PluginError("blocked by pluggy")
            self._pm.check_pending()
            for stage, register in (
                ("register_backends", draft.add_backend),
                ("register_output_parsers", draft.add_parser),
                ("register_weight_sources", draft.add_source),
            ):
                self._pm.subset_hook_caller(stage, self._others(plugin))(register=register)
                draft.verify()
        except (Exception, SystemExit) as error:
            if self._pm.is_registered(plugin):
                self._pm.unregister(plugin)
            self.record(candidate, "failed", plugin, stage=stage, error=_one_line(error))
        else:
            self.registrations.take(draft)
            hooks = tuple(sorted(caller.name for caller in self._pm.get_hookcallers(plugin) or ()))
            self.record(candidate, "loaded", plugin, hooks=hooks)

    def record(
        self,
        candidate: Candidate,
        state: Literal["loaded", "failed", "blocked"],
        plugin: object = None,
        *,
        hooks: tuple[str, ...] = (),
        stage: str = "",
        error: str = "",
    ) -> None:
        self.records.append(
            PluginRecord(
                name=candidate.name,
                distribution=candidate.distribution,
                version=candidate.version,
                state=state,
                api=_version(plugin),
                hooks=hooks,
                stage=stage,
                error=error,
            )
        )

    def _others(self, plugin: object) -> list[object]:
        return [other for other in self._pm.get_plugins() if other is not plugin]


def _version(plugin: object) -> tuple[int, int] | None:
    match getattr(plugin, "API", None):
        case (int(major), int(minor)):
            return major, minor
    return None


def _check_version(plugin: object) -> None:
    version = _version(plugin)
    major, minor = hookspecs.API
    if version is None:
        raise PluginError(f"it declares no API = (major, minor); this host speaks {major}.{minor}")
    if version[0] != major or version[1] > minor:
        raise PluginError(f"it needs API {version[0]}.{version[1]}, this host speaks {major}.{minor}")


def _verdict(backend: Backend, spec: ModelSpec) -> str | None:
    try:
        return backend.supports(spec)
    except Exception as error:
        return f"its supports() raised {_one_line(error)}"


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, PluginError) else f"{type(error).__name__}: {text}"
