"""Calls that a model must write, or write right: grammars for the call format of its parser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tickertape.api.calls import Structure, ToolUse
from tickertape.api.model_tokenizer import ModelTokenizer
from tickertape.core.errors import InvalidRequest
from tickertape.core.output_parser import CallFormat, OutputParserSpec
from tickertape.core.request import Grammar

__all__ = ["call_grammar", "parameters_schema"]

_NO_ARGUMENTS: Final = '{"type":"object","properties":{},"additionalProperties":false}'
_ANY_ARGUMENTS: Final = '{"type":"object"}'
_SAYS_NOTHING: Final = frozenset({"$schema", "description", "properties", "required", "title", "type"})
"""With these alone, and no property named by them, a schema asks for no arguments."""


def call_grammar(
    use: ToolUse, spec: OutputParserSpec, tokenizer: ModelTokenizer, structure: Structure | None
) -> Grammar | None:
    """What an answer must follow for the sake of its calls: it must be some where they are required, and where one is
    made of a tool that is `strict` its arguments must satisfy the schema. A `structure` is what the answer must be when
    it is no call, so it excludes calls that are required. None: nothing needs to be held to anything. Raises
    InvalidRequest where that cannot be done."""
    writer = _Writer(use, spec, tokenizer)
    if use.required:
        if structure is not None:
            raise InvalidRequest(
                f"{structure.param!r} cannot be kept beside a required call: the answer is calls and nothing else",
                code="unsupported_value",
                param=structure.param,
            )
        return writer.calls_alone(parallel=use.parallel)
    if structure is not None:
        return writer.calls_or(structure, parallel=use.parallel)
    return writer.calls_in_text(parallel=use.parallel) if any(tool.strict for tool in use.callable) else None


def parameters_schema(parameters: Mapping[str, Any] | None) -> str:
    """The schema that the arguments of a call must satisfy: always an object, and an empty one when nothing is said
    of its properties."""
    parameters = parameters or {}
    said = {key for key, value in parameters.items() if (key, value) != ("additionalProperties", False)}
    if said <= _SAYS_NOTHING and not parameters.get("properties") and not parameters.get("required"):
        return _NO_ARGUMENTS
    if "type" not in parameters and not {"$ref", "allOf", "anyOf", "oneOf"} & parameters.keys():
        parameters = {"type": "object", **parameters}
    return json.dumps(parameters)


class _Writer:
    """Arguments are held to their schemas where a call is required, else where their tool is strict."""

    def __init__(self, use: ToolUse, spec: OutputParserSpec, tokenizer: ModelTokenizer) -> None:
        self._names = [tool.name for tool in use.callable]
        self._schemas = [
            parameters_schema(tool.parameters) if use.required or tool.strict else _ANY_ARGUMENTS
            for tool in use.callable
        ]
        self._spec = spec
        self._special = {tokenizer.token_text(token): token for token in tokenizer.special_ids}
        longest_first = sorted(filter(None, self._special), key=len, reverse=True)
        self._specials = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    @property
    def _format(self) -> CallFormat:
        if self._spec.call_format is None:
            raise _refused(
                f"'strict' cannot be kept in the format that this model writes calls in ({self._spec.name}), whose "
                "arguments are no JSON; require a call, or leave it out"
            )
        return self._spec.call_format

    def calls_alone(self, *, parallel: bool) -> Grammar:
        format = self._format
        return self._grammar("start: calls", self._calls(format.before + format.open, parallel=parallel))

    def calls_or(self, structure: Structure, *, parallel: bool) -> Grammar:
        """The whole answer is either."""
        format = self._format
        if structure.grammar.kind != "json_schema" or self._spec.kind == "both":
            raise InvalidRequest(
                f"{structure.param!r} cannot be kept beside 'tools' for this model; send one of them",
                code="unsupported_value",
                param=structure.param,
            )
        rules = self._calls(format.before + format.open, parallel=parallel)
        made = self._grammar("start: calls | @answer", rules)
        return Grammar(made.kind, made.source, (*made.parts, ("answer", structure.grammar.source)))

    def calls_in_text(self, *, parallel: bool) -> Grammar:
        """Free text, and calls where the format's trigger comes; without a trigger, calls or free text."""
        format, spec = self._format, self._spec
        whole = format.before + format.open
        trigger = next((trigger for trigger in spec.triggers if whole.startswith(trigger)), None)
        # A call that begins in another way must not slip through: it needs a token that free text cannot hold.
        others = [each for each in spec.triggers if each != trigger and not (trigger and each.startswith(trigger))]
        if spec.kind == "both" or not all(self._specials.search(each) for each in others):
            raise _refused(f"'strict' cannot be kept in the format that this model writes calls in ({spec.name})")
        if trigger is None:
            if whole[0] not in "{[":
                raise _refused(f"'strict' cannot be kept in the format that this model writes calls in ({spec.name})")
            rules = self._calls(whole, parallel=parallel)
            return self._grammar("start: calls | FREE\nFREE: /([^\\s{\\[`](?s:.*))?/", rules)
        rules = self._calls(whole.removeprefix(trigger), parallel=parallel)
        found = self._specials.match(trigger)
        if found is not None:
            begun = self._literal(trigger)
            text = f"start: (TEXT? begun calls)* TEXT?\nTEXT: /(?s:.+)/\nbegun: {begun}"
        else:
            text = f"start: (begun calls)* TEXT\nTEXT: /(?s:.*)/\nbegun[lazy]: TEXT {json.dumps(trigger)}"
        return self._grammar(text, rules)

    def _calls(self, first: str, *, parallel: bool) -> list[str]:
        """Rules of `calls`, whose beginning is written as `first`."""
        format = self._format
        more = " more*" if parallel else ""
        rules = [f"calls: {self._literal(first)} call{more} {self._literal(format.after)}"]
        if parallel:
            rules.append(f"more: {self._literal(format.between + format.open)} call")
        rules.append("call: " + " | ".join(f"call_{n}" for n in range(len(self._names))))
        for n, name in enumerate(self._names):
            before = self._literal(name + format.middle)
            arguments = '"{}"' if self._schemas[n] == _NO_ARGUMENTS else f"@arguments_{n}"
            rules.append(f"call_{n}: {before} {arguments} {self._literal(format.close)}")
        return rules

    def _grammar(self, start: str, rules: Iterable[str]) -> Grammar:
        parts = [(f"arguments_{n}", schema) for n, schema in enumerate(self._schemas) if schema != _NO_ARGUMENTS]
        return Grammar("lark", "\n".join([start, *rules]), tuple(parts))

    def _literal(self, text: str) -> str:
        """The text in Lark: special tokens by their ids, which nothing else can write."""
        found, at = [], 0
        for match in self._specials.finditer(text):
            found += [json.dumps(text[at : match.start()]), f"<[{self._special[match.group()]}]>"]
            at = match.end()
        found.append(json.dumps(text[at:], ensure_ascii=False))
        return " ".join(part for part in found if part != '""')


def _refused(reason: str) -> InvalidRequest:
    return InvalidRequest(reason, code="unsupported_value", param="tools")
