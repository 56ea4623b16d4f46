"""Reasoning on the chat route: told apart, counted, left out, bounded, asked for."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tickertape.core.backend import Capabilities
from tickertape.testing import templates
from tickertape.testing.front import Front, spoken
from tickertape.testing.openai_stream import Told, told

Make = Callable[..., Awaitable[Front]]

THOUGHT = "<think>\nhmm\n</think>\n\nAnswer"
EFFORT = "{{ reasoning_effort or 'some' }}:" + templates.THINKS_AND_CALLS
CALL = {"type": "function", "function": {"name": "now"}}


async def model(make_front: Make, text: str = THOUGHT, **settings: Any) -> Front:
    return await make_front(
        {"when": spoken("go"), "tokens": spoken(text)}, **{"template": templates.THINKS_AND_CALLS, **settings}
    )


async def both(front: Front, **fields: Any) -> Told:
    streamed, whole = [told(await front.chat("go", stream=stream, **fields))[0] for stream in (True, False)]
    assert [call.pop("id") for call in streamed.calls] != [] or not whole.calls
    assert [call.pop("id") for call in whole.calls] != [] or not streamed.calls
    assert vars(streamed) == {**vars(whole), "pieces": streamed.pieces}
    return whole


async def num_reasoning(front: Front, **fields: Any) -> int:
    """Of the usage, which must be the same in both modes and add up."""
    found = []
    whole = (await front.chat("go", **fields)).json()["usage"]
    options = {"include_usage": True}
    streamed = (await front.chat("go", stream=True, stream_options=options, **fields)).chunks[-1]["usage"]
    for usage in (whole, streamed):
        assert usage["prompt_tokens"] + usage["completion_tokens"] == usage["total_tokens"]
        found.append(usage["completion_tokens_details"]["reasoning_tokens"])
    assert found[0] == found[1]
    return int(found[0])


async def test_reasoning_is_told_from_the_answer(make_front: Make) -> None:
    front = await model(make_front)
    found = await both(front)
    assert (found.reasoning, found.text, found.finish) == ("hmm", "Answer", "stop")
    message = (await front.chat("go")).json()["choices"][0]["message"]
    assert list(message) == ["role", "content", "refusal", "reasoning", "reasoning_content"]
    assert message["reasoning"] == message["reasoning_content"]


async def test_an_opened_prompt(make_front: Make) -> None:
    front = await model(make_front, "hmm\n</think>\n\nAnswer")
    found = await both(front, chat_template_kwargs={"thinks_at_once": True})
    assert (found.reasoning, found.text) == ("hmm", "Answer")
    assert (await both(front)).text == "hmm\n</think>\n\nAnswer"


async def test_thinking_that_is_switched_off(make_front: Make) -> None:
    front = await model(make_front, "Answer")
    for fields in ({"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"}):
        answer = await front.chat("go", return_token_ids=True, **fields)
        prompt = front.tokenizer.decode(answer.json()["prompt_token_ids"], skip_special_tokens=False)
        assert prompt.endswith("<think>\n\n</think>\n\n")
        assert told(answer)[0].text == "Answer"
        assert await num_reasoning(front, **fields) == 0


async def test_reasoning_tokens_are_counted(make_front: Make) -> None:
    # One byte each: the tag that opens and the thought, but not the tag that ends and the answer.
    assert await num_reasoning(await model(make_front)) == len("<think>\nhmm")
    assert await num_reasoning(await model(make_front, "Answer")) == 0
    cut = await model(make_front)
    assert await num_reasoning(cut, max_tokens=len("<think>\nh")) == len("<think>\nh")
    assert await num_reasoning(await model(make_front), include_reasoning=False) == len("<think>\nhmm")
    assert await num_reasoning(await model(make_front), n=3) == 3 * len("<think>\nhmm")


async def test_reasoning_that_is_not_included(make_front: Make) -> None:
    front = await model(make_front)
    found = await both(front, include_reasoning=False)
    assert (found.reasoning, found.text) == ("", "Answer")
    for stream in (True, False):
        assert b"hmm" not in (await front.chat("go", include_reasoning=False, stream=stream)).body


@pytest.mark.parametrize("opened", [False, True])
async def test_a_budget_ends_the_thinking(make_front: Make, opened: bool) -> None:
    text = ("" if opened else "<think>") + "0123456789"
    front = await make_front(
        {"when": spoken("go"), "tokens": spoken(text), "then": "repeat"}, template=templates.THINKS_AND_CALLS
    )
    fields = {"chat_template_kwargs": {"thinks_at_once": True}} if opened else {}
    limit = len(text) + len("</think>") + 10
    for budget in (0, 4, 10):
        found = await both(front, thinking_token_budget=budget, max_tokens=limit, **fields)
        assert found.reasoning == "0123456789"[:budget]
        assert found.text
    assert (await both(front, thinking_token_budget=100, max_tokens=limit, **fields)).text == ""


async def test_the_answer_follows_its_schema_and_the_thinking_does_not(make_front: Make) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    format = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    for text, fields in (
        ("hm {no json}</think>", {"chat_template_kwargs": {"thinks_at_once": True}}),
        ("<think>hm {no json}</think>", {}),
    ):
        front = await model(make_front, text)
        found = await both(front, response_format=format, **fields)
        assert found.reasoning == "hm {no json}"
        assert json.loads(found.text)["a"] in (1, 2)
        assert found.finish == "stop"
        cut = await both(front, response_format=format, thinking_token_budget=3, **fields)
        assert cut.reasoning == "hm"
        assert json.loads(cut.text)["a"] in (1, 2)


async def test_no_thinking_is_offered_where_the_prompt_has_closed_it(make_front: Make) -> None:
    front = await model(make_front, "<think>hm</think>")
    format = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [11, 12]}}}
    found = await both(front, response_format=format, chat_template_kwargs={"enable_thinking": False})
    assert found.reasoning == ""
    assert found.text in ("11", "12")


async def test_a_forced_call_comes_behind_the_thinking(make_front: Make) -> None:
    for text, parser, fields in (
        ("hm</think>", "hermes", {"chat_template_kwargs": {"thinks_at_once": True}}),
        ("<think>hm</think>", "json", {}),
        ("<think>hm</think>", "qwen_xml", {}),
    ):
        front = await model(make_front, text, tool_parser=parser)
        found = await both(front, tools=[CALL], tool_choice="required", parallel_tool_calls=False, **fields)
        assert found.reasoning == "hm"
        assert (found.text, found.calls) == ("", [{"name": "now", "arguments": "{}"}])


async def refused(front: Front, param: str, **fields: Any) -> str:
    answer = await front.chat("go", **fields)
    error = answer.json()["error"]
    assert (answer.status, error["param"]) == (400, param), error
    return str(error["message"])


async def test_a_budget_is_refused_where_it_cannot_be_kept(make_front: Make) -> None:
    plain = await make_front()
    await refused(plain, "thinking_token_budget", thinking_token_budget=5)
    harmony = await model(make_front, reasoning_parser="gpt_oss", tool_parser="gpt_oss")
    assert "gpt_oss" in await refused(harmony, "thinking_token_budget", thinking_token_budget=5)
    maskless = await model(make_front, capabilities=Capabilities(masks=False))
    assert "backend" in await refused(maskless, "thinking_token_budget", thinking_token_budget=5)
    for wrong in (-1, "5", 1.5):
        await refused(await model(make_front), "thinking_token_budget", thinking_token_budget=wrong)


async def test_reasoning_effort(make_front: Make) -> None:
    front = await model(make_front, template=EFFORT)
    for effort in ("none", "minimal", "low", "medium", "high", "xhigh"):
        answer = await front.chat("go", reasoning_effort=effort, return_token_ids=True)
        prompt = front.tokenizer.decode(answer.json()["prompt_token_ids"], skip_special_tokens=False)
        assert prompt.startswith(f"{effort}:")
    await refused(front, "reasoning_effort", reasoning_effort="enormous")
    clash = {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}}
    await refused(front, "reasoning_effort", **clash)
    switch = await model(make_front)
    assert "none" in await refused(switch, "reasoning_effort", reasoning_effort="low")
    plain = await make_front()
    await refused(plain, "reasoning_effort", reasoning_effort="low")
    assert (await plain.chat("go", reasoning_effort="none")).status == 200


async def test_variables_that_the_template_does_not_know_are_refused(make_front: Make) -> None:
    front = await model(make_front)
    await refused(front, "chat_template_kwargs.enable_thinkin", chat_template_kwargs={"enable_thinkin": False})
    await refused(front, "chat_template_kwargs", chat_template_kwargs={"messages": []})


async def test_reasoning_of_earlier_turns_is_taken_back(make_front: Make) -> None:
    template = "{% for m in messages %}[{{ m.reasoning_content }}|{{ m.content }}]{% endfor %}"
    front = await make_front(template=template)
    for field in ("reasoning", "reasoning_content"):
        turn = {"role": "assistant", "content": "a", field: "because"}
        answer = await front.chat([turn, {"role": "user", "content": "go"}], return_token_ids=True)
        prompt = front.tokenizer.decode(answer.json()["prompt_token_ids"], skip_special_tokens=False)
        assert prompt.startswith("[because|a]")


async def test_an_operator_can_switch_reasoning_off(make_front: Make) -> None:
    front = await model(make_front, reasoning_parser="none")
    found = await both(front)
    assert (found.reasoning, found.text) == ("", THOUGHT)
