"""vllm's outputs as deltas, and its errors as ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tickertape.plugins import (
    ContextLengthExceeded,
    EngineDead,
    Finish,
    InvalidRequest,
    Overloaded,
    Request,
    RowError,
    TickertapeError,
    TokenDelta,
    TokenLogprobs,
    unpack_tokens,
)
from tickertape.plugins.backends.vllm.library import Library

__all__ = ["Answer", "error_of"]


class Answer:
    """Of one request, asked for as deltas."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._begun = False
        self.finished = False

    def push(self, output: Any) -> TokenDelta | None:
        """The next delta, or None when the output says nothing. Raises RowError for an answer that failed."""
        sampling = self._request.sampling
        [part] = output.outputs
        tokens = tuple(part.token_ids)
        finish = self._finish(part)
        logprobs = prompt_logprobs = cached = None
        if sampling.logprobs is not None:
            logprobs = tuple(
                _entry(token, found, sampling.logprobs)
                for token, found in zip(tokens, part.logprobs or (), strict=True)
            )
        if not self._begun:
            self._begun = True
            cached = output.num_cached_tokens
            if sampling.prompt_logprobs is not None and output.prompt_logprobs:
                prompt_logprobs = self._scores(output.prompt_logprobs, sampling.prompt_logprobs)
        if not sampling.max_tokens:  # one was asked for all the same
            tokens, logprobs = (), None if logprobs is None else ()
        if not tokens and finish is None and prompt_logprobs is None and cached is None:
            return None
        return TokenDelta(tokens, logprobs, prompt_logprobs, cached, finish)

    def _finish(self, part: Any) -> Finish | None:
        reason = part.finish_reason
        if reason is None:
            return None
        self.finished = True
        if reason == "length" or (reason == "stop" and not self._request.sampling.max_tokens):
            return Finish("length")
        if reason == "stop":
            # The tokenizer's own end token has no stop_reason there.
            stop = part.stop_reason if isinstance(part.stop_reason, int) else next(reversed(part.token_ids), None)
            return Finish("stop", stop)
        raise RowError(f"vllm ended the answer: {reason}")

    def _scores(self, given: Sequence[Mapping[int, Any] | None], num_top: int) -> tuple[TokenLogprobs, ...]:
        prompt = unpack_tokens(self._request.prompt)
        return tuple(
            _entry(token, found, num_top)
            for token, found in zip(prompt[1:], given[1:], strict=True)
            if found is not None
        )


def _entry(token: int, found: Mapping[int, Any], num_top: int) -> TokenLogprobs:
    """vllm has the token itself and the top ids in one table, the token but once."""
    best = sorted(found.items(), key=lambda item: item[1].rank)
    top = [(id, entry.logprob) for id, entry in best if entry.rank <= num_top][:num_top]
    own = found[token]
    return TokenLogprobs((token, *(id for id, _ in top)), (own.logprob, *(value for _, value in top)), own.rank)


def error_of(error: Exception, library: Library) -> TickertapeError:
    """What vllm raised for one request."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, TickertapeError):
        return error
    if isinstance(error, library.EngineDeadError):
        return EngineDead(f"vllm stopped: {text}")
    if isinstance(error, library.overload_errors):
        return Overloaded(text)
    if isinstance(error, library.client_errors):
        if "maximum model length" in text or "max_model_len" in text:
            return ContextLengthExceeded(text, param="prompt")
        parameter = getattr(error, "parameter", None)
        return InvalidRequest(text, param=parameter if isinstance(parameter, str) else None)
    cause = error.__cause__
    why = f"{type(cause).__name__}: {' '.join(str(cause).split())}" if cause is not None else text
    return RowError(f"vllm failed: {why}")
