"""What `observe` is told."""

from __future__ import annotations

from msgspec import Struct

from tickertape.core.ports import EngineStats

__all__ = ["Event", "RequestEvent", "StepEvent"]


class RequestEvent(Struct, frozen=True, kw_only=True):
    """An HTTP request that was answered, or went away. `outcome` is one of ok, cancelled, invalid, unauthorized,
    not_found, too_large, overloaded, timeout, unavailable, failed; `model` the name that the client sent; times are
    seconds from its arrival, `ttft_s` that of the first token; the counts are zero where nothing was generated."""

    request_id: str
    method: str
    path: str
    status: int | None
    outcome: str
    model: str | None
    tenant: str
    duration_s: float
    ttft_s: float | None = None
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0


class StepEvent(Struct, frozen=True, kw_only=True):
    """A step of our paged engine, and how the engine stands after it."""

    model: str
    duration_s: float
    stats: EngineStats


Event = RequestEvent | StepEvent
