"""The worker's compiler: grammars to constraints over the model's vocabulary, kept for the next request."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import Final

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from msgspec.structs import replace
from numpy.typing import NDArray

from tickertape.core.errors import InvalidRequest, RowError
from tickertape.core.grammar import Constraint
from tickertape.core.request import Grammar
from tickertape.core.thinking import ThinkingConstraint
from tickertape.grammar.text import one_line, to_library

__all__ = ["MatcherCompiler", "MatcherConstraint", "compile_matcher"]

_MAX_KEPT: Final = 64
_MAX_KEPT_CHARS: Final = 2 << 20
_MAX_LEXER_STATES: Final = 30_000
_NO_FIT: Final = "doesn't satisfy the grammar"
_MAX_RENEWAL_S: Final = 0.05
"""Renewing holds up everybody's step: what took longer to compile is not renewed."""

_Kept = tuple[LLMatcher, float]
"""A matcher at its beginning, and the seconds that it took."""


def compile_matcher(vocabulary: LLTokenizer, grammar: Grammar) -> LLMatcher:
    """A matcher at its beginning, its first mask computed once. Without Python's lock for most of the time. Raises
    InvalidRequest for a grammar that is wrong, too costly, or that no text can satisfy."""
    limits = LLParserLimits(
        max_items_in_row=8000,
        initial_lexer_fuel=250_000,
        step_lexer_fuel=50_000,  # about 0.1 s, for which a step waits
        step_max_items=50_000,
        max_lexer_states=_MAX_LEXER_STATES,
        max_grammar_size=200_000,
        verbose_errors=False,
    )
    try:
        matcher = LLMatcher(vocabulary, to_library(grammar), log_level=0, limits=limits)
    except ValueError:  # text that has no UTF-8, a number that has no digits
        raise InvalidRequest("it cannot be read") from None
    if not matcher.is_error():
        matcher.compute_bitmask()
        if matcher.is_error() and matcher.stop_reason() in ("NoExtension", "NoExtensionBias", "InternalError"):
            reason = one_line(matcher.get_error())
            if not reason or "NoExtension" in reason:
                raise InvalidRequest("no text can satisfy it")
    if matcher.is_error():
        raise InvalidRequest(one_line(matcher.get_error()) or "it cannot be compiled")
    return matcher


def _num_chars(grammar: Grammar) -> int:
    return len(grammar.source) + sum(len(schema) for _, schema in grammar.parts)


class MatcherConstraint:
    """Implements `tickertape.core.grammar.Constraint`.

    The matchers of one grammar share the states that its lexer has met, whose number is bounded: the library fails
    whoever meets one more. That need not be who met the others, so the matcher is replaced once, by `renew`, where it
    gives one: it may cost too much.
    """

    __slots__ = ("_matcher", "_num_words", "_own_ends", "_renew", "_stops", "_tokens", "is_done")

    def __init__(
        self,
        matcher: LLMatcher,
        renew: Callable[[], LLMatcher | None],
        num_words: int,
        own_ends: Collection[int],
        stop_tokens: Collection[int],
    ) -> None:
        self._matcher = matcher
        self._renew: Callable[[], LLMatcher | None] | None = renew
        self._tokens: list[int] = []
        self._num_words = num_words  # of the library's mask; the model's may be shorter
        self._own_ends = [(token >> 5, 1 << (token & 31)) for token in own_ends if token not in stop_tokens]
        self._stops = [(token >> 5, 1 << (token & 31)) for token in stop_tokens]
        self.is_done = matcher.is_stopped()

    def accept(self, tokens: Sequence[int]) -> None:
        self._tokens += tokens
        if not self._matcher.consume_tokens(list(tokens)) and not self._replace():
            reason = one_line(self._matcher.get_error())
            if _NO_FIT in reason:
                raise RowError(f"the output left its grammar: {reason}")
            raise _gave_out(reason)
        self.is_done = self._matcher.is_stopped()

    def fill(self, line: NDArray[np.int32]) -> None:
        own = line if len(line) == self._num_words else np.empty(self._num_words, dtype=np.int32)
        self._matcher.unsafe_compute_mask_ptr(own.ctypes.data, own.nbytes)
        if self._matcher.is_error() and self._replace():
            self._matcher.unsafe_compute_mask_ptr(own.ctypes.data, own.nbytes)
        matcher = self._matcher
        if matcher.is_error():
            raise _gave_out(one_line(matcher.get_error()))
        if own is not line:
            line[:] = own[: len(line)]
        words = line.view(np.uint32)
        if matcher.is_accepting():
            for word, bit in self._own_ends:
                words[word] &= ~bit & 0xFFFFFFFF
            for word, bit in self._stops:
                words[word] |= bit
        if not line.any():
            raise _gave_out("it allows no token here")

    def _replace(self) -> bool:
        """Goes on with a new matcher where this one gave out; False when that does not help."""
        if self._renew is None:
            return False
        renewed, self._renew = self._renew(), None
        if renewed is None:
            return False
        self._matcher = renewed
        return not self._tokens or self._matcher.consume_tokens(self._tokens)


