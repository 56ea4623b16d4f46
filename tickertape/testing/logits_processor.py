"""LogitsProcessorConformance: what every logits processor must do, written once.

class TestMine(LogitsProcessorConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls):
        return ProcessorSubject(MY_SPEC, good=[{"token": 7}], bad=[{}, {"token": "x"}])
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tickertape.plugins import LogitsContext, LogitsProcessor, LogitsProcessorSpec

__all__ = ["LogitsProcessorConformance", "ProcessorSubject"]

NUM_PROMPT_TOKENS = 5
NUM_STEPS = 12


@dataclass(frozen=True)
class ProcessorSubject:
    """A processor under test: arguments that it takes, and some that it refuses (none, if it takes everything)."""

    spec: LogitsProcessorSpec
    good: Sequence[Mapping[str, Any]] = ({},)
    bad: Sequence[Mapping[str, Any]] = ()
    vocab_size: int = 64

    def make(self, arguments: Mapping[str, Any]) -> LogitsProcessor:
        context = LogitsContext(num_prompt_tokens=NUM_PROMPT_TOKENS, stop_tokens=(0,))
        return self.spec.make(json.loads(json.dumps(arguments)), context)

    def logits(self, step: int) -> NDArray[np.float64]:
        return np.random.default_rng(step).standard_normal(self.vocab_size)

    def tokens(self, count: int) -> list[int]:
        return np.random.default_rng(0).integers(1, self.vocab_size, count).tolist()  # type: ignore[no-any-return]


class LogitsProcessorConformance:
    """Override `subject`."""

    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> ProcessorSubject:
        raise pytest.UsageError("a subclass of LogitsProcessorConformance overrides the fixture `subject`")

    def test_arguments_are_checked(self, subject: ProcessorSubject) -> None:
        """Good ones pass, also after a trip through JSON; bad ones get a reason of one line."""
        for arguments in subject.good:
            assert subject.spec.check(json.loads(json.dumps(arguments))) is None
        for arguments in subject.bad:
            reason = subject.spec.check(arguments)
            assert isinstance(reason, str), f"{arguments} pass"
            assert reason.strip(), "a reason is missing"
            assert "\n" not in reason

    def test_logits_are_edited_in_place(self, subject: ProcessorSubject) -> None:
        for arguments in subject.good:
            processor, logits = subject.make(arguments), subject.logits(0)
            answer: object = processor.apply(subject.tokens(NUM_PROMPT_TOKENS), logits)  # type: ignore[func-returns-value]
            assert answer is None, "what apply returns is not looked at"
            assert logits.shape == (subject.vocab_size,)
            assert not np.isnan(logits).any()
            assert not np.isposinf(logits).any()

    def test_the_ids_stay_as_they_are(self, subject: ProcessorSubject) -> None:
        for arguments in subject.good:
            processor, tokens = subject.make(arguments), subject.tokens(9)
            before = list(tokens)
            processor.apply(tokens, subject.logits(0))
            assert tokens == before

    def test_what_it_does_follows_from_the_ids(self, subject: ProcessorSubject) -> None:
        """One that has seen every step, and one that is made in the middle, edit alike: a sequence may be preempted,
        and its processor asked about the same position again."""
        for arguments in subject.good:
            steady = subject.make(arguments)
            for step in range(NUM_STEPS):
                tokens = subject.tokens(NUM_PROMPT_TOKENS + step)
                edited, again, fresh = subject.logits(step), subject.logits(step), subject.logits(step)
                steady.apply(list(tokens), edited)
                steady.apply(list(tokens), again)
                subject.make(arguments).apply(list(tokens), fresh)
                np.testing.assert_array_equal(edited, fresh, "it depends on what it was asked before")
                np.testing.assert_array_equal(edited, again, "it depends on how often it was asked")

    def test_sequences_do_not_share_anything(self, subject: ProcessorSubject) -> None:
        for arguments in subject.good:
            mine, other = subject.make(arguments), subject.make(arguments)
            expected, found = subject.logits(3), subject.logits(3)
            subject.make(arguments).apply(subject.tokens(8), expected)
            other.apply(subject.tokens(20)[::-1], subject.logits(4))
            mine.apply(subject.tokens(8), found)
            np.testing.assert_array_equal(found, expected)

    def test_torch_and_numpy_are_edited_alike(self, subject: ProcessorSubject) -> None:
        if find_spec("torch") is None:
            pytest.skip("torch is not installed")
        import torch

        for arguments in subject.good:
            expected, tensor = subject.logits(1), torch.from_numpy(subject.logits(1).copy())
            subject.make(arguments).apply(subject.tokens(8), expected)
            subject.make(arguments).apply(subject.tokens(8), tensor)
            np.testing.assert_allclose(tensor.numpy(), expected, rtol=1e-12)
