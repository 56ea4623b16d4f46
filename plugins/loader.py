"""Loads plugins, each by itself and whole. The only place that calls a hook.

At the first thing that is wrong (import, version, an unknown hook, a hook that raises, a name that is taken) a plugin
is taken out again with one line in its record, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

import pluggy

from tickertape.core.errors import PluginError
from tickertape.plugins import hookspecs
from tickertape.plugins.candidates import Candidate
from tickertape.plugins.records import PluginRecord, PluginState
from tickertape.plugins.registrations import Draft, Registrations

__all__ = ["Loader", "one_line"]

_LATER: Final = {"authenticate": "authenticators", "observe": "observers", "shutdown": "shutdowns"}
"""Hooks that are only collected here, by where to."""


class Loader:
    """`registrations` and `records` so far. `process` None: nobody is going to serve, so `startup` is not called.
    `routes` names the plugins that may register some."""

    def __init__(self, process: hookspecs.Process | None, routes: Collection[str]) -> None:
        self.registrations = Registrations()
        self.records: list[PluginRecord] = []
        self._process = process
        self._routes = routes
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
            hooks = {name: _plain(implementation) for name, implementation in self._implementations(plugin)}
            for stage, register in self._collecting(draft):
                if stage in hooks:
                    hooks[stage](register=register)
                draft.verify()
            for name, where in _LATER.items():
                if name in hooks:
                    getattr(draft.found, where).append((candidate.name, hooks[name]))
            stage = "startup"
            if self._process is not None and stage in hooks:
                hooks[stage](process=self._process)
        except (Exception, SystemExit) as error:
            if self._pm.is_registered(plugin):
                self._pm.unregister(plugin)
            self.record(candidate, "failed", plugin, stage=stage, error=one_line(error))
        else:
            self.registrations.take(candidate.name, draft.found)
            self.record(candidate, "loaded", plugin, hooks=tuple(sorted(hooks)), registered=draft.found.names())

    def record(self, candidate: Candidate, state: PluginState, plugin: object = None, **more: Any) -> None:
        self.records.append(
            PluginRecord(
                name=candidate.name,
                distribution=candidate.distribution,
                version=candidate.version,
                state=state,
                api=_version(plugin),
                **more,
            )
        )

    def _collecting(self, draft: Draft) -> list[tuple[str, Callable[[Any], None]]]:
        hooks: list[tuple[str, Callable[[Any], None]]] = [
            ("register_backends", draft.add_backend),
            ("register_weight_sources", draft.add_source),
            ("register_tokenizers", draft.add_tokenizer),
            ("register_output_parsers", draft.add_parser),
            ("register_logits_processors", draft.add_processor),
        ]
        if draft.plugin in self._routes:
            hooks.append(("register_routes", draft.add_route))
        return hooks

    def _implementations(self, plugin: object) -> list[tuple[str, pluggy.HookImpl]]:
        return [
            (caller.name, implementation)
            for caller in self._pm.get_hookcallers(plugin) or ()
            for implementation in caller.get_hookimpls()
            if implementation.plugin is plugin
        ]


def _plain(implementation: pluggy.HookImpl) -> Callable[..., Any]:
    """The function of a hook as one that takes any keywords of the host and leaves out those it does not know."""
    if implementation.wrapper or implementation.hookwrapper:
        raise PluginError("hooks of other plugins cannot be wrapped")
    function, names = implementation.function, implementation.argnames

    def call(**given: Any) -> Any:
        return function(*[given[name] for name in names])

    return call


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


def one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, PluginError) else f"{type(error).__name__}: {text}"
