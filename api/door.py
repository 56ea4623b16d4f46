"""Who is let in: the server's own keys first, then the plugins that authenticate."""

from __future__ import annotations

from contextlib import suppress

from starlette.types import Scope

from tickertape.api.keys import Keys
from tickertape.core.errors import InvalidApiKey
from tickertape.plugins.authenticators import Authenticators
from tickertape.plugins.caller import Caller

__all__ = ["Door"]


class Door:
    """With neither keys nor authenticating plugins everybody is let in."""

    def __init__(self, keys: Keys, authenticators: Authenticators) -> None:
        self._keys = keys
        self._authenticators = authenticators

    async def admit(self, scope: Scope) -> str:
        """The tenant of an HTTP request. Raises InvalidApiKey, and Unavailable when a plugin cannot tell."""
        if not self._authenticators:
            return self._keys.check(scope["headers"])
        if self._keys:
            with suppress(InvalidApiKey):
                return self._keys.check(scope["headers"])
        return await self._authenticators.identify(_caller(scope))


def _caller(scope: Scope) -> Caller:
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    client = scope.get("client")
    return Caller(method=scope["method"], path=scope["path"], headers=headers, client=client[0] if client else "")
