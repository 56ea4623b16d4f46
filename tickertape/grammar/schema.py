"""JSON schemas: what is enforced, what is refused by name, and what has no effect and is left out."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, Final
from urllib.parse import unquote

from tickertape.core.errors import InvalidRequest
from tickertape.grammar.expressions import check_expression
from tickertape.grammar.json_text import JSON_DECODER, check_characters

__all__ = ["MAX_DEPTH", "check_embedded", "prepare_schema"]

MAX_DEPTH: Final = 100
"""Of arrays and objects in one another."""

_MAX_DIVISOR: Final = 20_000
_MAX_OPTIONAL: Final = 1500
_MAX_SHOWN: Final = 200
_CONTROLS: Final = {chr(code) for code in range(0x20)} - set("\b\f\n\r\t")

_UNSUPPORTED: Final = frozenset(
    {
        "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef", "contains", "dependencies",
        "dependentRequired", "dependentSchemas", "disallow", "divisibleBy", "else", "extends", "if", "maxContains",
        "minContains", "not", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties", "uniqueItems",
    }
)  # fmt: skip
_NO_OPS: Final[Mapping[str, tuple[Any, ...]]] = {
    "dependencies": ({},),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "not": (False,),
    "propertyNames": (True, {}),
    "unevaluatedItems": (True, {}),
    "unevaluatedProperties": (True, {}),
    "uniqueItems": (False,),
}
_MAPS_OF_SCHEMAS: Final = ("$defs", "definitions", "patternProperties", "properties")
_LISTS_OF_SCHEMAS: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
_SCHEMAS: Final = ("additionalItems", "additionalProperties", "items")


def prepare_schema(source: str) -> str:
    """The schema as the library takes it. Raises InvalidRequest: not JSON, nested too deeply, or with a keyword that
    cannot be enforced."""
    schema = _parse(source)
    if not isinstance(schema, dict | bool):
        raise InvalidRequest("a schema is an object or a boolean")
    if isinstance(schema, bool):
        if not schema:
            raise InvalidRequest("no text can satisfy it: the schema is false")
        schema = {}
    _check_divisors(schema)
    _check_patterns(schema)
    _check_references(schema)
    return json.dumps(_prepared(schema, "#"))


def check_embedded(grammar: str) -> None:
    """Checks the schemas that a Lark grammar embeds with `%json`. What does not parse is left to the library."""
    for piece in grammar.split("%json")[1:]:
        try:
            schema, _ = JSON_DECODER.raw_decode(piece.lstrip())
        except (ValueError, RecursionError):
            continue
        _check_depth(schema)
        _check_divisors(schema)
        _check_patterns(schema)
        _prepared(schema, "#")


def _parse(source: str) -> Any:
    try:
        schema = JSON_DECODER.decode(source)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise InvalidRequest(f"the schema is not JSON: {error}") from None
    _check_depth(schema)
    check_characters(schema)
    return schema


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [child for each in level for child in _children(each)]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> InvalidRequest:
    return InvalidRequest(f"the schema is nested more than {MAX_DEPTH} levels deep")


def _children(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _check_divisors(schema: Any) -> None:
    """The library turns the least common multiple into an automaton with as many states, without a limit of its own.
    Looked for everywhere, since a $ref may point anywhere."""
    divisors = []
    pending = [schema]
    while pending:
        value = pending.pop()
        pending.extend(_children(value))
        divisor = value.get("multipleOf") if isinstance(value, dict) else None
        if isinstance(divisor, int | float) and not isinstance(divisor, bool):
            if not 0 < divisor < math.inf:
                raise InvalidRequest("multipleOf must be a number above 0")
            divisors.append(Fraction(str(divisor)))
    scale = math.lcm(*(divisor.denominator for divisor in divisors))
    # Decimal digits, not halves and thirds, are what the automaton counts.
    scale = next((10**digits for digits in range(40) if 10**digits % scale == 0), 0)
    if not scale or math.lcm(*(int(divisor * scale) for divisor in divisors)) > _MAX_DIVISOR:
        raise InvalidRequest(
            f"unsupported values of multipleOf: together they must divide {_MAX_DIVISOR} units of their last digit or "
            "fewer",
            code="unsupported_value",
        )


def _check_patterns(schema: Any) -> None:
    """Looked for everywhere, as divisors are."""
    pending = [schema]
    while pending:
        value = pending.pop()
        pending.extend(_children(value))
        if isinstance(value, dict):
            named = value.get("patternProperties")
            for pattern in (value.get("pattern"), *(named if isinstance(named, dict) else ())):
                if isinstance(pattern, str):
                    check_expression(pattern)


def _check_references(schema: Any) -> None:
    """A $ref that leads back to itself, with nothing on the way, stands for no text; it may be met in the middle of
    one, where it is too late to say so."""
    leads: dict[int, tuple[str, int]] = {}
    pending = [schema]
    while pending:
        value = pending.pop()
        pending.extend(_children(value))
        reference = value.get("$ref") if isinstance(value, dict) else None
        if isinstance(reference, str) and reference.startswith("#"):
            target = _target(schema, reference)
            leads[id(value)] = (reference, id(target))
    walked: dict[int, int] = {}  # by the start of the walk that came by
    for start in leads:
        at = start
        while at in leads and at not in walked:
            walked[at] = start
            at = leads[at][1]
        if walked.get(at) == start:
            raise InvalidRequest(f"no text can satisfy it: {leads[at][0][:_MAX_SHOWN]!r} refers to itself")


def _target(schema: Any, reference: str) -> Any:
    """What a JSON pointer points to; None when it points nowhere."""
    found: Any = schema
    for part in unquote(reference[1:]).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(key)
        elif isinstance(found, list) and key.isascii() and key.isdigit() and len(key) < 10 and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found


def _prepared(schema: Any, path: str) -> Any:
    """A copy without what has no effect. Faults of form are left to the library, which words them well."""
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        where = _below(path, key)
        if key == "x-guidance" or _has_no_effect(key, value, schema):
            continue
        if key == "properties" and isinstance(value, dict):
            _check_optional(value, schema, path)
        if key in _UNSUPPORTED:
            raise InvalidRequest(f"unsupported keyword {key!r} at {path}", code="unsupported_value")
        if key in _MAPS_OF_SCHEMAS and isinstance(value, dict):
            kept[key] = {name: _prepared(each, _below(where, name)) for name, each in value.items()}
        elif (key in _LISTS_OF_SCHEMAS or key == "items") and isinstance(value, list):
            kept[key] = [_prepared(each, _below(where, n)) for n, each in enumerate(value)]
        elif key in _SCHEMAS:
            kept[key] = _prepared(value, where)
        else:
            _check_value(key, value, schema, path)
            kept[key] = value
    return kept


def _below(path: str, step: object) -> str:
    """As far as a message shows it."""
    return path if len(path) > _MAX_SHOWN else f"{path}/{step}"[: _MAX_SHOWN + 1]


def _has_no_effect(key: str, value: Any, schema: Mapping[str, Any]) -> bool:
    if any(type(value) is type(each) and value == each for each in _NO_OPS.get(key, ())):
        return True
    if key in ("then", "else"):
        return "if" not in schema
    if key in ("minContains", "maxContains"):
        return "contains" not in schema
    return key == "if" and "then" not in schema and "else" not in schema


def _check_value(key: str, value: Any, schema: Mapping[str, Any], path: str) -> None:
    if key in ("enum", "const") and _holds_controls(value):
        raise InvalidRequest(f"unsupported control character in {key} at {path}", code="unsupported_value")
    if key == "minProperties" and isinstance(value, int):
        required = schema.get("required")
        named = len(set(map(str, required))) if isinstance(required, list) else 0
        if value > named + 1:
            # Of several free names one could be written twice, which a reader counts once.
            raise InvalidRequest(
                f"unsupported value of minProperties at {path}: at most one property more than are required",
                code="unsupported_value",
            )


def _check_optional(properties: Mapping[str, Any], schema: Mapping[str, Any], path: str) -> None:
    """Each optional property is one more way to go on after each of the others."""
    required = schema.get("required")
    optional = len(properties.keys() - set(map(str, required if isinstance(required, list) else ())))
    if optional > _MAX_OPTIONAL:
        raise InvalidRequest(
            f"unsupported: {optional} optional properties at {path}, more than {_MAX_OPTIONAL}",
            code="unsupported_value",
        )


def _holds_controls(value: Any) -> bool:
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, str) and not _CONTROLS.isdisjoint(each):
            return True
        pending.extend(each if isinstance(each, dict) else ())
        pending.extend(_children(each))
    return False
