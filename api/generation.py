"""A call under way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing

from tickertape.api.admission import Ticket
from tickertape.api.best_of import best_events
from tickertape.api.choice import Choice
from tickertape.api.events import Event, Usage
from tickertape.api.fanout import Fanout
from tickertape.api.metrics import Meter
from tickertape.api.models import ServedModel
from tickertape.api.prompts import Prompt
from tickertape.core.errors import DeadlineExceeded, InvalidRequest, RequestAborted
from tickertape.core.request import TokenDelta

__all__ = ["Generation"]

Batch = list[tuple[int, TokenDelta]]
Batches = AsyncGenerator[Batch, None]


class Generation:
    """The events of a call, in batches of what one engine step gave. Iterate it once, in one task at a time.

    Closing it is the only cancel: `aclose` (or cancelling the task that iterates, then `aclose`) frees what it holds
    whether it is queued, prefilling or decoding; `abort` is that from outside. An error of the tree ends it for all
    choices. It must be closed in the end, also when it was never iterated or ended by itself.
    """

    def __init__(
        self,
        model: ServedModel,
        prompts: Sequence[Prompt],
        candidates: Sequence[Choice],
        *,
        num_choices: int,
        ticket: Ticket,
        meter: Meter,
        clock: Callable[[], float],
        arrival: float,
        timeout_s: float | None,
        params: Mapping[str, str | None],
    ) -> None:
        self.model = model
        self.prompts = prompts
        self.num_choices = num_choices
        self.ttft_s: float | None = None  # from arrival to the first token of any choice
        self._candidates = candidates
        self._ticket = ticket
        self._meter = meter
        self._clock = clock
        self._arrival = arrival
        self._timeout_s = timeout_s
        self._params = params
        self._num_prompt_tokens = sum(len(prompt.tokens) for prompt in prompts)
        self._ended = False
        self._aborted = False
        self._reader: asyncio.Task[object] | None = None  # the task that waits for events
        self._closing: asyncio.Task[None] | None = None
        self._events = self._run()
        if len(candidates) > num_choices:
            self._events = best_events(self._events, candidates, num_choices // len(prompts))

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> list[Event]:
        self._check()
        self._reader = reader = asyncio.current_task()
        try:
            return await anext(self._events)
        except asyncio.CancelledError:
            # Of a task that was cancelled for another reason too, that one counts.
            if self._aborted and reader is not None and not reader.uncancel():
                self._check()
            raise
        finally:
            self._reader = None

    def abort(self) -> None:
        """Ends it for whoever iterates, who gets RequestAborted now or next; what it holds is freed at once, also while
        the reader is busy elsewhere. From the same loop."""
        if self._aborted or self._ended:
            return
        self._aborted = True
        if self._reader is not None:
            self._reader.cancel()
        else:
            self._closing = asyncio.create_task(self._events.aclose())

    async def aclose(self) -> None:
        try:
            if self._closing is not None:
                await asyncio.wait({self._closing})
            await self._events.aclose()
        finally:
            self._end()

    @property
    def usage(self) -> Usage:
        """So far."""
        candidates = self._candidates
        each = len(candidates) // len(self.prompts)
        return Usage(
            self._num_prompt_tokens,
            sum(choice.text.num_tokens for choice in candidates),
            sum(choice.num_cached_tokens for choice in candidates[::each]),
            sum(choice.text.num_reasoning_tokens for choice in candidates),
        )

    async def _run(self) -> AsyncGenerator[list[Event], None]:
        candidates = self._candidates
        fanout = Fanout(self.model.engine, [choice.request for choice in candidates])
        try:
            async with aclosing(fanout.batches()) as batches:
                batch = await self._first(batches)
                while batch is not None:
                    events: list[Event] = []
                    num_tokens = 0
                    for n, delta in batch:
                        choice = candidates[n]
                        if fanout.is_stopped(n):  # by a stop string, while more was on its way
                            continue
                        before = choice.text.num_tokens
                        choice.push(delta, events)
                        num_tokens += choice.text.num_tokens - before
                        if choice.finished:
                            fanout.stop(n)
                    if num_tokens:
                        self._meter.tokens(self._clock(), num_tokens)
                    if events:
                        yield events
                    batch = await anext(batches, None)
        except InvalidRequest as error:
            if error.param is None or error.param not in self._params:
                raise
            raise InvalidRequest(error.message, code=error.code, param=self._params[error.param]) from error
        finally:
            self._end()

    async def _first(self, batches: Batches) -> Batch | None:
        """Waits in the queue. Raises DeadlineExceeded when that takes too long."""
        left_s = None
        if self._timeout_s is not None:
            left_s = self._arrival + self._timeout_s - self._clock()
        timer = asyncio.timeout(left_s)
        try:
            async with timer:
                batch = await anext(batches, None)
        except TimeoutError:
            if not timer.expired():
                raise
            raise DeadlineExceeded(
                f"The request waited for {self._timeout_s:g} s, as long as it may, and was given up"
            ) from None
        self._ticket.started()
        self.ttft_s = self._clock() - self._arrival
        self._meter.first(self.ttft_s, self._num_prompt_tokens)
        return batch

    def _check(self) -> None:
        if self._aborted:
            raise RequestAborted("The request was aborted") from None

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._ticket.ended()
            self._meter.end(self._clock() - self._arrival, self.usage.cached_tokens)
