"""Tools, reasoning and templates from requests through a real worker, and the settings of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tickertape.testing import templates
from tickertape.testing.processes import Server, ServerProcess

Start = Callable[..., Any]

TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]},
    },
}


def ask(server: Server, **fields: Any) -> Any:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Q"}], **fields}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=30)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def test_through_a_worker(start: Start, tiny: Path, tmp_path: Path) -> None:
    template = tmp_path / "mine.jinja"
    template.write_text(templates.THINKS_AND_CALLS)
    server: Server = start(
        Server, f"tiny={tiny}", "--port", "0", "--chat-template", str(template), "--trust-request-chat-template",
        "--tool-parser", "json",
    ).until_ready()  # fmt: skip
    chosen = ask(server, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    assert chosen["finish_reason"] == "tool_calls"
    [call] = chosen["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["n"] in (1, 2)
    thinking = ask(
        server, thinking_token_budget=4, chat_template_kwargs={"thinks_at_once": True}, max_tokens=20, temperature=0
    )
    assert thinking["message"]["reasoning"] == "The"
    assert ask(server, chat_template="{{ messages[0].content }}!")["message"]["content"]


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--chat-template", "nowhere.jinja"), "nowhere.jinja"),
        (("--tool-parser", "nonsense"), "nonsense"),
        (("--reasoning-parser", "json"), "no output parser 'json' for reasoning"),
    ],
)
def test_bad_settings_end_the_start(start: Start, tiny: Path, flags: tuple[str, ...], reason: str) -> None:
    server: ServerProcess = start(ServerProcess, str(tiny), "--port", "0", "--startup-linger-s", "0", *flags)
    assert server.wait() == 1
    [line] = [line for line in server.stderr().splitlines() if not line.startswith("{")]
    assert reason in line


def test_case_118_a_broken_template_file_is_named_with_its_line(start: Start, tiny: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jinja"
    broken.write_text("fine\n{% for message in messages %}")
    server: ServerProcess = start(
        ServerProcess, str(tiny), "--port", "0", "--startup-linger-s", "0", "--chat-template", str(broken)
    )
    assert server.wait() == 1
    assert "broken.jinja, line 2" in server.stderr()
