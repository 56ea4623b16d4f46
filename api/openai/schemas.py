"""JSON schemas of what the OpenAI routes take and give, from the models that check and the structs that spell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from tickertape.api.openai.errors import ErrorBody
from tickertape.api.openai.folds import ChatAnswer, CompletionAnswer
from tickertape.api.openai.refusals import CHAT_FIXED, COMPLETION_FIXED
from tickertape.api.openai.requests import ChatRequest, CompletionRequest
from tickertape.api.openai.routes import ModelBody, ModelListBody
from tickertape.api.ranges import RANGES

__all__ = ["REF", "answer_schemas", "request_schemas", "struct_schemas"]

REF: Final = "#/components/schemas/"

Schema = dict[str, Any]

_IDS: Final = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_PROMPT: Final = {
    "anyOf": [
        {"type": "string"},
        _IDS,
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
        {"type": "array", "items": _IDS, "minItems": 1},
    ]
}


def request_schemas(served: Sequence[str]) -> dict[str, Schema]:
    """By name, the bodies and what they are made of. `served` are the models' names; none: any text."""
    models: list[tuple[type[BaseModel], Any]] = [(ChatRequest, "validation"), (CompletionRequest, "validation")]
    _, found = models_json_schema(models, ref_template=REF + "{model}")
    schemas: dict[str, Schema] = found["$defs"]
    for name, fixed in (("ChatRequest", CHAT_FIXED), ("CompletionRequest", COMPLETION_FIXED)):
        properties = schemas[name]["properties"]
        for field, taken in fixed.items():
            properties[field] = {"enum": [None, *taken]}
        if served:
            properties["model"]["enum"] = list(served)
        for field in RANGES.keys() & properties.keys():
            _bound(properties[field], field)
    schemas["ChatRequest"]["properties"]["messages"]["minItems"] = 1
    schemas["CompletionRequest"]["properties"]["prompt"] = _PROMPT
    return {name: _plain(schema) for name, schema in schemas.items()}


def answer_schemas() -> dict[str, Schema]:
    return struct_schemas(ChatAnswer, CompletionAnswer, ModelBody, ModelListBody, ErrorBody)


def struct_schemas(*structs: type[msgspec.Struct]) -> dict[str, Schema]:
    """By name, the structs and what they are made of."""
    _, found = msgspec.json.schema_components(structs, ref_template=REF + "{name}")
    return {name.lstrip("_"): _plain(schema) for name, schema in found.items()}


def _bound(schema: Schema, field: str) -> None:
    bounds = RANGES[field]
    for kind in schema.get("anyOf", (schema,)):
        if kind.get("type") in ("integer", "number"):
            kind["exclusiveMinimum" if bounds.above_low else "minimum"] = bounds.low
            kind["maximum"] = bounds.high


def _plain(schema: Any) -> Any:
    """Without the titles and empty defaults that say nothing, and the underscores of private structs."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    plain: Schema = {}
    for key, value in schema.items():
        if key == "$ref":
            plain[key] = value.replace(REF + "_", REF)
        elif key == "properties":  # a field may have any name
            plain[key] = {name: _plain(field) for name, field in value.items()}
        elif not (key == "title" and isinstance(value, str)) and not (key == "default" and value is None):
            plain[key] = value if key in ("enum", "const", "required") else _plain(value)
    return plain
