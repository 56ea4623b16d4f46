"""What is wrong with settings, in sentences that name the flag, the variable or the file to blame."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import ValidationError

__all__ = ["worded"]


def worded(
    error: ValidationError, flags: Mapping[str, Any], variables: Collection[str], prefix: str, file: str
) -> tuple[str, ...]:
    """A line for each fault. `flags` are what the command line gave, `variables` the settings that the environment
    gave, as names that start with `prefix`; the rest stood in `file`."""
    return tuple(
        f"{_origin(fault['loc'], flags, variables, prefix, file)}{_reason(fault['type'], fault['msg'])}"
        for fault in error.errors(include_url=False, include_input=False)
    )


def _origin(
    where: tuple[int | str, ...], flags: Mapping[str, Any], variables: Collection[str], prefix: str, file: str
) -> str:
    if not where:
        return ""
    name = str(where[0])
    if name in flags:
        return "MODEL: " if name == "models" else f"--{name.replace('_', '-')}: "
    if name in variables:
        return f"{prefix}{name.upper()}: "
    return f"{file}: {name}: "


def _reason(kind: str, message: str) -> str:
    if kind == "extra_forbidden":
        return "no such setting"
    return message.removeprefix("Value error, ").removeprefix("Input ")
