"""What a chat template expects of the messages it is given, read from its syntax tree.

Templates agree on no form: some iterate the parts of a content, some concatenate it; some iterate the arguments of a
tool call as an object, some print them as the JSON text they came as.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jinja2 import nodes

__all__ = ["TemplateTraits", "read_traits"]


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """`iterates_content`: a content may be a list of parts. `takes_text`: it may be a string (a template that only
    iterates would walk its letters). `prints_arguments`: a call's arguments are wanted as JSON text, not an object.
    `shows_calls`, `shows_results`: calls in an assistant's message, and messages of role tool, are not lost or refused.
    `short_ids`: the ids of calls must be nine letters and digits."""

    iterates_content: bool
    takes_text: bool
    prints_arguments: bool
    shows_calls: bool = True
    shows_results: bool = True
    short_ids: bool = False


def read_traits(tree: nodes.Template) -> TemplateTraits:
    content = _Field(tree, "content")
    arguments = _Field(tree, "arguments")
    iterates_content = content.is_iterated()
    return TemplateTraits(
        iterates_content=iterates_content,
        takes_text=not iterates_content or content.is_tested("string"),
        prints_arguments=arguments.is_printed()
        and not arguments.is_iterated()
        and not arguments.is_filtered("tojson", "items", "dictsort")
        and not arguments.is_tested("string", "mapping"),
        shows_calls=_Field(tree, "tool_calls").is_used(),
        shows_results=_is_written(tree, "tool") or (_Field(tree, "role").is_printed() and not _may_refuse(tree)),
        short_ids=_Field(tree, "id").is_measured(9),
    )


def _is_written(tree: nodes.Template, text: str) -> bool:
    return any(found.value == text for found in tree.find_all(nodes.Const))


def _may_refuse(tree: nodes.Template) -> bool:
    return any(found.name == "raise_exception" for found in tree.find_all(nodes.Name))


class _Field:
    """The places where a template uses one field of a message, directly or through a variable."""

    def __init__(self, tree: nodes.Template, name: str) -> None:
        self._tree = tree
        self._name = name
        # A macro's parameter usually bears the field's name; other variables are found where they are set.
        self._variables = {name}
        for found in tree.find_all(nodes.Assign):
            if isinstance(found.target, nodes.Name) and self._is_field(found.node):
                self._variables.add(found.target.name)

    def is_iterated(self) -> bool:
        return any(self._is_field(loop.iter) for loop in self._tree.find_all(nodes.For)) or any(
            isinstance(call.node, nodes.Getattr) and call.node.attr == "items" and self._is_field(call.node.node)
            for call in self._tree.find_all(nodes.Call)
        )

    def is_used(self) -> bool:
        return any(self._is_field(found) for found in self._tree.find_all((nodes.Getattr, nodes.Getitem)))

    def is_measured(self, length: int) -> bool:
        """Whether its length is compared with this one."""
        return any(
            isinstance(found.expr, nodes.Filter)
            and found.expr.name in ("length", "count")
            and self._is_field(found.expr.node)
            and any(isinstance(each.expr, nodes.Const) and each.expr.value == length for each in found.ops)
            for found in self._tree.find_all(nodes.Compare)
        )

    def is_tested(self, *tests: str) -> bool:
        return any(found.name in tests and self._is_field(found.node) for found in self._tree.find_all(nodes.Test))

    def is_filtered(self, *filters: str) -> bool:
        return any(
            found.name in filters and found.node is not None and self._is_field(found.node)
            for found in self._tree.find_all(nodes.Filter)
        )

    def is_printed(self) -> bool:
        return any(self._is_field(operand) for operand in self._operands())

    def _operands(self) -> Iterator[nodes.Node]:
        for found in self._tree.find_all((nodes.Output, nodes.Concat)):
            yield from found.nodes  # type: ignore[attr-defined]
        for add in self._tree.find_all(nodes.Add):
            yield from (add.left, add.right)

    def _is_field(self, node: nodes.Node | None) -> bool:
        match node:
            case nodes.Filter():
                return self._is_field(node.node)
            case nodes.CondExpr():
                return self._is_field(node.expr1) or self._is_field(node.expr2)
            case nodes.Or() | nodes.And():
                return self._is_field(node.left) or self._is_field(node.right)
            case nodes.Getattr():
                return node.attr == self._name
            case nodes.Getitem():
                return isinstance(node.arg, nodes.Const) and node.arg.value == self._name
            case nodes.Name():
                return node.name in self._variables
        return False
