"""The front's check of a grammar: compiled for nothing but to hear what is wrong with it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from llguidance import LLTokenizer

from tickertape.api.model_tokenizer import ModelTokenizer
from tickertape.core.errors import InvalidRequest, Overloaded
from tickertape.core.request import Grammar
from tickertape.grammar.compiler import compile_matcher
from tickertape.grammar.vocabulary import sketch_vocabulary

__all__ = ["CheckThreads", "MatcherChecker"]

_NUM_THREADS: Final = 2
_MAX_WAITING: Final = 128
_TIME_LIMIT_S: Final = 10.0
_MAX_KNOWN: Final = 1024


class CheckThreads:
    """The threads that the checkers of all models share, and the bounded line before them. Used on one asyncio loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="check-grammar")
        self._num_jobs = 0

    def sketch(self, tokenizer: ModelTokenizer, vocab_size: int) -> Future[LLTokenizer]:
        return self._threads.submit(sketch_vocabulary, tokenizer, vocab_size)

    async def compile(self, vocabulary: Future[LLTokenizer], grammar: Grammar) -> None:
        """Raises InvalidRequest for what is wrong with the grammar, Overloaded when too many are looked at. One that
        takes too long is refused, and keeps its thread until it is through."""
        if self._num_jobs >= _NUM_THREADS + _MAX_WAITING:
            raise Overloaded("too many grammars wait to be checked", retry_after_s=1.0)
        loop = asyncio.get_running_loop()
        self._num_jobs += 1
        # The threads take jobs in order, so the one that makes the vocabulary is ahead of those that wait for it.
        job = self._threads.submit(lambda: compile_matcher(vocabulary.result(), grammar))

        def left(_: object) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._leave)

        job.add_done_callback(left)
        try:
            await asyncio.wait_for(asyncio.wrap_future(job), _TIME_LIMIT_S)
        except TimeoutError:
            raise InvalidRequest("it takes too long to compile") from None

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _leave(self) -> None:
        self._num_jobs -= 1


class MatcherChecker:
    """Implements `tickertape.api.models.GrammarChecker` for one model. Grammars found good are remembered."""

    def __init__(self, threads: CheckThreads, tokenizer: ModelTokenizer, vocab_size: int) -> None:
        self._threads = threads
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._vocabulary: Future[LLTokenizer] | None = None
        self._known: OrderedDict[int, None] = OrderedDict()

    async def check(self, grammar: Grammar) -> None:
        key = hash(grammar)  # not the source, which may be long; the worker compiles it anyway
        if key in self._known:
            self._known.move_to_end(key)
            return
        if self._vocabulary is None:
            self._vocabulary = self._threads.sketch(self._tokenizer, self._vocab_size)
        await self._threads.compile(self._vocabulary, grammar)
        self._known[key] = None
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
