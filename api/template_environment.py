"""The sandbox that chat templates run in, with what templates made for Hugging Face expect to find there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, Final, NoReturn

from jinja2 import Template, nodes, pass_context
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

__all__ = ["Refused", "TemplateSandbox", "TooLong"]

# Names that no template can spell, so that none can reach or hide what they stand for.
_DEADLINE: Final = "the deadline"
_BOUNDED: Final = "bounded by the deadline"


class Refused(TemplateError):
    """The template called raise_exception: it does not take these messages."""


class TooLong(Exception):
    """The template looped past its time limit."""


class TemplateSandbox:
    """Compiles and renders templates. No template reaches an attribute with an underscore, changes what it is given,
    loads another template, or loops past a time limit. Thread-safe."""

    def __init__(self, *, now: Callable[[], datetime] = datetime.now) -> None:
        def strftime_now(format: str) -> str:
            return now().strftime(format)

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
        )
        environment.filters["tojson"] = _to_json
        environment.filters[_BOUNDED] = _bounded
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = strftime_now
        self._environment = environment

    def parse(self, source: str) -> nodes.Template:
        """Raises jinja2.TemplateSyntaxError."""
        return self._environment.parse(source)

    def compile(self, tree: nodes.Template, origin: str) -> Template:
        """Consumes the tree. `origin` names the template in tracebacks. Raises jinja2.TemplateSyntaxError."""
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = nodes.Filter(loop.iter, _BOUNDED, [], [], None, None, lineno=loop.lineno)
        code = self._environment.compile(tree, filename=origin)
        return Template.from_code(self._environment, code, self._environment.make_globals(None))

    def render(self, template: Template, variables: dict[str, Any], *, time_limit_s: float) -> str:
        """Raises Refused, TooLong, or whatever else the template runs into."""
        return template.render({**variables, _DEADLINE: time.monotonic() + time_limit_s})


class _GenerationTag(Extension):
    """`{% generation %}` marks what a model is trained on; when serving it changes nothing but scope."""

    tags = {"generation"}  # noqa: RUF012  # jinja declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(list(parser.parse_statements(("name:endgeneration",), drop_needle=True)), lineno=line)


@pass_context
def _bounded(context: Context, items: Iterable[Any]) -> Iterator[Any]:
    deadline = context[_DEADLINE]
    for item in items:
        if time.monotonic() > deadline:
            raise TooLong
        yield item


def _raise_exception(message: object) -> NoReturn:
    raise Refused(str(message))


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: jinja's own filter escapes for HTML, which would change what the model reads."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
