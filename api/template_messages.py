"""A request's messages in the form that a chat template takes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tickertape.api.template_traits import TemplateTraits
from tickertape.core.errors import InvalidRequest

__all__ = ["mark_end", "messages_for"]

Message = dict[str, Any]


def messages_for(messages: Iterable[Mapping[str, Any]], traits: TemplateTraits) -> list[Message]:
    """New messages: a content always there (a missing one and null are empty), as text or as parts, the texts of
    parts joined with nothing between them; arguments of tool calls as an object or as text; other nulls left out.
    Raises InvalidRequest naming a part that is not text."""
    return [_message(message, n, traits) for n, message in enumerate(messages)]


def mark_end(message: Message, mark: str) -> None:
    """Appends `mark` to the text of a message made by `messages_for`."""
    content = message["content"]
    if isinstance(content, str):
        message["content"] = content + mark
    elif content:
        content[-1] = {**content[-1], "text": content[-1]["text"] + mark}
    else:
        message["content"] = [{"type": "text", "text": mark}]


def _message(message: Mapping[str, Any], n: int, traits: TemplateTraits) -> Message:
    made = {name: value for name, value in message.items() if value is not None}
    made["content"] = _content(message.get("content"), f"messages[{n}].content", traits)
    if calls := made.pop("tool_calls", None):
        made["tool_calls"] = [_tool_call(call, traits) for call in calls]
    if traits.short_ids and "tool_call_id" in made:
        made["tool_call_id"] = _short(made["tool_call_id"])
    return made


def _content(content: object, field: str, traits: TemplateTraits) -> str | list[dict[str, str]]:
    if content is None:
        content = ""
    if isinstance(content, str):
        if traits.takes_text:
            return content
        return [{"type": "text", "text": content}] if content else []
    if not isinstance(content, Sequence):
        raise InvalidRequest(f"{field} must be a string or a list of parts", code="invalid_type", param=field)
    texts = [_text(part, f"{field}[{n}]") for n, part in enumerate(content)]
    return [{"type": "text", "text": text} for text in texts] if traits.iterates_content else "".join(texts)


def _text(part: object, field: str) -> str:
    match part:
        case str():
            return part
        case {"type": "text", "text": str(text)} | {"type": "refusal", "refusal": str(text)}:
            return text
        case {"type": "text" | "refusal"}:
            raise InvalidRequest(f"{field} has no text", code="invalid_type", param=field)
        case {"type": str(kind)}:
            raise InvalidRequest(
                f"{field}: parts of type {kind[:40]!r} are not supported, only text",
                code="unsupported_value",
                param=f"{field}.type",
            )
    raise InvalidRequest(f"{field} must be an object with a type", code="invalid_type", param=field)


def _tool_call(call: Mapping[str, Any], traits: TemplateTraits) -> Mapping[str, Any]:
    if traits.short_ids and "id" in call:
        call = {**call, "id": _short(call["id"])}
    function = call.get("function")
    if not isinstance(function, Mapping) or "arguments" not in function:
        return call
    arguments = function["arguments"]
    made = _as_text(arguments) if traits.prints_arguments else _as_object(arguments)
    return {**call, "function": {**function, "arguments": made}}


def _short(id: str) -> str:
    """The same nine letters and digits for the same id."""
    return hashlib.sha256(id.encode()).hexdigest()[:9]


def _as_text(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _as_object(arguments: object) -> object:
    """The object that a text holds; a text that holds none stays as it is, so that nothing of a history is lost."""
    if not isinstance(arguments, str):
        return arguments
    try:
        made = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return arguments
    return made if isinstance(made, dict) else arguments
