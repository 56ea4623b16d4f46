"""Logits processors: from their names in a request to what they do to its logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import array_api_compat.torch
import numpy as np
import pytest

from tickertape.core.backend import Capabilities
from tickertape.core.batch import Opened, Row
from tickertape.core.engine import paged_loop
from tickertape.core.errors import InvalidRequest, RowError
from tickertape.core.logits_processor import LogitsContext, LogitsProcessor, LogitsProcessorSpec
from tickertape.core.loop import EngineLoop
from tickertape.core.memory import Limits
from tickertape.core.request import LogitsProcessorCall, SamplingParams, pack_tokens
from tickertape.core.sampling import Sampler
from tickertape.plugins.backends.scripted.runner import ScriptedRunner
from tickertape.plugins.backends.scripted.script import Play, Script
from tickertape.testing.checks import check_idle
from tickertape.testing.serving import ask, serve

NAMESPACES = [np, array_api_compat.torch]
LIMITS = Limits(max_model_len=256, max_num_seqs=4, max_batch_tokens=64, block_tokens=4)


class NoRepeat:
    """Bans the id that came last."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def apply(self, tokens: Sequence[int], logits: Any) -> None:
        self.seen.append(list(tokens))
        logits[tokens[-1]] = -np.inf


class Broken:
    def apply(self, tokens: Sequence[int], logits: Any) -> None:
        raise KeyError("/a/path/of/the/server")


def greedy(*names: str, **fields: Any) -> SamplingParams:
    calls = tuple(LogitsProcessorCall(name) for name in names)
    given: dict[str, Any] = {"max_tokens": 8, "seed": 0, "temperature": 0.0, "logits_processors": calls}
    return SamplingParams(**(given | fields))


def opened(slot: int, history: list[int], sampling: SamplingParams, *processors: LogitsProcessor) -> Opened:
    return Opened(slot, sampling, pack_tokens(history), len(history), processors=processors)


@pytest.mark.parametrize("xp", NAMESPACES, ids=["numpy", "torch"])
def test_a_processor_edits_its_own_line_and_sees_every_id(xp: Any) -> None:
    sampler, processor = Sampler(xp, 4, 8), NoRepeat()
    sampler.open(opened(1, [3, 5], greedy("no_repeat"), processor))
    sampler.open(opened(2, [3, 5], greedy()))
    logits = xp.asarray([[0.0, 0, 0, 0, 1, 2, 0, 0]] * 2)
    first = sampler.sample([Row(1, (3, 5), 0, 1), Row(2, (3, 5), 0, 1)], logits, None)
    assert first.tokens == [[4], [5]]
    second = sampler.sample([Row(1, (4,), 2, 1), Row(2, (5,), 2, 1)], logits, None)
    assert second.tokens == [[5], [5]]
    assert processor.seen == [[3, 5], [3, 5, 4]]
    assert float(logits[0, 5]) == 2.0, "the model's own logits were changed"


@pytest.mark.parametrize("xp", NAMESPACES, ids=["numpy", "torch"])
def test_a_processor_that_raises_fails_its_row_alone(xp: Any, caplog: pytest.LogCaptureFixture) -> None:
    sampler = Sampler(xp, 4, 8)
    sampler.open(opened(1, [3], greedy("broken"), Broken()))
    sampler.open(opened(2, [3], greedy("no_repeat"), NoRepeat()))
    output = sampler.sample(
        [Row(1, (3,), 0, 1), Row(2, (3,), 0, 1)], xp.asarray([[0.0, 1, 2, 3, 0, 0, 0, 0]] * 2), None
    )
    assert output.tokens == [[], [2]]
    assert output.errors == {1: "logits processor 'broken' failed: KeyError"}
    assert caplog.messages == ["logits processor 'broken' failed: KeyError: '/a/path/of/the/server'"]
    sampler.close(1)
    sampler.open(opened(1, [3], greedy()))
    assert sampler.sample([Row(1, (3,), 0, 1)], xp.asarray([[0.0, 9, 0, 0, 0, 0, 0, 0]]), None).errors == {}


