"""Values written as plain text, to JSON by what the tool's schema says they are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tickertape.plugins.parsers.json_text import is_json

__all__ = ["escaped", "is_text", "json_value", "property_schema"]

_WORDS = {"True": "true", "False": "false", "None": "null"}


def property_schema(parameters: Mapping[str, Any], name: str) -> object:
    """The schema of one parameter; None when the tool does not say."""
    properties = parameters.get("properties")
    return properties.get(name) if isinstance(properties, Mapping) else None


def is_text(schema: object) -> bool:
    """Whether a value is a string whatever it looks like. So is one that the tool does not know of."""
    return schema is None or _types(schema) == {"string"}


def json_value(text: str, schema: object) -> str:
    """The JSON text of a value: its own text where that is JSON of a type that the schema takes, else a string."""
    types = _types(schema)
    bare = _WORDS.get(text.strip(), text.strip())
    if not is_json(bare):
        return json.dumps(text, ensure_ascii=False)
    if not types or _type_of(bare) & types:
        return bare
    return json.dumps(text, ensure_ascii=False) if "string" in types else bare


def escaped(text: str) -> str:
    """A piece of a string, as it stands between the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _types(schema: object) -> set[str]:
    """The types that a schema takes; none: any."""
    if not isinstance(schema, Mapping):
        return set()
    match schema.get("type"):
        case str(one):
            return {one}
        case list(several):
            return {one for one in several if isinstance(one, str)}
    for key in ("anyOf", "oneOf"):
        if isinstance(choices := schema.get(key), list):
            found = [_types(choice) for choice in choices]
            return set().union(*found) if all(found) else set()
    for values in (schema.get("enum"), [schema["const"]] if "const" in schema else None):
        if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
            return {"string"}
    return set()


def _type_of(text: str) -> set[str]:
    match json.loads(text):
        case bool():
            return {"boolean"}
        case None:
            return {"null"}
        case int():
            return {"integer", "number"}
        case float(value):
            return {"number", "integer"} if value.is_integer() else {"number"}
        case str():
            return set()  # a quoted string is text with quotes in it
        case list():
            return {"array"}
        case _:
            return {"object"}
