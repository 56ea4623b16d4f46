"""How a model is decoded where a request says nothing: request over flag over generation_config.json over ours."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tickertape.api.generation_defaults import GenerationDefaults
from tickertape.core.errors import StartupError
from tickertape.core.request import SamplingParams
from tickertape.pieces import generation_defaults
from tickertape.settings import Settings
from tickertape.testing.front import Front

Make = Callable[..., Awaitable[Front]]
OURS = GenerationDefaults()


def written(directory: Path, content: Any) -> Path:
    text = content if isinstance(content, str) else json.dumps(content)
    (directory / "generation_config.json").write_text(text)
    return directory


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, OURS),
        ({"eos_token_id": 3, "temperature": None, "transformers_version": "5"}, OURS),
        ({"temperature": 0.6, "top_p": 0.9, "top_k": 50, "min_p": 0.05, "repetition_penalty": 1.1,
          "max_new_tokens": 99},
         GenerationDefaults(temperature=0.6, top_p=0.9, top_k=50, min_p=0.05, repetition_penalty=1.1, max_tokens=99)),
        ({"do_sample": True, "temperature": 0.7}, GenerationDefaults(temperature=0.7)),
        ({"do_sample": False}, GenerationDefaults(temperature=0.0)),
        ({"do_sample": False, "temperature": 0.6, "top_k": 5, "repetition_penalty": 1.2, "max_new_tokens": 7},
         GenerationDefaults(temperature=0.0, repetition_penalty=1.2, max_tokens=7)),
        ({"top_k": 20.0, "top_p": 1}, GenerationDefaults(top_k=20)),
    ],
)  # fmt: skip
def test_the_models_file(tmp_path: Path, config: Any, expected: GenerationDefaults) -> None:
    assert GenerationDefaults.of(written(tmp_path, config)) == expected
    assert GenerationDefaults.of(tmp_path, "none") == OURS


def test_no_file_is_no_fault(tmp_path: Path) -> None:
    assert GenerationDefaults.of(tmp_path) == OURS


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"temperature": -1}, "temperature is -1"),
        ({"temperature": True}, "temperature is True"),
        ({"top_p": 0}, "top_p is 0"),
        ({"top_k": 1.5}, "top_k is 1.5"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ('{"repetition_penalty": NaN}', "repetition_penalty is nan"),
    ],
)
def test_a_number_that_cannot_be_keeps_the_model_from_being_served(tmp_path: Path, config: Any, words: str) -> None:
    with pytest.raises(StartupError, match=rf"^generation_config\.json: {words}") as caught:
        GenerationDefaults.of(written(tmp_path, config))
    assert caught.value.code == "BadConfig"


def test_flags_win_over_the_file_and_none_leaves_it_aside(tmp_path: Path) -> None:
    written(tmp_path, {"temperature": 0.6, "top_p": 0.9, "max_new_tokens": 50})
    assert generation_defaults(Settings(default_temperature=0, default_top_k=3, default_max_tokens=9), tmp_path) == (
        GenerationDefaults(temperature=0.0, top_p=0.9, top_k=3, max_tokens=9)
    )
    assert generation_defaults(Settings(generation_config="none", default_top_p=0.5), tmp_path) == (
        GenerationDefaults(top_p=0.5)
    )


async def sampled(front: Front, defaults: GenerationDefaults, **fields: Any) -> list[SamplingParams]:
    """What the runner is told for a chat and for a completion of a model with these defaults."""
    front.models.replace(structs.replace(front.model, defaults=defaults))
    before = len(front.batches)
    assert (await front.chat("go", **fields)).status == 200
    assert (await front.complete("go", **fields)).status == 200
    return [opened.sampling for batch in front.batches[before:] for opened in batch.opened]


async def test_on_the_wire_a_request_says_more_than_its_model(make_front: Make) -> None:
    front = await make_front()
    defaults = GenerationDefaults(temperature=0.6, top_p=0.9, top_k=50, min_p=0.1, repetition_penalty=1.3, max_tokens=5)
    silent = await sampled(front, defaults)
    loud = await sampled(front, defaults, temperature=1, top_p=1, top_k=-1, min_p=0, repetition_penalty=1, max_tokens=3)
    plain = await sampled(front, OURS)

    def numbers(sampling: SamplingParams) -> tuple[float, ...]:
        return (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, sampling.repetition_penalty)

    assert [numbers(each) for each in silent] == [(0.6, 0.9, 50, 0.1, 1.3)] * 2
    assert [numbers(each) for each in loud + plain] == [(1.0, 1.0, 0, 0.0, 1.0)] * 4
    assert [each.max_tokens for each in silent + loud] == [5, 5, 3, 3]
    assert plain[1].max_tokens == 16


async def test_a_default_length_is_cut_to_what_the_context_leaves(make_front: Make) -> None:
    front = await make_front(max_model_len=64)
    sampling = (await sampled(front, GenerationDefaults(max_tokens=10_000)))[1]
    assert sampling.max_tokens == 64 - len(front.tokenizer.encode("go", add_special_tokens=True))
