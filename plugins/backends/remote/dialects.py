"""What the servers spell differently on /v1/completions, and what each cannot be asked."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

__all__ = ["DIALECTS", "Dialect"]


class Dialect(Struct, frozen=True, kw_only=True):
    """`refuses` names the fields (as OpenAI or vLLM spell them) that the server does not have or would ignore in
    silence. `constants` goes into every body. `scores_in_streams`: prompt_logprobs come with a stream; else such a
    request is answered whole. `scores_alone`: max_tokens may be 0. `signed_seed`: all 64 bits of a seed arrive, the
    upper half as negative numbers; else 63 bits do."""

    refuses: frozenset[str]
    constants: Mapping[str, object]
    scores_in_streams: bool = False
    scores_alone: bool = False
    signed_seed: bool = False


_COMMON: Final = {
    "return_token_ids": True,
    # Stop ids are sent as such, the model's end ids among them: who they are is the front's to say.
    "ignore_eos": True,
    "skip_special_tokens": False,
}

DIALECTS: Final[Mapping[str, Dialect]] = MappingProxyType(
    {
        "tickertape": Dialect(
            refuses=frozenset({"bad_words", "model"}),
            constants=MappingProxyType(
                {**_COMMON, "return_tokens_as_token_ids": True, "include_stop_str_in_output": True}
            ),
            scores_in_streams=True,
            scores_alone=True,
            signed_seed=True,
        ),
        "vllm": Dialect(
            refuses=frozenset({"bad_words", "logits_processors", "model"}),
            constants=MappingProxyType({**_COMMON, "return_tokens_as_token_ids": True}),
        ),
        "sglang": Dialect(
            # Its log probabilities come by text, and texts are not ids. What it does not know it ignores.
            refuses=frozenset(
                {
                    "allowed_token_ids",
                    "bad_words",
                    "logits_processors",
                    "logprobs",
                    "model",
                    "prompt_logprobs",
                    "structured_outputs",
                }
            ),
            constants=MappingProxyType({**_COMMON, "no_stop_trim": True}),
        ),
    }
)
"""By what the servers say in `owned_by` of their models."""
