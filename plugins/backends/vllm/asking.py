"""A request as vllm's SamplingParams: every field mapped, or refused with its name."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from typing import Any, Final

from tickertape.plugins import Grammar, InvalidRequest, Request, RowError, SamplingParams, unpack_tokens
from tickertape.plugins.backends.vllm.library import Library

__all__ = ["MAPPED", "Asking"]

_SAME_NAME: Final = (
    "temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "min_tokens", "logprobs", "prompt_logprobs",
)  # fmt: skip

MAPPED: Final = (
    *_SAME_NAME, "max_tokens", "seed", "choice", "stop_tokens", "logit_bias", "allowed_tokens", "bad_tokens",
    "logits_processors",
)  # fmt: skip
"""The fields of SamplingParams that are looked at here; a test compares them with those there are."""

_GRAMMARS: Final = {"json_schema": "json", "regex": "regex", "lark": "grammar", "structural_tag": "structural_tag"}
_BAD_IDS: Final = "_bad_words_token_ids"


class Asking:
    """`adapters`: directories of LoRA adapters by name. `priorities`: whether vllm's scheduler looks at them."""

    def __init__(self, library: Library, adapters: Mapping[str, str], *, priorities: bool) -> None:
        self._library = library
        self._priorities = priorities
        self._known = frozenset(inspect.signature(library.SamplingParams).parameters)
        self._adapters = {
            name: self._lora(name, number, path) for number, (name, path) in enumerate(adapters.items(), start=1)
        }

    def prompt(self, request: Request) -> dict[str, Any]:
        """Raises RowError for replayed output."""
        tokens = unpack_tokens(request.prompt)
        if len(tokens) != request.num_prompt_tokens:
            raise RowError("vllm cannot go on with an answer that was begun elsewhere")
        found: dict[str, Any] = {"prompt_token_ids": tokens}
        if request.cache_key:
            found["cache_salt"] = request.cache_key.hex()
        return found

    def adapter(self, request: Request) -> Any | None:
        """Raises InvalidRequest for one that vllm was not started with."""
        if request.adapter is None:
            return None
        if request.adapter not in self._adapters:
            there = ", ".join(self._adapters) or "none"
            raise InvalidRequest(f"there is no adapter {request.adapter!r}; there are: {there}", param="model")
        return self._adapters[request.adapter]

    def params(self, request: Request) -> Any:
        """Raises InvalidRequest, and what vllm raises for a value that it does not take."""
        sampling = request.sampling
        if sampling.logits_processors:
            raise _unsupported("logits_processors")
        if request.priority and not self._priorities:
            raise _unsupported("priority")
        given: dict[str, Any] = {name: getattr(sampling, name) for name in _SAME_NAME}
        given |= {
            "max_tokens": max(sampling.max_tokens, 1),  # a prompt cannot be scored alone; what is too much is dropped
            "seed": _seed(sampling),
            "stop_token_ids": list(sampling.stop_tokens),
            # End ids are among the stop tokens, unless they are to be ignored; what follows a grammar must end.
            "ignore_eos": request.grammar is None,
            "detokenize": False,
            "output_kind": self._library.delta_outputs,
            "skip_clone": True,
        }
        if sampling.logit_bias:
            given["logit_bias"] = dict(sampling.logit_bias)
        if sampling.allowed_tokens is not None:
            given["allowed_token_ids"] = list(sampling.allowed_tokens)
        if request.grammar is not None:
            given["structured_outputs"] = self._structure(request.grammar)
        for name in given.keys() - self._known - {"skip_clone"}:
            raise _unsupported(name)
        params = self._library.SamplingParams(**{name: given[name] for name in given if name in self._known})
        if sampling.bad_tokens:
            # It makes ids of words itself; ours are ids already, and the words are not known here.
            if not hasattr(params, _BAD_IDS):
                raise _unsupported("bad_words")
            setattr(params, _BAD_IDS, [list(tokens) for tokens in sampling.bad_tokens])
        return params

    def _structure(self, grammar: Grammar) -> Any:
        made_here = bool(grammar.parts) or grammar.thinking is not None
        if self._library.StructuredOutputsParams is None or made_here or grammar.kind not in _GRAMMARS:
            raise _unsupported("structured_outputs")
        return self._library.StructuredOutputsParams(**{_GRAMMARS[grammar.kind]: grammar.source})

    def _lora(self, name: str, number: int, path: str) -> Any:
        if self._library.LoRARequest is None:
            raise _unsupported("lora_modules")
        return self._library.LoRARequest(lora_name=name, lora_int_id=number, lora_path=path)


def _unsupported(name: str) -> InvalidRequest:
    return InvalidRequest(f"{name!r} is not supported by vllm here", code="unsupported_value", param=name)


def _seed(sampling: SamplingParams) -> int:
    """63 bits, since -1 is no seed there. The choices of one request share a seed and must differ."""
    seed = sampling.seed
    if sampling.choice:
        mixed = seed.to_bytes(8, "little") + sampling.choice.to_bytes(8, "little")
        seed = int.from_bytes(hashlib.blake2b(mixed, digest_size=8).digest(), "little")
    return seed & (2**63 - 1)
