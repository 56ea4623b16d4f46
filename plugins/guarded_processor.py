"""A registered logits processor whose check of arguments cannot fail a request by raising."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from tickertape.core.logits_processor import LogitsProcessorSpec
from tickertape.plugins.faults import Faults

__all__ = ["guarded_check"]


def guarded_check(plugin: str, spec: LogitsProcessorSpec, faults: Faults) -> LogitsProcessorSpec:
    """The same processor; arguments at which its `check` raises are refused, and that is its plugin's fault."""

    def check(arguments: Mapping[str, Any]) -> str | None:
        try:
            return spec.check(arguments)
        except Exception as error:
            faults.report(plugin, f"check of {spec.name!r}", error)
            return "the processor failed to check them"

    return replace(spec, check=check)
