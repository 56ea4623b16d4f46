"""Chat messages: closed models by role, and the plain records that templates see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

from tickertape.api.openai.fields import ENTRIES, Closed

__all__ = ["Message", "as_template_message"]

_ROLES = ("system", "developer", "user", "assistant", "tool")


class TextPart(Closed):
    type: Literal["text"]
    text: str


class RefusalPart(Closed):
    type: Literal["refusal"]
    refusal: str


def _refuse_part(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise PydanticCustomError("dict_type", "not an object")
    kind = value.get("type")
    shown = repr(kind[:100]) if isinstance(kind, str) else "without a type"
    raise PydanticCustomError(
        "unsupported_value",
        "part",
        {"reason": f"content parts {'of type ' if isinstance(kind, str) else ''}{shown} are not supported; use text"},
    )


def _part_tag(value: Any) -> str:
    kind = value.get("type") if isinstance(value, Mapping) else None
    return f"<{kind}>" if kind in ("text", "refusal") else "<other>"


Part = Annotated[
    Annotated[TextPart, Tag("<text>")]
    | Annotated[RefusalPart, Tag("<refusal>")]
    | Annotated[SkipJsonSchema[Any], BeforeValidator(_refuse_part), Tag("<other>")],
    Discriminator(_part_tag),
]
Parts = Annotated[list[Part], ENTRIES]

Content = Annotated[
    Annotated[str, Tag("<string>")] | Annotated[Parts, Tag("<parts>")],
    Discriminator(lambda value: "<parts>" if isinstance(value, list) else "<string>"),
]


class FunctionCall(Closed):
    name: str
    arguments: str


class ToolCall(Closed):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class SystemMessage(Closed):
    role: Literal["system", "developer"]
    content: Content
    name: str | None = None


class UserMessage(Closed):
    role: Literal["user"]
    content: Content
    name: str | None = None


class AssistantMessage(Closed):
    role: Literal["assistant"]
    content: Content | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: Annotated[list[ToolCall], ENTRIES] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    # What answers carry and clients send back as it came.
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    audio: None = None
    function_call: None = None


class ToolMessage(Closed):
    role: Literal["tool"]
    content: Content
    tool_call_id: str
    name: str | None = None


class NoRole(Closed):
    """Stands for a message whose role is missing or unknown: its fault is the role's."""

    role: Literal["system", "developer", "user", "assistant", "tool"]


_TAGS = {"system": "<system>", "developer": "<system>", "user": "<user>", "assistant": "<assistant>", "tool": "<tool>"}


def _role_tag(value: Any) -> str:
    role = value.get("role") if isinstance(value, Mapping) else None
    return _TAGS.get(role, "<none>") if isinstance(role, str) else "<none>"


Message = Annotated[
    Annotated[SystemMessage, Tag("<system>")]
    | Annotated[UserMessage, Tag("<user>")]
    | Annotated[AssistantMessage, Tag("<assistant>")]
    | Annotated[ToolMessage, Tag("<tool>")]
    | Annotated[SkipJsonSchema[NoRole], Tag("<none>")],
    Discriminator(_role_tag),
]


def as_template_message(message: Any) -> dict[str, Any]:
    """The message for `ChatTemplate.render`, which brings contents and arguments into the form its template takes. A
    developer is a system to templates, which know no other; a refusal is what its assistant said."""
    role = "system" if message.role == "developer" else message.role
    plain: dict[str, Any] = {"role": role, "content": _content(message.content)}
    if message.name is not None:
        plain["name"] = message.name
    if isinstance(message, ToolMessage):
        plain["tool_call_id"] = message.tool_call_id
    if isinstance(message, AssistantMessage):
        if message.refusal is not None and not plain["content"]:
            plain["content"] = message.refusal
        reasoning = message.reasoning_content if message.reasoning is None else message.reasoning
        if reasoning is not None:
            plain["reasoning_content"] = reasoning
        if message.tool_calls:
            plain["tool_calls"] = [call.model_dump() for call in message.tool_calls]
    return plain


def _content(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    return [{"type": "text", "text": part.text if isinstance(part, TextPart) else part.refusal} for part in content]
