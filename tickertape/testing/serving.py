"""Whole requests through the real scheduler and engine loop, on the caller's thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tickertape.core.loop import EngineLoop
from tickertape.plugins import Finish, Request, SamplingParams, TokenLogprobs, pack_tokens

__all__ = ["Outcome", "ask", "serve"]


@dataclass
class Outcome:
    """What one request was told. `delivered` holds each delta's tokens by themselves."""

    delivered: list[tuple[int, ...]] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_cached_tokens: int | None = None
    finish: Finish | None = None
    error: Exception | None = None

    @property
    def tokens(self) -> list[int]:
        return [token for tokens in self.delivered for token in tokens]


def ask(request_id: int, prompt: Sequence[int], sampling: SamplingParams) -> Request:
    """The plainest request: arrivals in the order of the ids."""
    return Request(
        id=request_id,
        prompt=pack_tokens(list(prompt)),
        num_prompt_tokens=len(prompt),
        sampling=sampling,
        arrival=float(request_id),
    )


def serve(loop: EngineLoop, requests: Sequence[Request], *, max_steps: int = 10_000) -> list[Outcome]:
    """Submits all at once and steps until nothing is left; the outcomes in order. A failure is in its outcome."""
    outcomes = {request.id: Outcome() for request in requests}
    for request in requests:
        loop.submit(request)
    for _ in range(max_steps):
        if not loop.has_work():
            return [outcomes[request.id] for request in requests]
        events = loop.step()
        for request_id, delta in events.deltas:
            outcome = outcomes[request_id]
            assert outcome.finish is None, f"request {request_id} got a delta after its last one"
            outcome.delivered.append(delta.tokens)
            outcome.logprobs += delta.logprobs or ()
            outcome.prompt_logprobs += delta.prompt_logprobs or ()
            if delta.num_cached_tokens is not None:
                outcome.num_cached_tokens = delta.num_cached_tokens
            outcome.finish = delta.finish
        for request_id, error in events.failures:
            outcomes[request_id].error = error
    raise AssertionError(f"requests are still being served after {max_steps} steps")
