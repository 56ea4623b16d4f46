"""What a constraint allows, as ids."""

from __future__ import annotations

import numpy as np

from tickertape.core.grammar import Constraint

__all__ = ["allowed_tokens"]


def allowed_tokens(constraint: Constraint, vocab_size: int) -> list[int]:
    """The ids that may come next, ascending."""
    line = np.full(-(-vocab_size // 32), -1, dtype=np.int32)
    constraint.fill(line)
    bits = np.unpackbits(line.view(np.uint8), bitorder="little")[:vocab_size]
    return [int(token) for token in np.flatnonzero(bits)]
