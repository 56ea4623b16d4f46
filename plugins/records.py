"""How a plugin fared."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

__all__ = ["PluginRecord", "PluginState"]

PluginState = Literal["loaded", "failed", "blocked"]


class PluginRecord(Struct, frozen=True, kw_only=True):
    """`api` is the version it declares, `stage` where it failed (discover, import, version, register, or the name of a
    hook), `error` one line. `registered` has what it brought, by kind."""

    name: str
    distribution: str = ""
    version: str = ""
    state: PluginState
    api: tuple[int, int] | None = None
    hooks: tuple[str, ...] = ()
    registered: dict[str, tuple[str, ...]] = {}
    stage: str = ""
    error: str = ""
