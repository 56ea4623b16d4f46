"""A request as a body: every field of ours is mapped by name, or refused with it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from msgspec.structs import fields, replace

from tickertape.plugins import (
    Grammar,
    InvalidRequest,
    LogitsProcessorCall,
    ModelSpec,
    PluginError,
    Request,
    RowError,
    SamplingParams,
    StartupError,
    Thinking,
    pack_tokens,
)
from tickertape.plugins.backends.remote.asking import MAPPED, body_of, is_streamed
from tickertape.plugins.backends.remote.dialects import DIALECTS
from tickertape.plugins.backends.remote.figures import Figures, read_figures
from tickertape.plugins.backends.vllm.asking import MAPPED as MAPPED_TO_VLLM
from tickertape.plugins.manager import Plugins

THINKING = Thinking("<", ">", (1,), (2,))
PLAIN = SamplingParams(max_tokens=9, seed=5)
SPEC = ModelSpec(name="m", path="/m", architecture="Unheard", config={}, max_model_len=64, vocab_size=99)


def request(sampling: SamplingParams = PLAIN, **others: Any) -> Request:
    return Request(id=1, prompt=pack_tokens([3, 4]), num_prompt_tokens=2, sampling=sampling, **others)


def body(dialect: str = "tickertape", sampling: SamplingParams = PLAIN, **others: Any) -> dict[str, Any]:
    return body_of(request(sampling, **others), "theirs", DIALECTS[dialect])


def test_no_field_is_forgotten() -> None:
    assert sorted(MAPPED) == sorted(MAPPED_TO_VLLM) == sorted(field.name for field in fields(SamplingParams))


def test_a_plain_request_says_all_that_a_server_has_defaults_for() -> None:
    """Servers take theirs from the model's generation_config; here the front has done so already."""
    assert body() == {
        "model": "theirs",
        "prompt": [3, 4],
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "max_tokens": 9,
        "seed": 5,
        "temperature": 1.0,
        "top_k": -1,
        "top_p": 1.0,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "min_tokens": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
    }


ASKED: list[tuple[str, dict[str, Any], dict[str, Any], Any]] = [
    ("stop_token_ids", {"stop_tokens": (7, 8)}, {}, [7, 8]),
    ("logit_bias", {"logit_bias": ((7, 1.5),)}, {}, {"7": 1.5}),
    ("allowed_token_ids", {"allowed_tokens": (7,)}, {}, [7]),
    ("logprobs", {"logprobs": 2}, {}, 2),
    ("prompt_logprobs", {"prompt_logprobs": 0}, {}, 0),
    (
        "logits_processors",
        {"logits_processors": (LogitsProcessorCall("cap", '{"at":3}'),)},
        {},
        [{"name": "cap", "arguments": {"at": 3}}],
    ),
    ("structured_outputs", {}, {"grammar": Grammar("json_schema", '{"type":"object"}')}, {"json": {"type": "object"}}),
    ("structured_outputs", {}, {"grammar": Grammar("regex", "a+")}, {"regex": "a+"}),
    ("structured_outputs", {}, {"grammar": Grammar("lark", "start: A")}, {"grammar": "start: A"}),
    ("structured_outputs", {}, {"grammar": Grammar("structural_tag", "{}")}, {"structural_tag": "{}"}),
    ("cache_salt", {}, {"cache_key": b"\x01\xff"}, "01ff"),
    ("priority", {}, {"priority": -3}, -3),
    ("bad_words", {"bad_tokens": ((7,),)}, {}, None),
    ("model", {}, {"adapter": "x"}, None),
]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(("name", "sampling", "others", "sent"), ASKED)
def test_what_is_asked_for_is_sent_or_refused(
    dialect: str, name: str, sampling: dict[str, Any], others: dict[str, Any], sent: Any
) -> None:
    asked = replace(PLAIN, **sampling)
    if name in DIALECTS[dialect].refuses:
        with pytest.raises(InvalidRequest) as caught:
            body(dialect, asked, **others)
        assert (caught.value.code, caught.value.param) == ("unsupported_value", name)
    else:
        found = body(dialect, asked, **others)
        assert found[name] == sent
        json.dumps(found)


