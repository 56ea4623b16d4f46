"""The sequences that a call becomes: one engine request and one text each."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from tickertape.api.answers import AnswerPlan
from tickertape.api.calls import ChatCall, CompletionCall
from tickertape.api.choice import Choice, ChoiceText, Scoring
from tickertape.api.detokenizer import Detokenizer
from tickertape.api.models import ServedModel
from tickertape.api.part_stream import PartStream
from tickertape.api.prompts import Prompt
from tickertape.api.sampling import cache_key
from tickertape.api.stop_strings import StopStrings
from tickertape.api.text_stream import TextStream
from tickertape.core.output_parser import ParserContext
from tickertape.core.request import Request, SamplingParams, pack_tokens

__all__ = ["make_candidates"]

_MASK_64: Final = 2**64 - 1


def make_candidates(
    call: ChatCall | CompletionCall,
    model: ServedModel,
    prompts: Sequence[Prompt],
    samplings: Sequence[SamplingParams],
    plan: AnswerPlan,
    ids: Iterator[int],
    arrival: float,
) -> list[Choice]:
    """`samplings` by prompt; seed and choice are filled in here. Candidate `prompt index * each + i` is the i-th of
    its prompt. With a seed all of a call's candidates share it and differ by their index; without one each draws."""
    decoding = call.decoding
    each = decoding.n if decoding.best_of is None else decoding.best_of
    key = cache_key(decoding.cache_salt)
    deadline = None if call.timeout_s is None else arrival + call.timeout_s
    packed = [pack_tokens(tuple(prompt.tokens)) for prompt in prompts]
    candidates = []
    for index in range(each * len(prompts)):
        prompt_index, again = divmod(index, each)
        prompt = prompts[prompt_index]
        scoring = Scoring(
            echo=decoding.logprobs if call.scores_echo else None,
            alone=decoding.prompt_logprobs if again == 0 else None,
        )
        request = Request(
            id=next(ids),
            prompt=packed[prompt_index],
            num_prompt_tokens=len(prompt.tokens),
            sampling=replace(
                samplings[prompt_index],
                seed=secrets.randbits(64) if decoding.seed is None else decoding.seed & _MASK_64,
                choice=index,
                # Ranking needs the chosen token's log probability, whether the client sees it or not.
                logprobs=0 if decoding.best_of is not None and decoding.logprobs is None else decoding.logprobs,
                prompt_logprobs=scoring.top,
            ),
            grammar=plan.grammar,
            cache_key=key,
            tenant=call.tenant,
            priority=decoding.priority,
            arrival=arrival,
            deadline=deadline,
        )
        text = _text(call, model, prompt, plan, index)
        candidates.append(Choice(index, prompt_index, prompt, request, text, scoring))
    return candidates


def _text(
    call: ChatCall | CompletionCall, model: ServedModel, prompt: Prompt, plan: AnswerPlan, index: int
) -> ChoiceText:
    decoding = call.decoding
    stops = StopStrings(decoding.stop, include=decoding.include_stop) if decoding.stop else None
    # An end token that the client also named is its stop token, and is told as such.
    end_tokens = frozenset(model.tokenizer.eos_token_ids) - frozenset(decoding.stop_token_ids)
    detokenizer = Detokenizer(
        model.tokenizer,
        skip_special_tokens=decoding.skip_special_tokens,
        prefix=prompt.tokens if prompt.continues else (),
        shown=plan.shown,
    )
    if isinstance(call, CompletionCall) or not plan.parsers:
        return TextStream(
            index,
            detokenizer,
            stops,
            min_tokens=decoding.min_tokens,
            include_stop=decoding.include_stop,
            with_tokens=decoding.return_token_ids,
            with_logprobs=decoding.logprobs is not None,
            end_tokens=end_tokens,
        )
    context = ParserContext(
        tools={tool.name: tool.parameters or {} for tool in call.tools.callable}, prompt_end=prompt.end
    )
    return PartStream(
        index,
        detokenizer,
        plan.parsers.open(context, parallel_tool_calls=call.tools.parallel),
        stops,
        min_tokens=decoding.min_tokens,
        include_stop=decoding.include_stop,
        with_tokens=decoding.return_token_ids,
        with_logprobs=decoding.logprobs is not None,
        with_reasoning=call.reasoning.shown,
        with_content=not call.tools.required,
        end_tokens=end_tokens,
    )
