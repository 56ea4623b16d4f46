"""A model as the operator names it."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

__all__ = ["ModelChoice"]

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")


class ModelChoice(NamedTuple):
    """`model` is a directory or a URI. `name` None: the model's own name is served."""

    name: str | None
    model: str

    @classmethod
    def of(cls, text: str) -> ModelChoice:
        """`MODEL` or `NAME=MODEL`."""
        name, equals, model = text.partition("=")
        # A URI may hold "=" too, but never before a ":"; a path may, and is then written ./a=b.
        if equals and model and _NAME.fullmatch(name):
            return cls(name, model)
        return cls(None, text)
