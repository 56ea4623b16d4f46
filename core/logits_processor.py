"""The seam for plugins that edit logits: named, made on the server, told apart by JSON arguments. A client sends names
and arguments, never code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from tickertape.core.errors import InvalidRequest, RowError
from tickertape.core.request import Request

__all__ = [
    "LogitsContext",
    "LogitsProcessor",
    "LogitsProcessorSpec",
    "open_processors",
]

Array = Any


class LogitsProcessor(Protocol):
    """Edits the logits of one sequence. Made when its request reaches the worker; the engine's thread calls it."""

    def apply(self, tokens: Sequence[int], logits: Array) -> None:
        """Changes `logits` [V], float64, of the runner's own namespace (numpy, torch) and device, in place, before
        masks, biases and penalties; -inf bans an id.

        `tokens` are all ids so far, prompt and output; they are not to be changed or kept. What is done must follow
        from them and from the arguments alone: a sequence may be preempted, and computed again from its beginning.
        Raises what it likes to fail its own request, and no other.
        """
        ...


class LogitsContext(Struct, frozen=True, kw_only=True):
    """What a processor may know of its request: the first `num_prompt_tokens` of the ids are its prompt,
    `stop_tokens` the ids that end it."""

    num_prompt_tokens: int
    stop_tokens: tuple[int, ...] = ()


def _accepts_everything(_: Mapping[str, Any]) -> str | None:
    return None


class LogitsProcessorSpec(Struct, frozen=True, kw_only=True):
    """A registered processor. `check` runs in the front, once per request: None when the arguments are good, else
    what is wrong with them, in one line, for the client. `make` runs in the worker, once per sequence."""

    name: str
    make: Callable[[Mapping[str, Any], LogitsContext], LogitsProcessor]
    check: Callable[[Mapping[str, Any]], str | None] = _accepts_everything
    summary: str = ""


def open_processors(specs: Mapping[str, LogitsProcessorSpec], request: Request) -> tuple[LogitsProcessor, ...]:
    """The processors that a request names, in its order. Raises InvalidRequest for a name that is not there, RowError
    when one cannot be made."""
    sampling = request.sampling
    context = LogitsContext(num_prompt_tokens=request.num_prompt_tokens, stop_tokens=sampling.stop_tokens)
    made = []
    for call in sampling.logits_processors:
        spec = specs.get(call.name)
        if spec is None:
            raise InvalidRequest(
                f"there is no logits processor {call.name!r}", code="unsupported_value", param="logits_processors"
            )
        try:
            made.append(spec.make(msgspec.json.decode(call.arguments), context))
        except Exception as error:
            raise RowError(f"logits processor {call.name!r} failed: {type(error).__name__}") from error
    return tuple(made)
