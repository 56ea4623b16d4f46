"""The fields that ask for structured output, in OpenAI's spelling, vLLM's, and vLLM's older one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, Protocol

from pydantic import Field

from tickertape.api.calls import Structure
from tickertape.api.openai.fields import ENTRIES, Closed
from tickertape.api.structures import ANY_OBJECT, choice, json_schema, structural_tag
from tickertape.core.errors import InvalidRequest
from tickertape.core.request import Grammar

__all__ = ["Choices", "ResponseFormat", "StructureFields", "StructuredOutputs", "structure_of"]

_ONLY_IN: Final = {"json_schema": "json_schema", "triggers": "structural_tag", "structures": "structural_tag"}
"""Keys of a response_format that belong to one type of it."""

Choices = Annotated[list[str], ENTRIES]


class JsonSchemaFormat(Closed):
    """`strict` makes no difference: a schema is enforced either way, and refused when it cannot be."""

    name: str
    description: str | None = None
    schema_: Any = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Closed):
    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    triggers: Annotated[list[str], ENTRIES] | None = None
    structures: Annotated[list[dict[str, Any]], ENTRIES] | None = None


class StructuredOutputs(Closed):
    """One of these."""

    json_: Any = Field(None, alias="json")
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: Any = None


class StructureFields(Protocol):
    """The fields of a body; at most one may ask for something."""

    response_format: ResponseFormat | None
    structured_outputs: StructuredOutputs | None
    structural_tag: Any
    guided_json: Any
    guided_regex: str | None
    guided_choice: list[str] | None
    guided_grammar: str | None


def structure_of(request: StructureFields) -> Structure | None:
    """Raises InvalidRequest for fields that contradict each other, and for a value that is none."""
    found = list(_asked(request))
    if len(found) > 1:
        first, second = found[0].param, found[1].param
        raise InvalidRequest(f"{second!r} excludes {first!r}: an answer follows one of them", param=second)
    return found[0] if found else None


def _asked(request: StructureFields) -> Iterator[Structure]:
    if (structure := _response_format(request.response_format)) is not None:
        yield structure
    if (given := request.structured_outputs) is not None:
        asked = list(_vllm("structured_outputs.", given.json_, given.regex, given.choice, given.grammar))
        if given.json_object:
            asked.append(Structure(ANY_OBJECT, "structured_outputs.json_object"))
        if given.structural_tag is not None:
            asked.append(structural_tag(given.structural_tag, "structured_outputs.structural_tag"))
        if not asked:
            raise InvalidRequest("Invalid value for 'structured_outputs': it asks for nothing",
                                 param="structured_outputs")  # fmt: skip
        yield from asked
    if request.structural_tag is not None:
        yield structural_tag(request.structural_tag, "structural_tag")
    yield from _vllm(
        "guided_", request.guided_json, request.guided_regex, request.guided_choice, request.guided_grammar
    )


def _response_format(given: ResponseFormat | None) -> Structure | None:
    if given is None:
        return None
    for key, kind in _ONLY_IN.items():
        if (getattr(given, key) is None) == (kind == given.type):
            param = f"response_format.{key}"
            if kind == given.type:
                raise _missing(param)
            raise InvalidRequest(f"Unknown parameter: {param!r} of type {given.type}", code="unknown_parameter",
                                 param=param)  # fmt: skip
    if given.json_schema is not None:
        return _named_schema(given.json_schema, "response_format.json_schema.schema")
    if given.type == "structural_tag":
        return structural_tag({"triggers": given.triggers, "structures": given.structures}, "response_format")
    return Structure(ANY_OBJECT, "response_format") if given.type == "json_object" else None


def _named_schema(given: JsonSchemaFormat, param: str) -> Structure:
    if given.schema_ is None:
        raise _missing(param)
    if isinstance(given.schema_, str):
        raise InvalidRequest(f"Invalid type for {param!r}: an object is wanted, a string was given",
                             code="invalid_type", param=param)  # fmt: skip
    return json_schema(given.schema_, param)


def _missing(param: str) -> InvalidRequest:
    return InvalidRequest(f"Missing required parameter: {param!r}", code="missing_required_parameter", param=param)


def _vllm(
    prefix: str, schema: Any, regex: str | None, choices: list[str] | None, grammar: str | None
) -> Iterator[Structure]:
    if schema is not None:
        yield json_schema(schema, f"{prefix}json")
    if regex is not None:
        yield Structure(Grammar("regex", regex), f"{prefix}regex")
    if choices is not None:
        yield choice(choices, f"{prefix}choice")
    if grammar is not None:
        yield Structure(Grammar("lark", grammar), f"{prefix}grammar")
