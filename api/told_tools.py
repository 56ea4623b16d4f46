"""Tools for a model whose chat template knows none: told in the system message, calls and results as plain text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tickertape.api.calls import ToolUse
from tickertape.api.template_traits import TemplateTraits
from tickertape.api.templates import ChatTemplate

__all__ = ["with_tools_told"]

_INTRODUCTION = """\
You can call these functions. Each line is one, as a JSON object:
{tools}
To call functions, answer with a JSON array and nothing else:
[{{"name": "<function>", "arguments": {{<its arguments>}}}}]"""


def with_tools_told(
    messages: Sequence[Mapping[str, Any]], use: ToolUse, template: ChatTemplate
) -> tuple[Mapping[str, Any], ...]:
    """The messages, with nothing left that the template would not show. Calls are written as the generic parser reads
    them, and a result comes as the user's."""
    traits = template.traits
    made = [_shown(message, traits) for message in messages]
    if use.tools and not template.takes_tools:
        told = _INTRODUCTION.format(tools="\n".join(json.dumps(tool.definition["function"]) for tool in use.tools))
        if made and made[0]["role"] == "system":
            made[0] = {**made[0], "content": f"{told}\n\n{_text(made[0]['content'])}"}
        else:
            made.insert(0, {"role": "system", "content": told})
    return tuple(made)


def _shown(message: Mapping[str, Any], traits: TemplateTraits) -> Mapping[str, Any]:
    if message["role"] == "tool" and not traits.shows_results:
        name = message.get("name") or message["tool_call_id"]
        return {"role": "user", "content": f"Result of {name}: {_text(message['content'])}"}
    calls = message.get("tool_calls")
    if not calls or traits.shows_calls:
        return message
    written = ", ".join(
        f'{{"name": {json.dumps(call["function"]["name"])}, "arguments": {call["function"]["arguments"]}}}'
        for call in calls
    )
    text = _text(message["content"])
    content = f"{text}\n[{written}]" if text else f"[{written}]"
    return {name: value for name, value in message.items() if name != "tool_calls"} | {"content": content}


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part["text"] for part in content)
