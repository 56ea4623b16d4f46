"""The KV memory of a server, from its /metrics."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

__all__ = ["Figures", "read_figures"]

_LINE: Final = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? ([^ ]+)")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Figures(Struct, frozen=True):
    """All zeros when the server does not tell."""

    num_blocks: int = 0
    num_used_blocks: int = 0
    kv_capacity_tokens: int = 0


def read_figures(text: str) -> Figures:
    """Of vLLM (of all its engines together) and of SGLang, which counts tokens; ours shows a ratio, and that is no
    number of blocks. Lines that are not understood are passed over."""
    num_blocks = capacity = 0
    num_engines, used_ratio = 0, 0.0
    for line in text.splitlines():
        if (match := _LINE.match(line)) is None:
            continue
        name, labels, value = match.groups()
        if name == "vllm:cache_config_info":
            found = dict(_LABEL.findall(labels or ""))
            blocks = _number(found.get("num_gpu_blocks"))
            num_blocks += blocks
            capacity = max(capacity, blocks * _number(found.get("block_size")))
        elif name == "sglang:max_total_num_tokens":
            capacity = max(capacity, _number(value))
            num_blocks += _number(value)
        elif name in ("vllm:kv_cache_usage_perc", "sglang:token_usage"):
            num_engines += 1
            used_ratio += _ratio(value)
    mean = used_ratio / num_engines if num_engines else 0.0
    return Figures(num_blocks, round(num_blocks * mean), capacity)


def _number(text: str | None) -> int:
    try:
        return max(0, int(float(text or 0)))
    except (ValueError, OverflowError):
        return 0


def _ratio(text: str) -> float:
    try:
        return min(1.0, max(0.0, float(text)))
    except ValueError:
        return 0.0
