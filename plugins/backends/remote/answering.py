"""What the server answers, chunk by chunk, as deltas."""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from tickertape.plugins import Finish, Request, RowError, TokenDelta, TokenLogprobs

__all__ = ["Answer", "Chunk"]

_BY_ID: Final = "token_id:"


class Logprobs(Struct):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None = None


class Score(Struct):
    logprob: float
    rank: int | None = None


class Choice(Struct):
    text: str = ""
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    logprobs: Logprobs | None = None
    prompt_logprobs: list[dict[int, Score] | None] | None = None


class PromptDetails(Struct):
    cached_tokens: int | None = None


class Usage(Struct):
    prompt_tokens_details: PromptDetails | None = None


class Chunk(Struct):
    """An event of a stream, or a whole answer: the parts of it that are read here."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: dict[str, object] | str | None = None


class Answer:
    """Of one request. What may end in a stop token is held until the next chunk, since a finish comes with the token
    that caused it, and servers may send it in a chunk of its own."""

    def __init__(self, request: Request) -> None:
        self._sampling = request.sampling
        self._stop_tokens = frozenset(request.sampling.stop_tokens)
        self._prompt_ids: tuple[int, ...] | None = None
        self._held: TokenDelta | None = None
        self._begun = False
        self.finished = False

    def push(self, chunk: Chunk, prompt: list[int]) -> TokenDelta | None:
        """The next delta, or None while there is none. `prompt` are the ids that were asked about. Raises RowError
        when the answer is none that can be passed on."""
        if not chunk.choices or self.finished:
            return None  # the usage at the end
        choice = chunk.choices[0]
        if choice.token_ids is None and (choice.text or choice.logprobs):
            raise RowError("the server behind this model answers without token ids")
        delta = TokenDelta(tuple(choice.token_ids or ()))
        if self._sampling.logprobs is not None:
            delta = replace(delta, logprobs=self._logprobs(choice, delta.tokens))
        if self._sampling.prompt_logprobs is not None and choice.prompt_logprobs:
            delta = replace(delta, prompt_logprobs=self._scores(choice.prompt_logprobs, prompt))
        if not self._begun:
            self._begun = True
            if chunk.usage is not None and chunk.usage.prompt_tokens_details is not None:
                delta = replace(delta, num_cached_tokens=chunk.usage.prompt_tokens_details.cached_tokens)
        return self._settle(delta, choice.finish_reason)

    def _settle(self, delta: TokenDelta, reason: str | None) -> TokenDelta | None:
        if self._held is not None:
            delta, self._held = _joined(self._held, delta), None
        ends_in_stop = bool(delta.tokens) and delta.tokens[-1] in self._stop_tokens
        if reason is not None:
            self.finished = True
            return self._finish(delta, reason, ends_in_stop)
        if ends_in_stop:
            self._held = delta
            return None
        if not delta.tokens and not delta.prompt_logprobs and delta.num_cached_tokens is None:
            return None
        return self._without_extra(delta)

    def _finish(self, delta: TokenDelta, reason: str, ends_in_stop: bool) -> TokenDelta:
        if reason == "stop":
            finish = Finish("stop", delta.tokens[-1] if ends_in_stop else None)
        elif reason == "length":
            finish = Finish("length")
        else:
            raise RowError(f"the server behind this model ended the answer: {reason}")
        delta = self._without_extra(replace(delta, finish=finish))
        return replace(delta, finish=Finish("length")) if not self._sampling.max_tokens else delta

    def _without_extra(self, delta: TokenDelta) -> TokenDelta:
        """Servers that cannot score a prompt alone were asked for one token more."""
        if self._sampling.max_tokens:
            return delta
        return replace(delta, tokens=(), logprobs=None if delta.logprobs is None else ())

    def _logprobs(self, choice: Choice, tokens: tuple[int, ...]) -> tuple[TokenLogprobs, ...]:
        given = choice.logprobs
        if len(given.tokens if given else ()) != len(tokens):
            raise RowError("the server behind this model answers without log probabilities")
        if given is None:
            return ()
        num_top = self._sampling.logprobs or 0
        tops = given.top_logprobs or [None] * len(tokens)
        return tuple(
            _entry(token, -9999.0 if value is None else value, top or {}, num_top)
            for token, value, top in zip(tokens, given.token_logprobs, tops, strict=True)
        )

    def _scores(self, given: list[dict[int, Score] | None], prompt: list[int]) -> tuple[TokenLogprobs, ...]:
        num_top = self._sampling.prompt_logprobs or 0
        found = []
        for token, scores in zip(prompt[1:], given[1:], strict=True):
            if scores is None or token not in scores:
                raise RowError("the server behind this model scored another prompt")
            values = {id: score.logprob for id, score in scores.items()}
            entry = _ranked(token, values[token], values, num_top)
            rank = scores[token].rank
            found.append(entry if rank is None else replace(entry, rank=rank))
        return tuple(found)


def _joined(first: TokenDelta, then: TokenDelta) -> TokenDelta:
    logprobs = None if first.logprobs is None else first.logprobs + (then.logprobs or ())
    return replace(first, tokens=first.tokens + then.tokens, logprobs=logprobs)


def _entry(token: int, value: float, top: dict[str, float], num_top: int) -> TokenLogprobs:
    values = {}
    for name, each in top.items():
        if not name.startswith(_BY_ID):
            raise RowError("the server behind this model names tokens by their texts, which may coincide")
        values[int(name.removeprefix(_BY_ID))] = each
    return _ranked(token, value, values, num_top)


def _ranked(token: int, value: float, values: dict[int, float], num_top: int) -> TokenLogprobs:
    """`values` are the top ids in descending order, as servers send them, the token itself among them or beside
    them. Its rank is exact when it is one of the top ids, else the least that it can be."""
    best = sorted(values.items(), key=lambda item: -item[1])[:num_top]
    ids = tuple(id for id, _ in best)
    rank = 1 + ids.index(token) if token in ids else 1 + len(ids)
    return TokenLogprobs((token, *ids), (value, *(each for _, each in best)), rank)
