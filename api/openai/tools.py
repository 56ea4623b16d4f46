"""Tools and the choice among them, in OpenAI's spelling."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from pydantic import Discriminator, Field, Tag

from tickertape.api.calls import Tool, ToolUse
from tickertape.api.openai.fields import Closed
from tickertape.core.errors import InvalidRequest

__all__ = ["FunctionTool", "ToolChoice", "needs_call", "tool_use"]

MAX_TOOLS: Final = 128

_SHOWN: Final = ("name", "description", "parameters", "strict")
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class FunctionDefinition(Closed):
    """`parameters`: a JSON schema of the arguments; without it there are none."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(Closed):
    type: Literal["function"]
    function: FunctionDefinition


class FunctionName(Closed):
    name: str


class NamedFunction(Closed):
    type: Literal["function"]
    function: FunctionName


class AllowedTools(Closed):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedFunction], Field(max_length=MAX_TOOLS, fail_fast=True)]


class AllowedToolChoice(Closed):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


class NoChoice(Closed):
    """Stands for a choice of another type: its fault is the type's."""

    type: Literal["function", "allowed_tools"]


def _tag(value: Any) -> str:
    if not isinstance(value, dict):
        return "<word>"
    return {"function": "<named>", "allowed_tools": "<allowed>"}.get(str(value.get("type")), "<none>")


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<word>")]
    | Annotated[NamedFunction, Tag("<named>")]
    | Annotated[AllowedToolChoice, Tag("<allowed>")]
    | Annotated[NoChoice, Tag("<none>")],
    Discriminator(_tag),
]

Tools = Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS, fail_fast=True)]


def tool_use(given: list[FunctionTool] | None, choice: Any, *, parallel: bool) -> ToolUse:
    """With a choice of "none" the model is not shown the tools either. Raises InvalidRequest for names that are none,
    come twice, or are chosen and not there."""
    tools = tuple(_tool(tool, n) for n, tool in enumerate(given or ()))
    names = [tool.name for tool in tools]
    for n, name in enumerate(names):
        if name in names[:n]:
            raise _wrong(f"tools[{n}].function.name", f"there are two functions named {name!r}")
    required, only = _chosen(choice)
    for param, name in only or ():
        if name not in names:
            raise _wrong(param, f"there is no function {name[:100]!r} among the tools")
    if required and not tools:
        raise _wrong("tool_choice", "there are no tools to choose from")
    if only is not None and not only:
        raise _wrong("tool_choice.allowed_tools.tools", "there is none")
    if choice == "none":
        return ToolUse(parallel=parallel)
    chosen = None if only is None else tuple(name for _, name in only)
    return ToolUse(tools=tools, required=required, only=chosen, parallel=parallel)


def needs_call(choice: Any) -> bool:
    """Whether the answer is calls and nothing else."""
    return _chosen(choice)[0]


def _tool(given: FunctionTool, n: int) -> Tool:
    function = given.function
    if not _NAME.fullmatch(function.name):
        raise _wrong(f"tools[{n}].function.name", "up to 64 letters, digits, '_', '.' and '-' are wanted")
    kind = (function.parameters or {}).get("type", "object")
    if kind != "object":
        raise _wrong(f"tools[{n}].function.parameters", "arguments are an object, so its type must be 'object'")
    said = {key: value for key in _SHOWN if (value := getattr(function, key)) is not None}
    return Tool(function.name, {"type": "function", "function": said}, function.parameters, bool(function.strict))


def _chosen(choice: Any) -> tuple[bool, list[tuple[str, str]] | None]:
    """Whether there must be a call, and the names that it may have, each with where it stands."""
    if isinstance(choice, NamedFunction):
        return True, [("tool_choice.function.name", choice.function.name)]
    if isinstance(choice, AllowedToolChoice):
        allowed = choice.allowed_tools
        where = "tool_choice.allowed_tools.tools[{}].function.name"
        return allowed.mode == "required", [(where.format(n), t.function.name) for n, t in enumerate(allowed.tools)]
    return choice == "required", None


def _wrong(param: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid value for {param!r}: {reason}", param=param)
