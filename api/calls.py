"""What a client asks for, in no wire's spelling: text or ids in, how to decode, what to hand back.

Wires build these records from closed models of their own; `service.py` checks them against the model and the limits.
Faults name the field as OpenAI (or vLLM, for its extras) spells it; a wire with other names maps them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from tickertape.core.request import Grammar

__all__ = [
    "ChatCall",
    "CompletionCall",
    "Decoding",
    "ProcessorCall",
    "PromptInput",
    "Reasoning",
    "Structure",
    "Tool",
    "ToolUse",
]

PromptInput = str | tuple[int, ...]


class ProcessorCall(Struct, frozen=True):
    """A logits processor by its name, and its arguments, which hold what JSON can say."""

    name: str
    arguments: Mapping[str, Any]


class Structure(Struct, frozen=True):
    """What every answer must follow. `param` is how the client spelled it, for what is wrong with it."""

    grammar: Grammar
    param: str


class Tool(Struct, frozen=True):
    """A function that the model may call. `definition` is how its template shows it; `parameters` the JSON schema of
    the arguments (None: it takes none); with `strict` every call of it satisfies that."""

    name: str
    definition: Mapping[str, Any]
    parameters: Mapping[str, Any] | None = None
    strict: bool = False


class ToolUse(Struct, frozen=True, kw_only=True):
    """`required`: the answer is calls and nothing else. `only`: the names of those of the tools that may be called;
    None: all. Without `parallel` an answer has at most one call."""

    tools: tuple[Tool, ...] = ()
    required: bool = False
    only: tuple[str, ...] | None = None
    parallel: bool = True

    @property
    def callable(self) -> tuple[Tool, ...]:
        return tuple(tool for tool in self.tools if self.only is None or tool.name in self.only)


class Reasoning(Struct, frozen=True, kw_only=True):
    """`effort` is a word of the model's template, or "none". After `budget` tokens the thinking is ended. What is not
    `shown` is thought and counted all the same."""

    effort: str | None = None
    budget: int | None = None
    shown: bool = True


class Decoding(Struct, frozen=True, kw_only=True):
    """How one sequence is continued, for all sequences of a call. None: the model's default (`GenerationDefaults`), or
    nothing.

    `max_tokens` None, and no default of the model's: for a completion `CallLimits.default_completion_tokens`, for a
    chat up to the context. `seed` takes any 64-bit value; a negative one counts modulo 2**64. `truncate_prompt_tokens`
    keeps the last so many ids of the prompt; -1: as many as leave room for `max_tokens`. `logprobs` counts the top ids
    beside the chosen one.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    n: int = 1
    best_of: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logit_bias: Mapping[int, float] = msgspec.field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    return_token_ids: bool = False
    truncate_prompt_tokens: int | None = None
    priority: int = 0
    cache_salt: str | None = None
    logits_processors: tuple[ProcessorCall, ...] = ()
    structure: Structure | None = None


class ChatCall(Struct, frozen=True, kw_only=True):
    """Messages as `ChatTemplate.render` takes them: `role`, `content` (a string, text parts or None), and what else the
    role carries.

    `template` renders them in the place of the model's own. `echo` puts the last message, which is continued then,
    before the new text. `timeout_s` bounds the wait for the first token; None: no bound.
    """

    model: str
    messages: tuple[Mapping[str, Any], ...]
    decoding: Decoding = Decoding()
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    echo: bool = False
    tools: ToolUse = ToolUse()
    reasoning: Reasoning = Reasoning()
    template: str | None = None
    template_kwargs: Mapping[str, Any] = msgspec.field(default_factory=dict)
    tenant: str = ""
    timeout_s: float | None = None

    @property
    def scores_echo(self) -> bool:
        """Never: what is echoed is a part of the prompt, and its tokens are not set apart."""
        return False


class CompletionCall(Struct, frozen=True, kw_only=True):
    """Texts or ids to continue, each `decoding.n` times. `echo` puts the prompt before the new text."""

    model: str
    prompts: tuple[PromptInput, ...]
    decoding: Decoding = Decoding()
    echo: bool = False
    add_special_tokens: bool = True
    tenant: str = ""
    timeout_s: float | None = None

    @property
    def scores_echo(self) -> bool:
        """Whether the echoed prompt comes with log probabilities."""
        return self.echo and self.decoding.logprobs is not None
