"""Who goes first. A policy is pure bookkeeping over requests: no clock of its own, no knowledge of blocks.

Waiting requests stand in lanes. Within a lane the order is fixed at arrival (`rank`, smaller first); between lanes
it is the lane's `level`, which may change as work is done. A policy without lanes puts everybody into one.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Protocol

from tickertape.core.errors import StartupError
from tickertape.core.request import Request

__all__ = ["POLICIES", "ArrivalPolicy", "FairPolicy", "Policy", "PriorityPolicy", "make_policy"]

ONE_LANE: Final = ""


class Policy(Protocol):
    """`counts` says whether `served` wants to be told; a policy that does not count costs the step nothing."""

    counts: bool

    def lane(self, request: Request) -> str: ...

    def rank(self, request: Request) -> tuple[float, ...]:
        """Total order within a lane, fixed for the request's life: a preempted request keeps its place."""
        ...

    def level(self, lane: str) -> float:
        """Lanes with the smallest level go first; equal levels are ordered by the ranks of their heads."""
        ...

    def joined(self, lane: str, others: Collection[str]) -> None:
        """`lane` has work after having had none; `others` had work already."""
        ...

    def served(self, lane: str, num_prompt_tokens: int, num_output_tokens: int) -> None: ...

    def outranks(self, waiting: Request, running: Request) -> bool:
        """Whether `waiting` may have `running` preempted to get in. Must follow `rank`, or two requests could take
        turns for ever."""
        ...


class ArrivalPolicy:
    """First come, first served."""

    counts = False

    def lane(self, request: Request) -> str:
        return ONE_LANE

    def rank(self, request: Request) -> tuple[float, ...]:
        return (request.arrival, request.id)

    def level(self, lane: str) -> float:
        return 0.0

    def joined(self, lane: str, others: Collection[str]) -> None: ...

    def served(self, lane: str, num_prompt_tokens: int, num_output_tokens: int) -> None: ...

    def outranks(self, waiting: Request, running: Request) -> bool:
        return False


class PriorityPolicy(ArrivalPolicy):
    """Smaller priority first, with ageing: `ageing_s` seconds of waiting are worth one level, so nobody starves.

    Because every waiting request ages at the same rate, the order of two of them never changes: rank is a constant.
    """

    def __init__(self, ageing_s: float = 30.0) -> None:
        self._ageing_s = ageing_s

    def rank(self, request: Request) -> tuple[float, ...]:
        return (request.arrival + request.priority * self._ageing_s, request.arrival, request.id)

    def outranks(self, waiting: Request, running: Request) -> bool:
        return waiting.priority < running.priority and self.rank(waiting) < self.rank(running)


class FairPolicy(ArrivalPolicy):
    """Virtual token counters per tenant (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024).

    Each tenant's counter grows by the weighted tokens it was served; the tenant with the smallest goes first. One
    that comes back from idleness is lifted to the smallest counter of the active ones, so idleness earns no credit.
    """

    counts = True

    def __init__(self, prompt_weight: float = 1.0, output_weight: float = 2.0) -> None:
        self._prompt_weight = prompt_weight
        self._output_weight = output_weight
        self._counters: dict[str, float] = {}

    def lane(self, request: Request) -> str:
        return request.tenant

    def level(self, lane: str) -> float:
        return self._counters.get(lane, 0.0)

    def joined(self, lane: str, others: Collection[str]) -> None:
        if not others:
            # Nobody else has work: counters may start again, which also keeps departed tenants from piling up.
            self._counters = {lane: 0.0}
            return
        floor = min(self.level(other) for other in others)
        self._counters[lane] = max(self.level(lane), floor)

    def served(self, lane: str, num_prompt_tokens: int, num_output_tokens: int) -> None:
        grown = num_prompt_tokens * self._prompt_weight + num_output_tokens * self._output_weight
        self._counters[lane] = self.level(lane) + grown


POLICIES: Final = {"arrival": ArrivalPolicy, "priority": PriorityPolicy, "fair": FairPolicy}


def make_policy(name: str) -> Policy:
    """Raises StartupError for a name that is not in `POLICIES`."""
    if name not in POLICIES:
        raise StartupError(f"unknown scheduling policy {name!r}; there are {', '.join(POLICIES)}", code="BadSetting")
    return POLICIES[name]()
