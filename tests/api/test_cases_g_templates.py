"""Topic g of the case list: chat templates. (124 has `test_isolated_renders.py`, a broken file `e2e/test_tools.py`.)"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tickertape.testing import templates
from tickertape.testing.asgi import Answer
from tickertape.testing.front import Front, spoken
from tickertape.testing.openai_stream import told

Make = Callable[..., Awaitable[Front]]

ROOT = Path(__file__).parents[2]
SYSTEM = {"role": "system", "content": "Be brief"}
USER = {"role": "user", "content": "hi"}
ASSISTANT = {"role": "assistant", "content": "yes"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "2"}


def refusal(answer: Answer) -> str:
    error = answer.json()["error"]
    assert answer.headers["content-type"].startswith("application/json")
    assert (answer.status, error["type"], error["param"]) == (400, "invalid_request_error", "messages")
    assert "\n" not in error["message"]
    assert "{" not in error["message"]
    return str(error["message"])


async def shown(front: Front, messages: list[dict[str, Any]], **fields: Any) -> str:
    answer = await front.chat(messages, return_token_ids=True, max_tokens=1, **fields)
    assert answer.status == 200, answer.body
    return front.tokenizer.decode(answer.json()["prompt_token_ids"], skip_special_tokens=False)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("messages", [[SYSTEM, USER], [SYSTEM]])
async def test_case_115_a_role_that_the_template_refuses(make_front: Make, messages: Any, stream: bool) -> None:
    front = await make_front(template=templates.SYSTEM_REFUSED)
    assert refusal(await front.chat(messages, stream=stream)) == "System role not supported"
    assert (await front.chat([USER, USER], stream=stream)).status == 200  # which it does not mind


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("messages", [[USER, USER], [ASSISTANT], [USER, ASSISTANT, ASSISTANT], [SYSTEM, ASSISTANT]])
async def test_case_116_roles_must_alternate(
    make_front: Make, messages: Any, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    front = await make_front(template=templates.STRICT_ALTERNATION)
    with caplog.at_level(logging.INFO):
        assert "roles must alternate" in refusal(await front.chat(messages, stream=stream))
    assert len([record for record in caplog.records if record.exc_info]) == 1


async def test_case_116_a_result_without_a_call(make_front: Make) -> None:
    front = await make_front(template=templates.ITERATES_ARGUMENTS)
    assert refusal(await front.chat([USER, RESULT])) == "A tool message must follow the call it answers"


async def test_case_117_one_bos(make_front: Make) -> None:
    front = await make_front(sentencepiece=True, template=templates.WRITES_BOS)

    async def completed(prompt: str) -> list[int]:
        answer = await front.complete(prompt, return_token_ids=True, max_tokens=1)
        return list(answer.json()["choices"][0]["prompt_token_ids"])

    bos = front.tokenizer.bos_token_id
    assert bos is not None
    chat = await front.chat([USER], return_token_ids=True, max_tokens=1)
    ids = chat.json()["prompt_token_ids"]
    assert (ids[0], ids.count(bos)) == (bos, 1)
    assert chat.json()["usage"]["prompt_tokens"] == len(ids)
    for prompt in ("a", "<s>a"):  # written out, it is not added
        ids = await completed(prompt)
        assert (ids[0], ids.count(bos)) == (bos, 1)


async def test_case_118_a_model_without_a_template(make_front: Make) -> None:
    front = await make_front(template=None)
    for stream in (False, True):
        assert "no chat template" in refusal(await front.chat(stream=stream))
    assert (await front.complete()).status == 200


@pytest.mark.parametrize("content", ["null", "absent", "empty"])
@pytest.mark.parametrize(
    ("template", "call", "result"),
    [
        (templates.ITERATES_ARGUMENTS, "<call add>a=1;</call>", "tool\n2"),
        (templates.CONCATENATES_ARGUMENTS, '<call add>({"a": 1})</call>', "tool\n2"),
        (templates.THINKS_AND_CALLS, '"add", "arguments": {"a": 1}}', "tool\n2"),
        # These know nothing of tools, and the last no roles but three.
        (templates.CHATML, '[{"name": "add", "arguments": {"a": 1}}]', "tool\n2"),
        (templates.STRICT_ALTERNATION, '[{"name": "add", "arguments": {"a": 1}}]', "user\nResult of call_1: 2"),
    ],
)
async def test_case_121_a_call_and_its_result_are_shown_in_order(
    make_front: Make, template: str, call: str, result: str, content: str
) -> None:
    turn: dict[str, Any] = {"role": "assistant", "tool_calls": [CALL]}
    if content != "absent":
        turn["content"] = None if content == "null" else ""
    messages = [USER, turn, RESULT]
    prompt = await shown(await make_front(template=template), messages)
    before, found, behind = prompt.partition(call)
    assert found
    assert "hi" in before
    assert result in behind


async def test_ids_are_shortened_for_templates_that_insist(make_front: Make) -> None:
    template = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}"
        "{% if c.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}<{{ c.id }}>"
        "{% endfor %}{% if m.role == 'tool' %}[{{ m.tool_call_id }}]{% endif %}{% endfor %}"
    )
    prompt = await shown(
        await make_front(template=template), [USER, {"role": "assistant", "tool_calls": [CALL]}, RESULT]
    )
    found = re.fullmatch(r"<([a-z0-9]{9})>\[([a-z0-9]{9})\]", prompt)
    assert found is not None
    assert found[1] == found[2]


async def test_case_123_one_renderer_and_it_is_safe(make_front: Make) -> None:
    front = await make_front(template=templates.HOSTILE_ATTRIBUTES)
    assert "cannot render" in refusal(await front.chat())
    # No backend renders anything: the front hands it token ids.
    for file in (ROOT / "plugins" / "backends").rglob("*.py"):
        source = file.read_text(encoding="utf-8")
        assert "jinja2" not in source, file
        assert "apply_chat_template" not in source, file


async def test_case_124_variables_cannot_make_a_template_run_for_ever(make_front: Make) -> None:
    template = "{% for i in range(times) %}{% for j in range(times) %}{% endfor %}{% endfor %}x"
    front = await make_front(template=template)
    assert (await front.chat(chat_template_kwargs={"times": 3})).status == 200
    assert "cannot render" in refusal(await front.chat(chat_template_kwargs={"times": 10**9}))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("template", [templates.CHATML, templates.THINKS_AND_CALLS])
async def test_case_126_the_prefix_comes_with_echo_only(
    make_front: Make, echo: bool, stream: bool, template: str
) -> None:
    front = await make_front({"when": spoken("Paris is"), "tokens": spoken(" big")}, template=template)
    messages = [USER, {"role": "assistant", "content": "Paris is"}]
    answer = await front.chat(messages, continue_final_message=True, echo=echo, stream=stream)
    assert told(answer)[0].text == ("Paris is big" if echo else " big")


async def test_every_form_of_arguments_is_taken(make_front: Make) -> None:
    """Text that is no object stays as it came: nothing of a history is lost, and nothing fails for it."""
    front = await make_front(template=templates.THINKS_AND_CALLS)
    for arguments in ("", "{}", "[1]", "nonsense", json.dumps({"é": "<&>"})):
        call = {**CALL, "function": {"name": "add", "arguments": arguments}}
        assert await shown(front, [USER, {"role": "assistant", "tool_calls": [call]}, RESULT])
