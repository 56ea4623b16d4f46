"""The scripted backend passes the runner's kit, as a model that always says the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from tickertape.plugins.backends.scripted.runner import ScriptedRunner
from tickertape.plugins.backends.scripted.script import Play, Script
from tickertape.plugins.manager import Plugins
from tickertape.testing.models import write_scripted
from tickertape.testing.runner import RunnerConformance
from tickertape.testing.subject import Subject
from tickertape.weights.mapping import MappedWeights

VOCAB_SIZE = 199
SAID, DRAWN = 5, 6


def plain(ids: Sequence[int]) -> NDArray[np.float64]:
    """What a scored row of the script looks like: made-up logits, and far above them what the script says."""
    positions = np.arange(len(ids))[:, None]
    logits = (positions * 104729 + np.arange(VOCAB_SIZE) * 7919) % 97 / -16.0
    logits[:, SAID] = 8.0
    return logits


class TestScripted(RunnerConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls, tmp_path_factory: pytest.TempPathFactory) -> Subject:
        spec = write_scripted(tmp_path_factory.mktemp("scripted"), [], vocab_size=VOCAB_SIZE)
        play = Play(tokens=(SAID,), alternatives=((DRAWN,), (DRAWN + 1,)), then="repeat")
        return Subject(
            make=lambda: ScriptedRunner(Script((play,), vocab_size=VOCAB_SIZE, eos_token=0)),
            weights=lambda: MappedWeights(Path(spec.path)),
            plain=plain,
            vocab_size=VOCAB_SIZE,
            # What it makes up about a prompt is no model's: a script begins where the prompt ends.
            capabilities=replace(Plugins.load().backend("scripted").capabilities, prompt_logprobs=False),
        )
