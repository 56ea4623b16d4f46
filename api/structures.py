"""What answers are to follow: the forms every wire knows, as grammars, and the check of one before it is queued."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from tickertape.api.calls import Structure
from tickertape.api.models import ServedModel
from tickertape.core.errors import InvalidRequest
from tickertape.core.request import Grammar

__all__ = ["ANY_OBJECT", "check_structure", "choice", "json_schema", "structural_tag"]

ANY_OBJECT: Final = Grammar("json_schema", '{"type":"object"}')
"""JSON mode."""

_MAX_CHOICES: Final = 4096


def json_schema(schema: Any, param: str) -> Structure:
    """Text of JSON that satisfies a JSON schema, given as such or as the text of one. Raises InvalidRequest."""
    if isinstance(schema, str):
        return Structure(Grammar("json_schema", schema), param)
    if not isinstance(schema, dict | bool):
        raise InvalidRequest(f"Invalid type for {param!r}: a JSON schema, an object, is wanted", code="invalid_type",
                             param=param)  # fmt: skip
    return Structure(Grammar("json_schema", json.dumps(schema)), param)


def choice(texts: Sequence[str], param: str) -> Structure:
    """One of the texts. Raises InvalidRequest when there is none, or too many."""
    if not 0 < len(texts) <= _MAX_CHOICES:
        raise InvalidRequest(
            f"Invalid value for {param!r}: {len(texts)} choices, at least 1 and at most {_MAX_CHOICES} are allowed",
            param=param,
        )
    alternatives = " | ".join(json.dumps(text) for text in dict.fromkeys(texts))
    return Structure(Grammar("lark", f"start: {alternatives}"), param)


def structural_tag(tag: Any, param: str) -> Structure:
    """Free text in which what follows a trigger is structured: `triggers`, and `structures` of begin, schema, end;
    given as such or as the text of it."""
    return Structure(Grammar("structural_tag", tag if isinstance(tag, str) else json.dumps(tag)), param)


async def check_structure(model: ServedModel, structure: Structure | None) -> None:
    """Raises InvalidRequest naming the field: the backend cannot follow any, or not this one. Raises Overloaded."""
    if structure is None:
        return
    param = structure.param
    if model.grammars is None or not model.capabilities.masks:
        raise InvalidRequest(f"{param!r} is not supported by the backend of this model", code="unsupported_value",
                             param=param)  # fmt: skip
    try:
        await model.grammars.check(structure.grammar)
    except InvalidRequest as error:
        raise InvalidRequest(f"Invalid value for {param!r}: {error.message}", code=error.code, param=param) from None