def _gave_out(reason: str) -> InvalidRequest:
    return InvalidRequest(f"the grammar cannot be followed further: {reason}", param="grammar")


class MatcherCompiler:
    """Implements `tickertape.core.grammar.GrammarCompiler`. The vocabulary is made on a thread from the start, since
    that takes a second for a large one; the first grammar waits for it."""

    def __init__(self, vocab_size: int, make_vocabulary: Callable[[], LLTokenizer]) -> None:
        self.mask_words = -(-vocab_size // 32)
        self._vocabulary: Future[LLTokenizer] = Future()
        self._lock = threading.Lock()
        self._kept: OrderedDict[Grammar, Future[_Kept]] = OrderedDict()
        self._kept_chars = 0
        threading.Thread(target=self._prepare, args=(make_vocabulary,), name="vocabulary", daemon=True).start()

    def ready(self) -> str | None:
        """Waits for the vocabulary. Returns why there is none, or None when there is."""
        error = self._vocabulary.exception()
        return None if error is None else one_line(str(error))

    def compile(self, grammar: Grammar, stop_tokens: Collection[int]) -> Constraint:
        if self._vocabulary.exception() is not None:
            raise InvalidRequest(
                "the model's tokenizer cannot carry grammars", code="unsupported_value", param="grammar"
            )
        vocabulary = self._vocabulary.result()
        stops = [token for token in stop_tokens if token >> 5 < self.mask_words]
        answer = None if grammar.kind == "free" else self._answer(vocabulary, grammar, stops)
        if (thinking := grammar.thinking) is not None:
            return ThinkingConstraint(
                thinking, answer, lambda token: vocabulary.decode_bytes([token]), stops, self.mask_words
            )
        if answer is None:
            raise InvalidRequest("a grammar holds the answer to something", param="grammar")
        return answer

    def _answer(self, vocabulary: LLTokenizer, grammar: Grammar, stops: Collection[int]) -> MatcherConstraint:
        answer = replace(grammar, thinking=None)
        try:
            kept, matcher = self._matcher(vocabulary, answer)
        except InvalidRequest as error:
            raise InvalidRequest(error.message, code=error.code, param="grammar") from None

        def renew() -> LLMatcher | None:
            if kept.result()[1] > _MAX_RENEWAL_S:
                return None
            with self._lock:
                if self._kept.get(answer) is kept:
                    self._drop(answer)
            return self._matcher(vocabulary, answer)[1]

        num_words = -(-vocabulary.vocab_size // 32)
        return MatcherConstraint(matcher, renew, num_words, vocabulary.eos_tokens, stops)

    def _matcher(self, vocabulary: LLTokenizer, grammar: Grammar) -> tuple[Future[_Kept], LLMatcher]:
        """The matcher that is kept, and one of the caller's own. Who asks for a grammar that is being compiled waits
        for it."""
        mine: Future[_Kept] = Future()
        with self._lock:
            found = self._kept.setdefault(grammar, mine)
            self._kept.move_to_end(grammar)
            if found is mine:
                self._kept_chars += _num_chars(grammar)
                while len(self._kept) > _MAX_KEPT or (self._kept_chars > _MAX_KEPT_CHARS and len(self._kept) > 1):
                    self._drop(next(iter(self._kept)))
        if found is mine:
            try:
                begun = time.thread_time()
                mine.set_result((compile_matcher(vocabulary, grammar), time.thread_time() - begun))
            except BaseException as error:
                mine.set_exception(error)
        matcher, _ = found.result()
        with self._lock:
            return found, matcher.deep_copy()

    def _drop(self, grammar: Grammar) -> None:
        """Under the lock."""
        del self._kept[grammar]
        self._kept_chars -= _num_chars(grammar)

    def _prepare(self, make_vocabulary: Callable[[], LLTokenizer]) -> None:
        try:
            self._vocabulary.set_result(make_vocabulary())
        except BaseException as error:
            self._vocabulary.set_exception(error)
