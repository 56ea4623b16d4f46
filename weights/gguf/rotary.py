"""The row order of the rotary projections."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

__all__ = ["unpermuted_rows"]

_BLOCK = re.compile(r"^blk\.\d+\.(\w+)\.(?:weight|bias)$")


def unpermuted_rows(name: str, num_rows: int, heads: Mapping[str, int]) -> npt.NDArray[np.intp]:
    """Where each row of the result comes from. `heads` counts the heads of attn_q and attn_k, where these were
    interleaved.

    llama.cpp rotates neighbouring pairs in some architectures, Hugging Face the two halves of a head; there the
    conversion to GGUF interleaved the halves of each head. This puts them back.
    """
    rows = np.arange(num_rows)
    match = _BLOCK.match(name)
    if match is None or match[1] not in heads:
        return rows
    return rows.reshape(heads[match[1]], -1, 2).swapaxes(1, 2).reshape(-1)
