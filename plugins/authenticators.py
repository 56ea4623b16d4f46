"""Plugins that say who calls. Whatever goes wrong here, nobody is let in."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final

from tickertape.core.errors import InvalidApiKey, Unavailable
from tickertape.plugins.caller import Caller
from tickertape.plugins.faults import Faults

__all__ = ["Authenticators"]

_PATIENCE_S: Final = 10.0
_MAX_TENANT_CHARS: Final = 128


class Authenticators:
    """`authenticators` are (plugin, function) pairs, asked one after another. False when there are none."""

    def __init__(self, authenticators: Sequence[tuple[str, Callable[..., Any]]], faults: Faults) -> None:
        self._authenticators = tuple(authenticators)
        self._faults = faults

    def __bool__(self) -> bool:
        return bool(self._authenticators)

    async def identify(self, caller: Caller) -> str:
        """The caller's tenant. Raises InvalidApiKey when no plugin knows the caller, Unavailable when one of those
        asked failed."""
        for plugin, authenticate in self._authenticators:
            try:
                tenant = authenticate(caller=caller)
                if inspect.isawaitable(tenant):
                    tenant = await asyncio.wait_for(tenant, _PATIENCE_S)
                if tenant is not None and not (isinstance(tenant, str) and 0 < len(tenant) <= _MAX_TENANT_CHARS):
                    raise TypeError(f"a tenant is a text of 1 to {_MAX_TENANT_CHARS} characters, or None")
            except InvalidApiKey:
                raise
            except Exception as error:
                self._faults.report(plugin, "authenticate", error)
                raise Unavailable("The server cannot check who calls", code="auth_unavailable") from error
            if tenant is not None:
                return str(tenant)
        raise InvalidApiKey("The credentials are not valid")
