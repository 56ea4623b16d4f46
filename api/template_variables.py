"""The variables of a chat template that a call sets: by their names, or by how much it wants to be thought."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tickertape.api.templates import ChatTemplate
from tickertape.core.errors import InvalidRequest

__all__ = ["template_variables"]

_SWITCHES: Final = ("enable_thinking", "thinking")
"""What templates call the switch of their model's reasoning."""


def template_variables(template: ChatTemplate, given: Mapping[str, Any], effort: str | None) -> Mapping[str, Any]:
    """What is given, and what a reasoning effort means to the template. Raises InvalidRequest for a variable that the
    template never looks at, which would make no difference, and for an effort that it knows nothing of."""
    for name in given:
        if name not in template.variables:
            param = f"chat_template_kwargs.{name[:100]}"
            raise InvalidRequest(f"{param!r}: the chat template has no such variable", code="unsupported_value",
                                 param=param)  # fmt: skip
    made = _effort(template, effort)
    for name in made.keys() & given.keys():
        if made[name] != given[name]:
            raise InvalidRequest(f"'reasoning_effort' contradicts 'chat_template_kwargs.{name}'",
                                 param="reasoning_effort")  # fmt: skip
    return {**given, **made}


def _effort(template: ChatTemplate, effort: str | None) -> Mapping[str, Any]:
    if effort is None:
        return {}
    if "reasoning_effort" in template.variables:
        return {"reasoning_effort": effort}
    switches = [name for name in _SWITCHES if name in template.variables]
    if effort == "none":
        return {switches[0]: False} if switches else {}
    there = "it can only be switched off, with none" if switches else "it takes none only"
    raise InvalidRequest(f"'reasoning_effort' is not supported by this model; {there}", code="unsupported_value",
                         param="reasoning_effort")  # fmt: skip
