"""From a request's grammar to what the library reads."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from llguidance import LLMatcher, StructTag
from llguidance.gbnf_to_lark import gbnf_to_lark

from tickertape.core.errors import InvalidRequest
from tickertape.core.request import Grammar
from tickertape.grammar.expressions import check_expression, check_terminals
from tickertape.grammar.schema import check_embedded, prepare_schema

__all__ = ["MAX_CHARS", "MAX_LARK_CHARS", "one_line", "to_library"]

MAX_CHARS: Final = 256 << 10
"""Of a grammar's source."""
MAX_LARK_CHARS: Final = 64 << 10
"""Of a grammar or tags that are translated first, in Python."""

_MAX_SHOWN: Final = 300

_JSON: Final[dict[str, Any]] = {
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": True,
    # Bounded: a model that has nothing to say would fill the rest of its tokens with newlines.
    "whitespace_pattern": r"[ \t\r\n]{1,40}",
    "coerce_one_of": False,
    "lenient": False,
    # Without \u: a key must not be written in a second way, past the schema of that key.
    "json_allowed_escapes": '"\\bfnrt',
    "json_allow_general_unicode_escapes": False,
}


def to_library(grammar: Grammar) -> str:
    """The library's own form. Raises InvalidRequest for what can be seen without compiling it."""
    source = grammar.source
    most = MAX_CHARS if grammar.kind in ("json_schema", "regex") else MAX_LARK_CHARS
    if len(source) > most:
        raise InvalidRequest(f"it has {len(source)} characters, {most} are allowed")
    if grammar.parts:
        return _with_parts(grammar)
    if grammar.kind == "json_schema":
        return LLMatcher.grammar_from_json_schema(prepare_schema(source), overrides=_JSON)  # type: ignore[arg-type]
    if grammar.kind == "regex":
        check_expression(source)
        return LLMatcher.grammar_from_regex(source)
    lark = _tags(source) if grammar.kind == "structural_tag" else _lark(source)
    check_embedded(lark)
    check_terminals(lark)
    return LLMatcher.grammar_from_lark(lark)


def _with_parts(grammar: Grammar) -> str:
    """A Lark grammar beside the schemas that it refers to."""
    made: list[dict[str, Any]] = [{"lark_grammar": grammar.source}]
    size = len(grammar.source)
    check_terminals(grammar.source)
    for name, schema in grammar.parts:
        size += len(schema)
        if size > MAX_CHARS:
            raise InvalidRequest(f"its schemas have more than {MAX_CHARS} characters together")
        [part] = json.loads(to_library(Grammar("json_schema", schema)))["grammars"]
        made.append({**part, "name": name})
    return json.dumps({"grammars": made})


def one_line(message: str) -> str:
    """The library's message without its excerpts of the grammar."""
    lines = [line.strip() for line in re.split(r"<(?:state|non-verbose)", message)[0].splitlines()]
    kept = [line for line in lines if line.strip(" ^") and not line.partition("|")[0].strip().isdigit()]
    text = " ".join(kept)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."


def _lark(source: str) -> str:
    """Lark as it is; the EBNF of llama.cpp and its kin, with `::=`, translated."""
    if "::=" not in source:
        return source
    try:
        return gbnf_to_lark(source)
    except Exception as error:  # the library raises whatever it stumbles over
        raise InvalidRequest(f"the EBNF grammar cannot be read: {one_line(str(error))}") from None


def _tags(source: str) -> str:
    """`structures` of begin, schema and end, each entered after one of the `triggers`."""
    try:
        tags = json.loads(source)
        triggers = tags["triggers"]
        made = [
            StructTag(
                trigger=next(trigger for trigger in triggers if each["begin"].startswith(trigger)),
                begin=each["begin"],
                grammar=json.loads(prepare_schema(json.dumps(each["schema"]))),
                end=each["end"],
            )
            for each in tags["structures"]
        ]
        return StructTag.to_grammar(made, assume_special=False)
    except InvalidRequest:
        raise
    except StopIteration:
        raise InvalidRequest("each structure's 'begin' must start with one of the triggers") from None
    except Exception:
        raise InvalidRequest("a structural tag has 'triggers', and 'structures' of 'begin', 'schema', 'end'") from None
