"""Bounds what waits. The queue itself is the scheduler's; this holds counters and refuses."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from tickertape.core.errors import Overloaded

__all__ = ["Admission", "AdmissionLimits", "Ticket"]


class AdmissionLimits(Struct, frozen=True, kw_only=True):
    """What may wait for its first token at once, over all models. `retry_after_s` is the advice in a refusal."""

    max_waiting_requests: int = 2048
    max_waiting_tokens: int = 4_000_000
    retry_after_s: float = 1.0


class Admission:
    """Counts requests and prompt tokens from acceptance to the first token, and requests to their end. Used on the
    front's loop only."""

    def __init__(self, limits: AdmissionLimits | None = None) -> None:
        self.limits = AdmissionLimits() if limits is None else limits
        self.num_waiting_requests = 0
        self.num_waiting_tokens = 0
        self._in_flight: Counter[str] = Counter()

    def admit(self, model: str, num_requests: int, num_tokens: int) -> Ticket:
        """Lets in `num_requests` sequences with `num_tokens` prompt tokens in all. Raises Overloaded, code queue_full.
        An empty queue takes any call, so that none is refused for ever."""
        limits = self.limits
        requests = self.num_waiting_requests + num_requests
        tokens = self.num_waiting_tokens + num_tokens
        if self.num_waiting_requests and requests > limits.max_waiting_requests:
            raise self._full(f"{requests} requests would wait, {limits.max_waiting_requests} may")
        if self.num_waiting_requests and tokens > limits.max_waiting_tokens:
            raise self._full(f"{tokens} prompt tokens would wait, {limits.max_waiting_tokens} may")
        return Ticket(self, model, num_requests, num_tokens)

    def in_flight(self, model: str) -> int:
        return self._in_flight[model]

    def _full(self, why: str) -> Overloaded:
        return Overloaded(f"The queue is full: {why}", code="queue_full", retry_after_s=self.limits.retry_after_s)

    def _count(self, model: str, waiting: int, tokens: int, in_flight: int) -> None:
        self.num_waiting_requests += waiting
        self.num_waiting_tokens += tokens
        self._in_flight[model] += in_flight
        if not self._in_flight[model]:
            del self._in_flight[model]  # names of models come and go


class Ticket:
    """A call's place. It waits until `started`, and is in flight until `ended`; both may be called again."""

    __slots__ = ("_admission", "_model", "_num_requests", "_num_tokens", "_state")

    def __init__(self, admission: Admission, model: str, num_requests: int, num_tokens: int) -> None:
        self._admission = admission
        self._model = model
        self._num_requests = num_requests
        self._num_tokens = num_tokens
        self._state = "waiting"
        admission._count(model, num_requests, num_tokens, num_requests)

    def started(self) -> None:
        if self._state == "waiting":
            self._state = "started"
            self._admission._count(self._model, -self._num_requests, -self._num_tokens, 0)

    def ended(self) -> None:
        self.started()
        if self._state == "started":
            self._state = "ended"
            self._admission._count(self._model, 0, 0, -self._num_requests)