@pytest.mark.parametrize(
    "grammar",
    [Grammar("free", ""), Grammar("lark", "start: @a", (("a", "{}"),)), Grammar("regex", "a", thinking=THINKING)],
)
def test_what_only_our_engine_makes_of_grammars_is_refused(grammar: Grammar) -> None:
    with pytest.raises(InvalidRequest) as caught:
        body(grammar=grammar)
    assert caught.value.param == "structured_outputs"


def test_what_no_server_can_be_asked_is_refused_by_all() -> None:
    for dialect in DIALECTS.values():
        assert {"bad_words", "model"} <= dialect.refuses


@pytest.mark.parametrize(
    ("dialect", "seed", "sent"),
    [
        ("tickertape", 2**64 - 1, -1),
        ("tickertape", 2**63, -(2**63)),
        ("tickertape", 2**63 - 1, 2**63 - 1),
        ("vllm", 2**64 - 1, 2**63 - 1),
        ("sglang", 2**63, 0),
    ],
)
def test_seeds_fit_the_wire(dialect: str, seed: int, sent: int) -> None:
    assert body(dialect, replace(PLAIN, seed=seed))["seed"] == sent


def test_choices_of_one_seed_differ() -> None:
    seeds = [body(sampling=replace(PLAIN, choice=n))["seed"] for n in range(50)]
    assert seeds[0] == PLAIN.seed
    assert len(set(seeds)) == 50
    assert seeds == [body(sampling=replace(PLAIN, choice=n))["seed"] for n in range(50)]


def test_prompts_are_scored_as_the_server_can() -> None:
    scored = replace(PLAIN, prompt_logprobs=1, max_tokens=0)
    assert (is_streamed(request(scored), DIALECTS["tickertape"]), body("tickertape", scored)["max_tokens"]) == (True, 0)
    assert (is_streamed(request(scored), DIALECTS["vllm"]), body("vllm", scored)["max_tokens"]) == (False, 1)


def test_an_answer_that_was_begun_is_not_gone_on_with() -> None:
    with pytest.raises(RowError):
        body_of(replace(request(), num_prompt_tokens=1), "theirs", DIALECTS["tickertape"])


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        ("", Figures()),
        ("# HELP x\ngarbage {\nvllm:cache_config_info{num_gpu_blocks=\"None\"} 1\nx 1e999\n", Figures()),
        (
            'vllm:cache_config_info{block_size="16",num_gpu_blocks="10",engine="0"} 1.0\n'
            'vllm:cache_config_info{block_size="16",num_gpu_blocks="10",engine="1"} 1.0\n'
            'vllm:kv_cache_usage_perc{engine="0"} 0.5\nvllm:kv_cache_usage_perc{engine="1"} 0.1\n',
            Figures(20, 6, 160),
        ),
        ('sglang:token_usage{model_name="m"} 0.5\nsglang:max_total_num_tokens{} 4000.0\n', Figures(4000, 2000, 4000)),
        ('tickertape_kv_blocks_used_ratio{model="m"} 0.5\n', Figures()),
    ],
)  # fmt: skip
def test_figures_of_a_server(text: str, figures: Figures) -> None:
    assert read_figures(text) == figures


def test_it_is_taken_by_name_only() -> None:
    plugins = Plugins.load()
    assert plugins.choose(SPEC, "remote").kind == "engine"
    with pytest.raises(StartupError) as caught:
        plugins.choose(SPEC)
    assert "remote" not in caught.value.message
    with pytest.raises(PluginError):
        plugins.choose(SPEC, "remotely")


PROBE = """
import sys, time
import tickertape.plugins
before = set(sys.modules)
started = time.perf_counter()
import {module}
print(time.perf_counter() - started)
print(*sorted({{name.partition(".")[0] for name in set(sys.modules) - before}}))
"""


@pytest.mark.parametrize("name", ["remote", "vllm"])
def test_registering_is_light(name: str) -> None:
    """Under 50 ms, the best of three, and without what does the work."""
    code = PROBE.format(module=f"tickertape.plugins.backends.{name}")
    outputs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
        for _ in range(3)
    ]
    assert min(float(output.splitlines()[0]) for output in outputs) < 0.05
    assert set(outputs[0].splitlines()[1].split()) - sys.stdlib_module_names <= {"tickertape"}
