"""Writes docs/fields.md: each field of the OpenAI wire on each backend, as requests found it. A test sees that it was
done: `python docs/make_fields.py`."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tickertape.api.isolated_renders import IsolatedRenders
from tickertape.api.openai.refusals import CHAT_FIXED, COMPLETION_FIXED
from tickertape.api.openai.requests import ChatRequest, CompletionRequest
from tickertape.api.options import WireOptions
from tickertape.core.ports import EngineStats
from tickertape.plugins import Backend, Capabilities, MemoryPlan, Request, TokenDelta
from tickertape.plugins.backends import reference, remote, scripted, transformers, vllm
from tickertape.plugins.backends.remote.asking import body_of
from tickertape.plugins.backends.remote.dialects import DIALECTS, Dialect
from tickertape.testing import templates
from tickertape.testing.front import Front, front, spoken

HEAD = """\
# Each field on each backend

Made by `python docs/make_fields.py`, which sends every field with a value that asks for something to a server over each
backend, streamed and not. `yes`: it is honoured, on every route that has it. `400`: it is refused, and the answer names
it. `not streamed`: honoured in whole answers, refused in streams. `no effect`: it is accepted and changes nothing, as
documented. There is nothing else. What the fields take, those that are refused everywhere too, stands in
[http-api.md](http-api.md#requests).

The columns `remote` are the servers that such a backend may speak to. Fields that need the server's word are asked for
where it was given: `priority` with `--policy priority`, `chat_template` with `--trust-request-chat-template`; the model
has a template with tools, thinking and a `reasoning_effort`.
"""
NO_EFFECT = ("metadata", "prompt_cache_key", "safety_identifier", "user")
TOOL = {"type": "function", "function": {"name": "f"}}
TAG = {"triggers": ["a"], "structures": [{"begin": "ab", "schema": {"const": 1}, "end": "x"}]}
CONTINUED = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "so"}]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": 1}}}

# Field: a value that asks for something, and what must come with it.
ASKED: dict[str, tuple[Any, dict[str, Any]]] = {
    "model": ("scripted", {}),
    "messages": (CONTINUED, {}),
    "prompt": ("go", {}),
    "add_generation_prompt": (False, {}),
    "add_special_tokens": (True, {}),
    "allowed_token_ids": ([97, 98], {}),
    "bad_words": (["x"], {}),
    "best_of": (2, {}),
    "cache_salt": ("s", {}),
    "chat_template": ("{{ messages[0].content }}", {}),
    "chat_template_kwargs": ({"enable_thinking": False}, {}),
    "continue_final_message": (True, {"messages": CONTINUED}),
    "echo": (True, {"messages": CONTINUED, "continue_final_message": True}),
    "frequency_penalty": (1, {}),
    "guided_choice": (["a", "b"], {}),
    "guided_grammar": ('start: "a"', {}),
    "guided_json": ({"const": 1}, {}),
    "guided_regex": ("a", {}),
    "ignore_eos": (True, {}),
    "include_reasoning": (False, {}),
    "include_stop_str_in_output": (True, {"stop": ["x"]}),
    "logit_bias": ({"97": 5}, {}),
    "logits_processors": ([{"name": "none"}], {}),
    "logprobs": (1, {}),
    "max_completion_tokens": (3, {}),
    "max_tokens": (3, {}),
    "metadata": ({"a": "b"}, {}),
    "min_p": (0.1, {}),
    "min_tokens": (2, {}),
    "n": (2, {}),
    "parallel_tool_calls": (False, {"tools": [TOOL]}),
    "presence_penalty": (1, {}),
    "priority": (1, {}),
    "prompt_cache_key": ("k", {}),
    "prompt_logprobs": (1, {}),
    "reasoning_effort": ("high", {}),
    "repetition_penalty": (1.1, {}),
    "response_format": (SCHEMA, {}),
    "return_token_ids": (True, {}),
    "return_tokens_as_token_ids": (True, {"logprobs": 0}),
    "safety_identifier": ("s", {}),
    "seed": (1, {}),
    "skip_special_tokens": (False, {}),
    "stop": (["x"], {}),
    "stop_token_ids": ([97], {}),
    "stream": (True, {}),
    "stream_options": ({"include_usage": True}, {"stream": True}),
    "structural_tag": (TAG, {}),
    "structured_outputs": ({"regex": "a"}, {}),
    "temperature": (0.5, {}),
    "thinking_token_budget": (2, {}),
    "tool_choice": ("required", {"tools": [TOOL]}),
    "tools": ([TOOL], {}),
    "top_k": (5, {}),
    "top_logprobs": (1, {"logprobs": True}),
    "top_p": (0.5, {}),
    "truncate_prompt_tokens": (5, {}),
    "user": ("u", {}),
}


class Column(NamedTuple):
    """A backend, and where it speaks to another server, which."""

    title: str
    backend: Backend
    dialect: Dialect | None = None


class Refusing:
    """An engine that refuses what a remote backend would, and else answers as the one behind it does."""

    def __init__(self, engine: Any, dialect: Dialect) -> None:
        self._engine = engine
        self._dialect = dialect

    def plan(self) -> MemoryPlan:
        made: MemoryPlan = self._engine.plan()
        return made

    def stats(self) -> EngineStats:
        made: EngineStats = self._engine.stats()
        return made

    async def start(self) -> None: ...

    async def health(self) -> None: ...

    async def stop(self, grace_s: float) -> None: ...

    async def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        body_of(request, "model", self._dialect)
        async for delta in self._engine.generate(request):
            yield delta


def columns() -> list[Column]:
    made: list[Backend] = []
    for module in (reference, scripted, transformers, vllm, remote):
        module.register_backends(made.append)
    *ours, last = made
    return [Column(each.name, each) for each in ours] + [
        Column(f"{last.name} ({name})", last, dialect) for name, dialect in DIALECTS.items()
    ]


async def page() -> str:
    names = sorted({*ChatRequest.model_fields, *CompletionRequest.model_fields})
    cells = {name: [] for name in names}  # type: dict[str, list[str]]
    found = columns()
    for column in found:
        for name, cell in (await column_of(column, names)).items():
            cells[name].append(cell)
    head = " | ".join(column.title for column in found)
    lines = [f"| field | {head} |", "| --- |" + " --- |" * len(found)]
    lines += [f"| `{name}` | {' | '.join(row)} |" for name, row in cells.items()]
    return f"{HEAD}\n" + "\n".join(lines) + "\n"


async def column_of(column: Column, names: list[str]) -> dict[str, str]:
    able = column.backend.capabilities
    with tempfile.TemporaryDirectory() as directory:
        async with front(
            Path(directory),
            [{"when": spoken("go"), "tokens": spoken("abc")}],
            template="{{ reasoning_effort or '' }}" + templates.THINKS_AND_CALLS,
            max_model_len=1024,
            num_blocks=129,
            policy="priority",
            options=WireOptions(trust_chat_templates=True),
            isolated=IsolatedRenders(),
            capabilities=Capabilities(**{**msgspec.structs.asdict(able), "ahead": False}),
        ) as served:
            engine = served.engine if column.dialect is None else Refusing(served.engine, column.dialect)
            served.models.replace(
                msgspec.structs.replace(served.model, engine=engine, own_engine=column.backend.kind == "runner")
            )
            return {name: await cell_of(column, served, name) for name in names}


async def cell_of(column: Column, served: Front, name: str) -> str:
    """What all its requests agree on. Raises AssertionError when one is neither served nor refused by name."""
    answers = {each async for each in asked(column, served, name)}
    if answers == {("yes", False), ("400", True)}:
        return "not streamed"
    cells = {cell for cell, _ in answers}
    assert len(cells) == 1, (name, answers)
    [cell] = cells
    return "no effect" if cell == "yes" and name in NO_EFFECT else cell


async def asked(column: Column, served: Front, name: str) -> AsyncIterator[tuple[str, bool]]:
    """What became of each request, and whether it was streamed."""
    for chat, fields in requests(name):
        for stream in (False, True):
            body = {"max_tokens": 3, "stream": stream, **fields}
            if "max_completion_tokens" in body:
                del body["max_tokens"]
            messages = body.pop("messages", [{"role": "user", "content": "go"}])
            answer = await (
                served.chat(messages, **body) if chat else served.complete(body.pop("prompt", "go"), **body)
            )
            if answer.status == 200:
                assert b'"error"' not in answer.body, (name, answer.body)
                yield "yes", stream
                continue
            error = answer.json()["error"]
            if error["param"] == "logits_processors[0].name":  # none is registered here, but one could be named
                refuses = () if column.dialect is None else column.dialect.refuses
                yield "400" if name in refuses else "yes", stream
                continue
            assert answer.status == 400, (name, error)
            assert error["param"].startswith((name, *fields)), (name, error)
            yield "400", stream


def requests(name: str) -> Iterator[tuple[bool, dict[str, Any]]]:
    """On the routes that have the field: whether it is the chats', and the fields of a request that asks for it."""
    for chat, model, fixed in ((True, ChatRequest, CHAT_FIXED), (False, CompletionRequest, COMPLETION_FIXED)):
        if name not in model.model_fields or (name == "add_special_tokens" and chat):
            continue
        value, others = ({"any": "thing"}, {}) if name in fixed else ASKED[name]
        if chat and name == "logprobs":
            value = True
        if chat and "logprobs" in others:
            others = {**others, "logprobs": True}
        kept = {key: each for key, each in others.items() if key in model.model_fields}
        yield chat, {**kept, name: value}


if __name__ == "__main__":
    (Path(__file__).parent / "fields.md").write_text(asyncio.run(page()), encoding="utf-8")
