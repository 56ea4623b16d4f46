"""Computes a few tokens twice and compares: packed, in pieces and over scattered blocks, and the library's way, one
sequence at a time. Flags and shapes do not tell everything; this does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from tickertape.plugins import Limits, Row
from tickertape.plugins.backends.transformers.gather import gather_attention
from tickertape.plugins.backends.transformers.interface import unsupported
from tickertape.plugins.backends.transformers.layout import Layout
from tickertape.plugins.backends.transformers.library import on_one_thread, one_line, quietly
from tickertape.plugins.backends.transformers.paged_model import PagedModel
from tickertape.plugins.backends.transformers.probe import probe
from tickertape.plugins.backends.transformers.rope import pin_frequencies
from tickertape.plugins.backends.transformers.twin import make_twin

__all__ = ["check_twin"]

_LENGTHS: Final = (41, 29)  # more than the twin's windows and chunks
_PIECES: Final = ((13, 5), (7, 1), (1, 20), (20, 3))  # tokens of each sequence, step by step
_LIMITS: Final = Limits(max_model_len=64, max_num_seqs=2, max_batch_tokens=64, block_tokens=8)
_TOLERANCE: Final = 1e-2  # of the largest logit: rounding gives 1e-6, 1e-3 in deep twins; a wrong mask 1e-1 and more


def check_twin(config: Any, *, trust_remote_code: bool = False) -> None:
    """Raises StartupError (UnsupportedArchitecture) when a small twin of the model does not compute over paged memory
    what it computes alone, or when no twin can be made to find out."""
    with on_one_thread():
        twin, ids, expected = _reference(config, trust_remote_code)
        found = _packed(twin, probe(twin), ids)
    for one, other in zip(expected, found, strict=True):
        apart = float((one - other).abs().max() / one.abs().max())
        if not apart < _TOLERANCE:  # NaN is apart, too
            raise unsupported(f"computed over packed rows its logits are {apart:.2g} off")


def _reference(config: Any, trust_remote_code: bool) -> tuple[Any, list[torch.Tensor], list[torch.Tensor]]:
    """A twin, token ids, and its logits as the library itself computes them."""
    for all_layers in (False, True):  # layers that share keys and values fit together in their own numbers only
        try:
            twin = make_twin(config, all_layers=all_layers, trust_remote_code=trust_remote_code)
            pin_frequencies(twin, _LIMITS.max_model_len)
            vocab_size = twin.config.get_text_config().vocab_size
            ids = [torch.arange(5, 5 + 3 * length, 3) % vocab_size for length in _LENGTHS]
            return twin, ids, _alone(twin, ids)
        except Exception as error:
            reason = one_line(error)
    raise unsupported(f"no small twin of it can be made to check it with ({reason})")


def _alone(model: Any, ids: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    with quietly(), torch.inference_mode():
        return [model(input_ids=each[None], use_cache=False).logits[0] for each in ids]


def _packed(model: Any, layout: Layout, ids: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    paging = layout.paging(_LIMITS, torch.float32.itemsize)
    paged = PagedModel(layout, paging, gather_attention, torch.device("cpu"))
    try:
        with quietly():
            model.set_attn_implementation(paged.attention_name)
        paged.adopt(model)
        paged.allocate([17] * len(paging.groups), torch.float32, fill=float("nan"))
        order = np.random.default_rng(0).permutation(16).astype(np.int32) + 1
        tables = [order.reshape(2, 8)] * len(paging.groups)
        found: list[list[torch.Tensor]] = [[] for _ in ids]
        done = [0] * len(ids)
        for counts in _PIECES:
            rows = [
                Row(slot, each[start : start + count].tolist(), start, count)
                for slot, (each, start, count) in enumerate(zip(ids, done, counts, strict=True))
            ]
            for slot, logits in enumerate(paged.logits(rows, tables).split(counts)):
                found[slot].append(logits)
                done[slot] += counts[slot]
        return [torch.cat(pieces) for pieces in found]
    finally:
        paged.close()