def test_a_row_with_drafts_accepts_one_id() -> None:
    """What a processor wants of the later lines is not known before the earlier ids are."""
    sampler = Sampler(np, 2, 8)
    sampler.open(opened(0, [3], greedy("no_repeat"), NoRepeat()))
    logits = np.zeros((3, 8))
    logits[:, 4] = 1
    output = sampler.sample([Row(0, (3, 4, 4), 0, 3)], logits, None)
    assert output.tokens == [[4]]


def loop_with(processors: Mapping[str, LogitsProcessorSpec], *, able: bool = True, num_blocks: int = 64) -> EngineLoop:
    script = Script((Play(tokens=(5, 5, 6, 6, 7, 7, 8, 8)),), vocab_size=16, eos_token=0)
    capabilities = Capabilities(ahead=True, logits_processors=able)
    runner = ScriptedRunner(script)
    return paged_loop(runner, LIMITS, capabilities, num_blocks=num_blocks, processors=processors)[0]


def test_requests_name_processors_with_arguments() -> None:
    made: list[tuple[Mapping[str, Any], LogitsContext]] = []

    class Ban:
        def __init__(self, token: int) -> None:
            self._token = token

        def apply(self, tokens: Sequence[int], logits: Any) -> None:
            logits[self._token] = -np.inf

    def make(arguments: Mapping[str, Any], context: LogitsContext) -> Ban:
        made.append((arguments, context))
        return Ban(arguments["token"])

    loop = loop_with({"ban": LogitsProcessorSpec(name="ban", make=make)})
    calls = (LogitsProcessorCall("ban", '{"token": 6}'), LogitsProcessorCall("ban", '{"token": 8}'))
    sampling = greedy(logits_processors=calls, stop_tokens=(0,))
    edited, plain = serve(loop, [ask(1, [1, 2, 3], sampling), ask(2, [1, 2, 3], greedy())])
    assert plain.tokens == [5, 5, 6, 6, 7, 7, 8, 8]
    assert [token for token in edited.tokens if token in (6, 8)] == []
    assert edited.tokens[:2] == [5, 5]
    assert len(edited.tokens) == 8
    assert made == [
        ({"token": 6}, LogitsContext(num_prompt_tokens=3, stop_tokens=(0,))),
        ({"token": 8}, LogitsContext(num_prompt_tokens=3, stop_tokens=(0,))),
    ]
    check_idle(loop.stats())


def test_a_preempted_sequence_keeps_its_processors() -> None:
    def make(arguments: Mapping[str, Any], context: LogitsContext) -> NoRepeat:
        return NoRepeat()

    specs = {"no_repeat": LogitsProcessorSpec(name="no_repeat", make=make)}
    requests = [ask(n, [1, 2, 3 + n], greedy("no_repeat", max_tokens=30)) for n in range(4)]
    roomy = loop_with(specs)
    expected = [outcome.tokens for outcome in serve(roomy, requests)]
    assert roomy.stats().num_preemptions == 0
    scarce = loop_with(specs, num_blocks=16)
    assert [outcome.tokens for outcome in serve(scarce, requests)] == expected
    assert scarce.stats().num_preemptions > 0
    assert all(a != b for tokens in expected for a, b in pairwise(tokens))


def test_what_cannot_be_made_fails_its_request_alone() -> None:
    def make(arguments: Mapping[str, Any], context: LogitsContext) -> NoRepeat:
        raise ValueError("no such dictionary")

    loop = loop_with({"broken": LogitsProcessorSpec(name="broken", make=make)})
    broken, unknown, good = serve(
        loop, [ask(1, [1], greedy("broken")), ask(2, [1], greedy("unheard_of")), ask(3, [1], greedy())]
    )
    assert isinstance(broken.error, RowError)
    assert str(broken.error) == "logits processor 'broken' failed: ValueError"
    assert isinstance(unknown.error, InvalidRequest)
    assert unknown.error.param == "logits_processors"
    assert len(good.tokens) == 8
    check_idle(loop.stats())


def test_a_backend_that_applies_none_is_asked_for_none() -> None:
    """Never silently ignored."""

    def make(arguments: Mapping[str, Any], context: LogitsContext) -> NoRepeat:
        return NoRepeat()

    loop = loop_with({"no_repeat": LogitsProcessorSpec(name="no_repeat", make=make)}, able=False)
    [outcome] = serve(loop, [ask(1, [1], greedy("no_repeat"))])
    assert isinstance(outcome.error, InvalidRequest)
