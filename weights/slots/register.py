"""A record that several computers read and change, one at a time."""

from __future__ import annotations

from typing import Protocol, TypeVar

__all__ = ["Register", "RegisterDenied", "RegisterFault"]

Record = TypeVar("Record")


class RegisterFault(Exception):
    """Nothing is known: whoever keeps the record did not answer. What was to be written may have been, or may yet be.
    The message is one line for the operator."""


class RegisterDenied(RegisterFault):
    """It answered that this record is not there or not for us. Others may be."""


class Register(Protocol[Record]):
    """Linearizable. Thread-safe. Both methods raise RegisterFault, after a bounded time."""

    def read(self) -> tuple[Record, str]:
        """The record and its version; a record that nobody wrote yet has its default."""
        ...

    def compare_and_swap(self, record: Record, version: str) -> str | None:
        """Writes the record if its version is still `version`, and returns the new one. None: somebody else wrote,
        before or straight after."""
        ...
