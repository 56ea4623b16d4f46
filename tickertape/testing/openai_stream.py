"""Reads what an OpenAI stream said, and holds it to the rules that every stream keeps."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from tickertape.testing.asgi import Answer

__all__ = ["Told", "told"]


class Told:
    """One choice of a stream or of a whole answer."""

    def __init__(self) -> None:
        self.text = ""
        self.reasoning = ""
        self.calls: list[dict[str, Any]] = []  # id, name, arguments
        self.pieces: list[str] = []  # the text of each chunk that had some
        self.finish: str | None = None
        self.stop_reason: Any = None
        self.tokens: list[int] = []
        self.logprobs: list[Any] = []  # of each chunk that had some


def told(answer: Answer) -> dict[int, Told]:
    """What an answer said, by choice. Of a stream it asserts: one id, created, model and object; [DONE] once and last;
    per choice one role chunk at the start (chat), no text after the finish, one finish, no empty text in between."""
    assert answer.status == 200, answer.body
    if answer.headers["content-type"].startswith("application/json"):
        return _whole(answer.json())
    events = answer.events
    assert events[-1] == "[DONE]"
    assert events.count("[DONE]") == 1
    chunks = answer.chunks
    for key in ("id", "created", "model", "object", "system_fingerprint"):
        assert len({json.dumps(chunk[key]) for chunk in chunks}) == 1
    choices: defaultdict[int, Told] = defaultdict(Told)
    roles: defaultdict[int, int] = defaultdict(int)
    for chunk in chunks:
        for choice in chunk["choices"]:
            _take(choice, choices[choice["index"]], roles)
    is_chat = chunks[0]["object"] == "chat.completion.chunk"
    assert all(roles[index] == int(is_chat) for index in choices)
    assert all(choice.finish is not None for choice in choices.values())
    return dict(choices)


def _take(choice: dict[str, Any], told: Told, roles: dict[int, int]) -> None:
    assert {"index", "logprobs", "finish_reason"} <= set(choice)
    assert told.finish is None, "a choice goes on after its finish"
    delta = choice.get("delta", choice)
    text = delta.get("content", delta.get("text"))
    if "role" in delta:
        assert delta == {"role": "assistant", "content": "", "refusal": None}
        assert not told.pieces
        roles[choice["index"]] += 1
    elif "tool_calls" in delta:
        assert list(delta) == ["tool_calls"], "a delta is of one kind"
        [part] = delta["tool_calls"]
        _take_call(part, told)
    elif "reasoning" in delta:
        assert delta == {"reasoning": delta["reasoning"], "reasoning_content": delta["reasoning"]}
        assert delta["reasoning"], "a chunk without text"
        told.reasoning += delta["reasoning"]
    elif choice["finish_reason"] is None:
        assert text, "a chunk without text"
        told.pieces.append(text)
        told.text += text
    else:
        assert choice["finish_reason"] in ("stop", "length", "tool_calls")
        assert not text
        assert "delta" not in choice or delta == {}
        told.finish = choice["finish_reason"]
        told.stop_reason = choice["stop_reason"]
    told.tokens += choice.get("token_ids") or []
    if choice["logprobs"] is not None:
        told.logprobs.append(choice["logprobs"])


def _take_call(part: dict[str, Any], told: Told) -> None:
    """The first part of a call names it and has no arguments; the later ones are of the last call, and have some."""
    function = part["function"]
    if "id" in part:
        assert part == {
            "index": len(told.calls),
            "id": part["id"],
            "type": "function",
            "function": {"name": function["name"], "arguments": ""},
        }
        assert part["id"]
        told.calls.append({"id": part["id"], "name": function["name"], "arguments": ""})
    else:
        assert part == {"index": len(told.calls) - 1, "function": {"arguments": function["arguments"]}}
        assert function["arguments"], "a chunk without arguments"
        told.calls[-1]["arguments"] += function["arguments"]


def _whole(body: dict[str, Any]) -> dict[int, Told]:
    choices = {}
    for choice in body["choices"]:
        made = choices[choice["index"]] = Told()
        message = choice.get("message", {})
        made.text = choice["text"] if "text" in choice else message["content"] or ""
        made.reasoning = message.get("reasoning", "")
        assert message.get("reasoning_content", "") == made.reasoning
        made.calls = [{"id": call["id"], **call["function"]} for call in message.get("tool_calls", ())]
        cut = choice["finish_reason"] == "length"  # a call of which nothing can be shown
        assert message.get("content", "") is not None or made.calls or cut
        made.finish = choice["finish_reason"]
        made.stop_reason = choice["stop_reason"]
        made.tokens = choice.get("token_ids") or []
        if choice["logprobs"] is not None:
            made.logprobs.append(choice["logprobs"])
    return choices
