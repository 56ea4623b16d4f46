"""The protocol's messages."""

from __future__ import annotations

from typing import Any, Final

from tickertape.api.grpc.foreign import Foreign

__all__ = ["FMAAS", "messages"]

FMAAS: Final = "fmaas.GenerationService"


def messages() -> Any:
    """The message classes by their names."""
    return Foreign("fmaas")
