"""What a scripted model says: its plays, and which of them a prompt calls for.

    "script": {
      "plays": [
        {"when": [7], "tokens": [65, 66, 67]},                              the prompt holds id 7
        {"when": [8, 9], "tokens": [65], "then": "repeat"},                 it holds 8, 9 in a row
        {"echo": true},                                                     any other prompt comes back
      ],
      "token_s": 0.01, "chunk_s": 0.05                                      how long a step takes
    }

The first play whose `when` occurs in the prompt is played; a prompt that calls for none gets the end token at once.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from tickertape.plugins import ModelSpec, SamplingParams

__all__ = ["Failure", "Play", "Script"]


class Failure(Struct, frozen=True, forbid_unknown_fields=True):
    """What goes wrong when output token `at` (0 the first) is due: "row" fails its row, "runner" raises RunnerError,
    "worker" raises what ends a worker. `during` says in which of the two calls; a row fails in sample only."""

    at: int
    kind: Literal["row", "runner", "worker"] = "row"
    during: Literal["forward", "sample"] = "sample"
    message: str = "the script says so"


class Play(Struct, frozen=True, forbid_unknown_fields=True):
    """`tokens`, or with `alternatives` the (seed + choice)-th of those when temperature is above 0, or with `echo` the
    prompt itself; `then` the end token for ever, or the same again from the start."""

    when: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()
    alternatives: tuple[tuple[int, ...], ...] = ()
    echo: bool = False
    then: Literal["eos", "repeat"] = "eos"
    fail: Failure | None = None

    def called_by(self, prompt: tuple[int, ...]) -> bool:
        count = len(self.when)
        return any(prompt[i : i + count] == self.when for i in range(len(prompt) - count + 1))

    def output(self, prompt: tuple[int, ...], sampling: SamplingParams) -> tuple[int, ...]:
        if self.echo:
            return prompt
        if self.alternatives and sampling.temperature > 0:
            return self.alternatives[(sampling.seed + sampling.choice) % len(self.alternatives)]
        return self.tokens


class Script(Struct, frozen=True, forbid_unknown_fields=True):
    """`token_s` passes in every step that gives a token, `chunk_s` for every row that brings several prompt ids.
    `vocab_size` and `eos_token` come from the model's config."""

    plays: tuple[Play, ...]
    vocab_size: int
    eos_token: int
    token_s: float = 0.0
    chunk_s: float = 0.0

    @classmethod
    def of(cls, spec: ModelSpec) -> Script:
        """Raises msgspec.ValidationError, which says what is wrong and where."""
        eos: Any = spec.config.get("eos_token_id", 0)
        known = {"vocab_size": spec.vocab_size, "eos_token": eos[0] if isinstance(eos, list) else eos}
        return msgspec.convert(dict(spec.config.get("script", {"plays": ()})) | known, cls)

    def play_for(self, prompt: tuple[int, ...]) -> Play:
        return next((play for play in self.plays if play.called_by(prompt)), Play())
