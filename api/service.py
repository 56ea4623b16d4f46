"""The one service behind every wire: chat and completion calls in, generations out. No wire's spelling in here.

Everything that can be known before the first token is known when `chat` or `complete` returns: the call is checked
against the model and the limits, its prompts are encoded, and it has its place in the queue.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from tickertape.api.admission import Admission
from tickertape.api.answers import AnswerPlan, plan_answer, with_thinking
from tickertape.api.calls import ChatCall, CompletionCall, Decoding
from tickertape.api.candidates import make_candidates
from tickertape.api.generation import Generation
from tickertape.api.health import Readiness
from tickertape.api.kept_streams import KeptStreams, ResumeLimits
from tickertape.api.limits import CallLimits
from tickertape.api.metrics import Metrics
from tickertape.api.models import Models, ServedModel
from tickertape.api.prompts import Prompt, PromptEncoder
from tickertape.api.ranges import check_choices, check_decoding
from tickertape.api.running import Running
from tickertape.api.sampling import (
    check_logprobs,
    check_scoring,
    check_values,
    context_limit,
    resolve_max_tokens,
    to_sampling,
)
from tickertape.api.structures import check_structure
from tickertape.core.errors import InvalidRequest
from tickertape.core.request import SamplingParams

__all__ = ["Service"]


class _Rules(NamedTuple):
    """Where chat and completions differ: how they spell two fields, and two of their numbers."""

    prompt_field: str
    logprobs_field: str
    max_logprobs: int
    default_tokens: int | None  # None: what the context leaves


class Service:
    """Used on the front's loop only. `clock` is monotonic, in seconds. The wires enter what they serve in `running`,
    and hand streams that can be resumed to `kept`, which is to be closed in the end."""

    def __init__(
        self,
        models: Models,
        admission: Admission,
        readiness: Readiness,
        metrics: Metrics,
        clock: Callable[[], float],
        prompts: PromptEncoder,
        limits: CallLimits | None = None,
        resume: ResumeLimits | None = None,
    ) -> None:
        self.models = models
        self.admission = admission
        self.readiness = readiness
        self.limits = CallLimits() if limits is None else limits
        self.running = Running()
        self.kept = KeptStreams(self.running, resume)
        self._metrics = metrics
        self._clock = clock
        self._prompts = prompts
        self._ids = itertools.count(1)
        self._chat_rules = _Rules("messages", "top_logprobs", self.limits.max_top_logprobs, None)
        self._completion_rules = _Rules(
            "prompt", "logprobs", self.limits.max_logprobs, self.limits.default_completion_tokens
        )

    async def chat(self, call: ChatCall) -> Generation:
        """Raises from the error tree whatever is wrong with the call, or with taking it now."""
        arrival = self._clock()
        model = self.models.get(call.model)
        if call.continue_final_message and call.add_generation_prompt:
            raise InvalidRequest(
                "'continue_final_message' excludes 'add_generation_prompt'; set that to false",
                param="add_generation_prompt",
            )
        if call.echo and not call.continue_final_message:
            raise InvalidRequest(
                "'echo' needs 'continue_final_message': nothing else is there to repeat",
                code="unsupported_value",
                param="echo",
            )
        sampling = self._check(call, model, 1, self._chat_rules)
        plan = await plan_answer(model, call)
        limit = context_limit(model)
        prompt = await self._prompts.chat(model, call, limit)
        plan = with_thinking(plan, model, call, prompt.end)
        return self._start(call, model, (prompt,), sampling, plan, limit, arrival, self._chat_rules)

    async def complete(self, call: CompletionCall) -> Generation:
        """As `chat`. Choice `prompt index * n + i` continues a prompt for the i-th time."""
        arrival = self._clock()
        model = self.models.get(call.model)
        if not call.prompts:
            raise InvalidRequest("Invalid value for 'prompt': there is none", param="prompt")
        sampling = self._check(call, model, len(call.prompts), self._completion_rules)
        structure = call.decoding.structure
        await check_structure(model, structure)
        plan = AnswerPlan() if structure is None else AnswerPlan(structure.grammar, param=structure.param)
        limit = context_limit(model)
        prompts = await self._prompts.completion(model, call, limit)
        return self._start(call, model, prompts, sampling, plan, limit, arrival, self._completion_rules)

    async def tokenize(self, model: ServedModel, text: str, *, add_special_tokens: bool) -> list[int]:
        """Raises Overloaded when too much waits to be tokenized."""
        return await self._prompts.tokens(model, text, add_special_tokens=add_special_tokens)

    def _check(
        self, call: ChatCall | CompletionCall, model: ServedModel, num_prompts: int, rules: _Rules
    ) -> SamplingParams:
        """What can be said before the prompts are encoded."""
        decoding = call.decoding
        check_decoding(decoding, self.limits)
        check_choices(num_prompts, decoding, self.limits)
        check_logprobs(model, decoding, self.limits, param=rules.logprobs_field, most=rules.max_logprobs)
        check_scoring(model, call, param=rules.logprobs_field)
        return to_sampling(model, decoding)

    def _start(
        self,
        call: ChatCall | CompletionCall,
        model: ServedModel,
        prompts: Sequence[Prompt],
        sampling: SamplingParams,
        plan: AnswerPlan,
        limit: int,
        arrival: float,
        rules: _Rules,
    ) -> Generation:
        decoding = call.decoding
        each = decoding.n if decoding.best_of is None else decoding.best_of
        prompt_lengths = [len(prompt.tokens) for prompt in prompts]
        default = model.defaults.max_tokens or rules.default_tokens
        lengths = [
            resolve_max_tokens(decoding, length, limit, default=default, param=rules.prompt_field)
            for length in prompt_lengths
        ]
        num_prompt_tokens = sum(prompt_lengths)
        check_values(
            call,
            self.limits,
            num_prompt_tokens=num_prompt_tokens,
            num_echoed=each * num_prompt_tokens,
            num_new=each * sum(lengths),
        )
        samplings = [replace(sampling, max_tokens=length) for length in lengths]
        ticket = self.admission.admit(model.name, each * len(prompts), each * num_prompt_tokens)
        return Generation(
            model,
            prompts,
            make_candidates(call, model, prompts, samplings, plan, self._ids, arrival),
            num_choices=decoding.n * len(prompts),
            ticket=ticket,
            meter=self._metrics.meter(model.name),
            clock=self._clock,
            arrival=arrival,
            timeout_s=call.timeout_s,
            params=_client_names(decoding, plan),
        )


def _client_names(decoding: Decoding, plan: AnswerPlan) -> dict[str, str | None]:
    """What an engine refuses, by its own name for it, and by that of the field which asked for it."""
    names = {
        "grammar": plan.param,
        "structured_outputs": plan.param,
        "allowed_tokens": "allowed_token_ids",
        "bad_tokens": "bad_words",
    }
    if decoding.logprobs is None and decoding.best_of is not None:
        names["logprobs"] = "best_of"
    return names
