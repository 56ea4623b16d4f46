"""The reference backend passes the kit, with full, sliding and mixed cache groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tickertape.plugins import ModelRunner
from tickertape.plugins.backends.reference.runner import ReferenceRunner
from tickertape.plugins.manager import Plugins
from tickertape.testing.models import write_llama
from tickertape.testing.runner import RunnerConformance
from tickertape.testing.subject import Subject


def poison(runner: ModelRunner) -> None:
    assert isinstance(runner, ReferenceRunner)
    for cache in runner._caches:
        cache[:] = np.nan


MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "tied": {"tie_word_embeddings": True, "num_key_value_heads": 4},
    "llama3-rope": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "sliding": {"architectures": ["MistralForCausalLM"], "sliding_window": 11},
    "mixed": {
        "architectures": ["MinistralForCausalLM"],
        "sliding_window": 19,
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}


class TestReference(RunnerConformance):
    @pytest.fixture(scope="class", params=list(MODELS))
    @classmethod
    def subject(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
        spec = write_llama(tmp_path_factory.mktemp("model"), **MODELS[request.param])
        return Subject.of(Plugins.load().backend("reference"), spec, poison=poison)
