"""best_of: generate more, hand out the best."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

import msgspec

from tickertape.api.choice import Choice
from tickertape.api.events import Event, PromptScored

__all__ = ["best_events"]


async def best_events(
    batches: AsyncIterator[list[Event]], candidates: Sequence[Choice], n: int
) -> AsyncGenerator[list[Event], None]:
    """Runs all candidates to their end, then yields, in one batch, the events of the `n` of each prompt with the
    highest mean log probability per token, renumbered best first."""
    prompts: list[Event] = []
    by_candidate: defaultdict[int, list[Event]] = defaultdict(list)
    async for batch in batches:
        for event in batch:
            if isinstance(event, PromptScored):
                prompts.append(event)
            else:
                by_candidate[event.choice].append(event)
    by_prompt: defaultdict[int, list[Choice]] = defaultdict(list)
    for candidate in candidates:
        by_prompt[candidate.prompt_index].append(candidate)
    chosen: list[Event] = list(prompts)
    for prompt_index, rivals in sorted(by_prompt.items()):
        best = sorted(rivals, key=_mean_logprob, reverse=True)[:n]
        for rank, candidate in enumerate(best):
            index = prompt_index * n + rank
            chosen += [msgspec.structs.replace(event, choice=index) for event in by_candidate[candidate.index]]
    yield chosen


def _mean_logprob(choice: Choice) -> float:
    return choice.sum_logprobs / max(choice.text.num_tokens, 1)
