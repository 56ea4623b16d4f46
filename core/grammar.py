"""The seam to a grammar library: what the engine knows of constraints. The library comes in from outside."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tickertape.core.request import Grammar

__all__ = ["Constraint", "GrammarCompiler"]


class Constraint(Protocol):
    """Where one sequence stands in its grammar; one thread at a time uses it. After it has raised, it is of no use.

    Stop tokens never belong to the text: they may come where the text so far is complete, and are not `accept`ed.
    """

    @property
    def is_done(self) -> bool:
        """Whether the text is complete and nothing can be added to it: the sequence ends, with or without a stop
        token."""
        ...

    def accept(self, tokens: Sequence[int]) -> None:
        """Moves over the ids that follow. Raises RowError when they do not fit, InvalidRequest when moving costs too
        much."""
        ...

    def fill(self, line: NDArray[np.int32]) -> None:
        """Writes which ids may come next to `line` [mask_words], as in `Masks.bits`; takes from microseconds to some
        milliseconds, without Python's lock. Raises InvalidRequest when none may, or when finding them costs too much:
        that is the grammar's fault."""
        ...


class GrammarCompiler(Protocol):
    """Thread-safe. `mask_words` is the length of a line of `Masks.bits`: ceil(vocabulary / 32)."""

    mask_words: int

    def compile(self, grammar: Grammar, stop_tokens: Collection[int]) -> Constraint:
        """A constraint at its beginning. May take long; a grammar seen before takes microseconds. Raises
        InvalidRequest for a grammar that is wrong, too large, or that no text can satisfy."""
        ...
