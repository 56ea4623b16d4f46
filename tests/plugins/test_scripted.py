"""The scripted backend plays what it is given: alone, together, ahead, with scores, and with faults."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from tickertape.core.engine import paged_loop
from tickertape.core.loop import EngineLoop
from tickertape.plugins import (
    BackendOptions,
    Batch,
    Capabilities,
    Limits,
    Masks,
    ModelSpec,
    Opened,
    Row,
    RunnerError,
    SamplingParams,
    pack_tokens,
)
from tickertape.plugins.backends.scripted import supports
from tickertape.plugins.backends.scripted.runner import ScriptedRunner, make
from tickertape.plugins.backends.scripted.script import Script
from tickertape.testing.checks import check_idle
from tickertape.testing.models import write_scripted
from tickertape.testing.pytest_plugin import FakeClock
from tickertape.testing.serving import ask, serve

EOS = 2
LIMITS = Limits(max_model_len=2048, max_num_seqs=256, max_batch_tokens=512, block_tokens=16)
PLAYS: list[dict[str, Any]] = [
    {"when": [7], "tokens": [65, 66, 67]},
    {"when": [8, 9], "tokens": [70, 71], "then": "repeat"},
    {"when": [9], "tokens": [60], "alternatives": [[61, 64], [62, 64], [63, 64]]},
    {"when": [10], "tokens": [80, 81, 82], "fail": {"at": 1}},
    {"when": [11], "tokens": [80, 81, 82], "fail": {"at": 1, "kind": "runner", "message": "out of paper"}},
    {"when": [12], "tokens": [80, 81, 82], "fail": {"at": 1, "kind": "runner", "during": "forward"}},
    {"when": [13], "tokens": [80, 81, 82], "fail": {"at": 0, "kind": "worker"}},
    {"echo": True},
]


def params(max_tokens: int = 20, **changes: Any) -> SamplingParams:
    base = SamplingParams(max_tokens=max_tokens, seed=0, temperature=0.0, stop_tokens=(EOS,))
    return replace(base, **changes)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return write_scripted(tmp_path_factory.mktemp("scripted"), PLAYS)


@contextmanager
def playing(runner: ScriptedRunner, *, ahead: bool = False, limits: Limits = LIMITS) -> Iterator[EngineLoop]:
    runner.plan(limits)
    loop, _, _ = paged_loop(runner, limits, Capabilities(ahead=ahead), num_blocks=2000)
    yield loop
    loop.close()


@pytest.fixture(params=[False, True], ids=["in step", "ahead"])
def loop(spec: ModelSpec, request: pytest.FixtureRequest) -> Iterator[EngineLoop]:
    with playing(make(spec, BackendOptions()), ahead=request.param) as loop:
        yield loop
        check_idle(loop.stats())


def say(loop: EngineLoop, prompt: Sequence[int], **changes: Any) -> list[int]:
    [outcome] = serve(loop, [ask(0, prompt, params(**changes))])
    assert outcome.error is None
    return outcome.tokens


def test_the_prompt_chooses_the_play(loop: EngineLoop) -> None:
    assert say(loop, [5, 7, 5]) == [65, 66, 67, EOS]
    assert say(loop, [5, 8, 9, 5], max_tokens=5) == [70, 71, 70, 71, 70]
    assert say(loop, [9, 8]) == [60, EOS], "8 and 9 are not in a row: the next play that fits"
    assert say(loop, [20, 21, 22]) == [20, 21, 22, EOS]


def test_the_end_token_goes_on_when_it_does_not_stop(loop: EngineLoop) -> None:
    assert say(loop, [7], max_tokens=6, stop_tokens=()) == [65, 66, 67, EOS, EOS, EOS]


def test_a_prompt_that_calls_for_no_play_ends_at_once(tmp_path: Path) -> None:
    spec = write_scripted(tmp_path, [{"when": [7], "tokens": [65]}])
    with playing(make(spec, BackendOptions())) as loop:
        assert say(loop, [5, 5]) == [EOS]


def test_choices_and_seeds_differ_and_repeat(loop: EngineLoop) -> None:
    choices = [say(loop, [9], temperature=1.0, seed=4, choice=choice) for choice in range(3)]
    assert sorted(choices) == [[61, 64, EOS], [62, 64, EOS], [63, 64, EOS]]
    assert say(loop, [9], temperature=1.0, seed=4) == choices[0] != say(loop, [9], temperature=1.0, seed=5)
    assert say(loop, [9], temperature=0.0, seed=4) == [60, EOS]


def test_many_at_once_say_what_each_says_alone(loop: EngineLoop) -> None:
    prompts = [[7], [8, 9], [9], [20, 21], [30] * 700] * 9
    together = serve(loop, [ask(i, prompt, params(30)) for i, prompt in enumerate(prompts)])
    assert [outcome.tokens for outcome in together] == [say(loop, prompt, max_tokens=30) for prompt in prompts]


def test_a_row_fails_alone(loop: EngineLoop) -> None:
    good, bad, late = serve(loop, [ask(0, [7], params()), ask(1, [10], params()), ask(2, [20], params())])
    assert good.tokens == [65, 66, 67, EOS]
    assert late.tokens == [20, EOS]
    assert bad.tokens == [80]
    assert "the script says so" in str(bad.error)


@pytest.mark.parametrize("marker", [11, 12])
def test_a_runner_error_fails_the_step_and_no_more(loop: EngineLoop, marker: int) -> None:
    bystander, bad = serve(loop, [ask(0, [7], params()), ask(1, [marker], params())])
    assert bad.tokens == [80]
    assert bad.error is not None
    assert bystander.error is not None
    assert say(loop, [7]) == [65, 66, 67, EOS]


def test_what_ends_a_worker_passes_through(spec: ModelSpec) -> None:
    with playing(make(spec, BackendOptions())) as loop, pytest.raises(RuntimeError, match="the script says so"):
        serve(loop, [ask(0, [13], params())])


def test_log_probabilities_are_a_distribution(loop: EngineLoop) -> None:
    [outcome] = serve(loop, [ask(0, [20, 21, 7], params(logprobs=511, prompt_logprobs=511))])
    assert outcome.tokens == [65, 66, 67, EOS]
    assert [found.ids[0] for found in outcome.prompt_logprobs] == [21, 7]
    for found in outcome.logprobs + outcome.prompt_logprobs:
        assert np.exp(found.values[1:]).sum() == pytest.approx(1, abs=0.01)
    assert all(found.rank == 1 and found.ids[0] == found.ids[1] for found in outcome.logprobs)
    assert say(loop, [7], logprobs=0, temperature=1.5) == [65, 66, 67, EOS], "scores do not change what is played"


def test_parameters_that_change_the_output_are_honoured(loop: EngineLoop) -> None:
    assert say(loop, [7], min_tokens=6)[:3] == [65, 66, 67]
    assert EOS not in say(loop, [7], min_tokens=6)[:6]
    assert say(loop, [7], logit_bias=((99, 100.0),), max_tokens=2) == [99, 99]
    assert 66 not in say(loop, [7], bad_tokens=((66,),))
    assert set(say(loop, [7], allowed_tokens=(65, EOS))) == {65, EOS}


def test_masks_are_honoured(spec: ModelSpec) -> None:
    runner = make(spec, BackendOptions())
    runner.plan(LIMITS)
    runner.allocate([10])
    opened = Opened(0, params(), pack_tokens([7]), 1)
    runner.forward(Batch(1, (Row(0, (7,), 0, 1),), (opened,), (), (np.zeros((256, 128), np.int32),)))
    bits = np.zeros((1, 16), np.int32)
    bits[0, 3] = 1 << 4
    assert runner.sample(Masks(bits)).tokens == [[100]]


def test_drafts_are_confirmed_as_far_as_they_are_right(spec: ModelSpec) -> None:
    runner = make(spec, BackendOptions())
    runner.plan(LIMITS)
    runner.allocate([10])
    tables = (np.zeros((256, 128), np.int32),)
    opened = Opened(0, params(), pack_tokens([7]), 1)
    runner.forward(Batch(1, (Row(0, (7, 65, 66, 99), 0, 4),), (opened,), (), tables))
    assert [list(ids) for ids in runner.sample(None).tokens] == [[65, 66, 67]]


def test_two_steps_may_be_launched_before_one_is_sampled(spec: ModelSpec) -> None:
    """Even when the second closes a slot of the first and gives it to another sequence."""
    runner = make(spec, BackendOptions())
    runner.plan(LIMITS)
    runner.allocate([10])
    tables = (np.zeros((256, 128), np.int32),)
    first = Opened(0, params(logprobs=0), pack_tokens([7]), 1)
    second = Opened(0, params(logprobs=0), pack_tokens([20, 21]), 2)
    runner.forward(Batch(1, (Row(0, (7,), 0, 1),), (first,), (), tables))
    runner.forward(Batch(2, (Row(0, (20, 21), 0, 1),), (second,), (0,), tables))
    assert [list(ids) for ids in runner.sample(None).tokens] == [[65]]
    assert [list(ids) for ids in runner.sample(None).tokens] == [[20]]


def test_steps_take_the_time_the_script_says(spec: ModelSpec, fake_clock: FakeClock) -> None:
    script = replace(Script.of(spec), token_s=0.5, chunk_s=2.0)
    runner = ScriptedRunner(script, sleep=fake_clock.sleep)
    with playing(runner, limits=replace(LIMITS, max_batch_tokens=16)) as loop:
        say(loop, [30] * 40, max_tokens=3)  # pieces of 16, 16 and 8, the last with a token; then two tokens
    assert fake_clock() == 3 * 2.0 + 3 * 0.5


def test_batches_are_recorded(spec: ModelSpec) -> None:
    batches: list[Batch] = []
    with playing(ScriptedRunner(Script.of(spec), batches=batches)) as loop:
        serve(loop, [ask(0, [7], params()), ask(1, [20, 21, 22], params())])
    assert [batch.step for batch in batches] == [1, 2, 3, 4]
    assert [len(row.tokens) for row in batches[0].rows] == [1, 3]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ({"plays": [{"token": [1]}]}, "unknown field `token`"),
        ({"plays": [{"tokens": ["a"]}]}, "Expected `int`"),
        ({"plays": [{"fail": {"at": 1, "kind": "typo"}}]}, "typo"),
        ({}, "missing required field `plays`"),
    ],
)
def test_a_malformed_script_is_refused(spec: ModelSpec, script: Mapping[str, Any], reason: str) -> None:
    verdict = supports(replace(spec, config={**spec.config, "script": script}))
    assert verdict is not None
    assert reason in verdict


def test_other_models_are_refused(spec: ModelSpec) -> None:
    assert supports(replace(spec, architecture="LlamaForCausalLM")) == "it plays ScriptedForCausalLM only"
    assert supports(spec) is None


def test_a_step_of_256_plain_rows_is_cheap(spec: ModelSpec) -> None:
    """It stands in for a device when the engine's own overhead is measured."""
    runner = make(spec, BackendOptions())
    runner.plan(LIMITS)
    runner.allocate([10])
    tables = (np.zeros((256, 128), np.int32),)
    opened = tuple(Opened(slot, params(), pack_tokens([8, 9]), 2) for slot in range(256))
    runner.forward(Batch(0, tuple(Row(slot, (8, 9), 0, 1) for slot in range(256)), opened, (), tables))
    runner.sample(None)
    best_s = 1.0
    for step in range(1, 40):
        batch = Batch(step, tuple(Row(slot, (70,), 1 + step, 1) for slot in range(256)), (), (), tables)
        started = time.perf_counter()
        runner.forward(batch)
        runner.sample(None)
        best_s = min(best_s, time.perf_counter() - started)
    assert best_s < 1e-3


def test_a_runner_error_says_what_the_script_says(spec: ModelSpec) -> None:
    runner = make(spec, BackendOptions())
    runner.plan(LIMITS)
    runner.allocate([10])
    opened = Opened(0, params(), pack_tokens([11]), 1)
    runner.forward(Batch(1, (Row(0, (11, 80), 0, 1),), (opened,), (), (np.zeros((256, 128), np.int32),)))
    with pytest.raises(RunnerError, match="out of paper"):
        runner.sample(None)


def test_it_is_loaded_when_every_tensor_has_been_opened(spec: ModelSpec) -> None:
    opened: list[str] = []

    class Arriving:
        def names(self) -> Sequence[str]:
            return ["a", "b"]

        def open(self, name: str) -> Any:
            opened.append(name)
            return np.zeros(1)

    runner = ScriptedRunner(Script.of(spec))
    steps = [(step.done, step.total, list(opened)) for step in runner.load(Arriving())]  # type: ignore[arg-type]
    assert steps == [(1, 2, ["a"]), (2, 2, ["a", "b"])]
