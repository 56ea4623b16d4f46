"""The list of plugins, as `GET /v1/plugins` and `tickertape plugins --json` tell it."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from tickertape.core.backend import Capabilities, ModelSpec
from tickertape.plugins.hookspecs import API
from tickertape.plugins.manager import PluginRecord, Plugins

__all__ = ["PluginList", "list_plugins"]


class ListedBackend(Struct):
    """A backend, the plugin it came with and, where a model was named, whether it serves that, or the reason why
    not."""

    name: str
    kind: str
    plugin: str
    summary: str
    capabilities: Capabilities
    supports: bool | UnsetType = UNSET
    reason: str | UnsetType = UNSET


class ListedPlugin(Struct):
    """A plugin's record, and how often it failed since it was loaded."""

    name: str
    distribution: str
    version: str
    state: str
    api: str | None
    hooks: tuple[str, ...]
    registered: dict[str, tuple[str, ...]]
    stage: str
    error: str
    num_faults: int


class PluginList(Struct):
    """`api` is the version that the host speaks."""

    api: str
    data: list[ListedPlugin]
    backends: list[ListedBackend]
    object: str = "list"


def list_plugins(plugins: Plugins, spec: ModelSpec | None = None) -> PluginList:
    """How the plugins of this process fared, and the backends they brought."""
    owners = {name: record.name for record in plugins.records for name in record.registered.get("backends", ())}
    listed = PluginList(api=_dotted(API), data=[_describe(record, plugins) for record in plugins.records], backends=[])
    for name, backend in plugins.backends.items():
        entry = ListedBackend(name, backend.kind, owners[name], backend.summary, backend.capabilities)
        if spec is not None:
            reason = plugins.verdict(backend, spec)
            entry.supports = reason is None
            entry.reason = UNSET if reason is None else reason
        listed.backends.append(entry)
    return listed


def _describe(record: PluginRecord, plugins: Plugins) -> ListedPlugin:
    return ListedPlugin(
        name=record.name,
        distribution=record.distribution,
        version=record.version,
        state=record.state,
        api=None if record.api is None else _dotted(record.api),
        hooks=record.hooks,
        registered=record.registered,
        stage=record.stage,
        error=record.error,
        num_faults=plugins.faults.counts.get(record.name, 0),
    )


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
