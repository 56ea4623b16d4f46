"""What the request models are made of: closed, strict, and with faults that name the field as the client spells it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from tickertape.core.errors import InvalidRequest

__all__ = ["ENTRIES", "MAX_ENTRIES", "Closed", "TextOrTexts", "checked", "field_path"]

M = TypeVar("M", bound=BaseModel)

MAX_ENTRIES: Final = 4096
"""Of any list or object whose entries are looked at one by one here; bounds what parsing a body costs."""

ENTRIES: Final[Any] = Field(max_length=MAX_ENTRIES, fail_fast=True)
"""Of an array: no more than that, and none is looked at after the first wrong one."""

_MAX_SHOWN_CHARS: Final = 100


class Closed(BaseModel):
    """Unknown fields are refused, nothing is coerced, NaN is no number."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


TextOrTexts = Annotated[
    list[str],
    ENTRIES,
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value, json_schema_input_type=str | list[str]),
]
"""A string stands for a list of one."""

_WANTED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "string_type": "a string",
        "string_unicode": "a string of valid Unicode",
        "int_type": "an integer",
        "int_parsing": "an integer",
        "int_from_float": "an integer",
        "float_type": "a number",
        "float_parsing": "a number",
        "finite_number": "a finite number",
        "bool_type": "a boolean",
        "bool_parsing": "a boolean",
        "list_type": "an array",
        "dict_type": "an object",
        "model_type": "an object",
        "model_attributes_type": "an object",
    }
)


def checked(model: type[M], body: Mapping[str, Any]) -> M:
    """The body as a model. Raises InvalidRequest for its first fault: codes missing_required_parameter,
    unknown_parameter, invalid_type, unsupported_value, invalid_value."""
    if len(body) > len(fields := model.model_fields):  # each would be a fault of its own, and these are slow to make
        unknown = next(name for name in body if name not in fields)
        raise _refusal("extra_forbidden", field_path((unknown,)), {}, None)
    try:
        return model.model_validate(body)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        raise _refusal(fault["type"], field_path(fault["loc"]), fault.get("ctx", {}), fault["input"]) from None


def field_path(where: tuple[int | str, ...]) -> str:
    """`messages[0].content[1].type`. The tags of unions, written `<so>`, are not the client's."""
    path = ""
    for step in where:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not (step.startswith("<") and step.endswith(">")):
            path += f".{step[:_MAX_SHOWN_CHARS]}" if path else step[:_MAX_SHOWN_CHARS]
    return path


def _refusal(kind: str, param: str, context: Mapping[str, Any], given: object) -> InvalidRequest:
    if kind == "missing":
        return InvalidRequest(f"Missing required parameter: {param!r}", code="missing_required_parameter", param=param)
    if kind == "extra_forbidden":
        return InvalidRequest(f"Unknown parameter: {param!r}", code="unknown_parameter", param=param)
    if kind == "literal_error":
        text = f"Invalid value for {param!r}: supported are {context['expected']}"
        return InvalidRequest(text, code="unsupported_value", param=param)
    if kind == "too_long":
        text = f"Invalid value for {param!r}: at most {context['max_length']} entries are allowed"
        return InvalidRequest(text, code="invalid_value", param=param)
    if kind == "unsupported_value":
        return InvalidRequest(f"{param!r}: {context['reason']}", code="unsupported_value", param=param)
    if (wanted := _WANTED.get(kind)) is not None:
        text = f"Invalid type for {param!r}: {wanted} is wanted, {_named(given)} was given"
        return InvalidRequest(text, code="invalid_type", param=param)
    return InvalidRequest(f"Invalid value for {param!r}", code="invalid_value", param=param)


def _named(value: object) -> str:
    """What JSON calls it."""
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "an integer", float: "a number", str: "a string", list: "an array"}
    return names.get(type(value), "an object")
