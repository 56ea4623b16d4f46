"""What a chat's answer is to be held to and read with, before and after its prompt is known."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from tickertape.api.calls import ChatCall, Structure
from tickertape.api.models import ServedModel
from tickertape.api.structures import check_structure
from tickertape.api.tool_calls import call_grammar, parameters_schema
from tickertape.core.errors import InvalidRequest
from tickertape.core.request import Grammar
from tickertape.plugins.output_parsers import OutputParsers

__all__ = ["AnswerPlan", "plan_answer", "with_thinking"]

_FREE: Final = Grammar("free", "")


class AnswerPlan(Struct, frozen=True):
    """`grammar` holds the answer, `parsers` (None: it is content as it comes) read it, `shown` are the special tokens
    that stay in its text for them. `params` says what a client calls what the grammar came from."""

    grammar: Grammar | None = None
    parsers: OutputParsers | None = None
    shown: frozenset[int] = frozenset()
    param: str | None = None


async def plan_answer(model: ServedModel, call: ChatCall) -> AnswerPlan:
    """Raises InvalidRequest for what this model cannot do, naming the field; Overloaded."""
    use, structure, output = call.tools, call.decoding.structure, model.output
    parsers = output.parsers_for(use)
    for n, tool in enumerate(use.tools):
        if tool.strict or (use.required and tool in use.callable):
            schema = Grammar("json_schema", parameters_schema(tool.parameters))
            await check_structure(model, Structure(schema, f"tools[{n}].function.parameters"))
    await check_structure(model, structure)
    param = None if structure is None else structure.param
    grammar = None if structure is None else structure.grammar
    if use.tools and parsers.tools is not None:
        made = call_grammar(use, parsers.tools, model.tokenizer, structure)
        if made is not None:
            grammar, param = made, "tool_choice" if use.required else "tools"
            await check_structure(model, Structure(grammar, param))
            if not model.own_engine:
                grammar = _in_one(grammar)
    if call.reasoning.budget is not None:
        _check_budget(model, parsers)
        param = param or "thinking_token_budget"
    read = parsers if parsers.reasoning is not None or parsers.tools is not None else None
    return AnswerPlan(grammar, read, output.shown(parsers), param)


def with_thinking(plan: AnswerPlan, model: ServedModel, call: ChatCall, prompt_end: str) -> AnswerPlan:
    """The plan for a prompt that ends so: what is thought before the answer is not held to its grammar, but to the
    budget. Raises InvalidRequest where an engine that is not ours would hold the thinking too."""
    budget = call.reasoning.budget
    if plan.grammar is None and budget is None:
        return plan
    thinking = model.output.thinking(model.tokenizer, prompt_end, budget)
    if thinking is None:
        return plan
    if not model.own_engine:
        if thinking.opened:
            raise InvalidRequest(
                f"{plan.param!r}: the backend of this model cannot tell the thinking from the answer; switch it off",
                code="unsupported_value",
                param=plan.param,
            )
        return plan
    return replace(plan, grammar=replace(plan.grammar or _FREE, thinking=thinking))


def _in_one(grammar: Grammar) -> Grammar:
    """The grammar for engines that take a Lark source alone."""
    parts = dict(grammar.parts)
    return Grammar(grammar.kind, re.sub(r"@(\w+)", lambda found: f"%json {parts[found[1]]}", grammar.source))


def _check_budget(model: ServedModel, parsers: OutputParsers) -> None:
    spec = parsers.reasoning
    if model.grammars is None or not model.capabilities.masks or not model.own_engine:
        reason = "the backend of this model"
    elif spec is None:
        reason = "this model, which is not known to reason"
    elif spec.tags is None:
        reason = f"the format that this model reasons in ({spec.name})"
    else:
        return
    raise InvalidRequest(f"'thinking_token_budget' is not supported by {reason}", code="unsupported_value",
                         param="thinking_token_budget")  # fmt: skip
