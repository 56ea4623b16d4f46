"""The transformers backend passes the kit: all of it on three models that differ most, what concerns exactness on one
tiny random model of every architecture in the table of docs/architectures.md."""

from __future__ import annotations

import pytest

from tickertape.plugins import BackendOptions, ModelRunner
from tickertape.plugins.backends.transformers.runner import TransformersRunner
from tickertape.plugins.manager import Plugins
from tickertape.testing.architectures import ARCHITECTURES, write_architecture
from tickertape.testing.runner import RunnerConformance
from tickertape.testing.subject import Subject


def poison(runner: ModelRunner) -> None:
    assert isinstance(runner, TransformersRunner)
    assert runner._paged is not None
    for caches in runner._paged._caches:
        for cache in caches:
            cache.fill_(float("nan"))


def make_subject(model_type: str, tmp_path_factory: pytest.TempPathFactory, *, kernels: bool = True) -> Subject:
    spec = write_architecture(tmp_path_factory.mktemp(model_type), model_type)
    # The check at start-up has its own tests; here it would be made for every runner. And one thread: so little work is
    # not worth waking a second for.
    options = BackendOptions(num_threads=1, extra={"self_check": False, "kernels": kernels})
    backend = Plugins.load().backend("transformers")
    # Whatever the type, the library takes softmax and norms in float32: what is closer than this is equal.
    return Subject.of(backend, spec, options=options, near_tie=1e-5, poison=poison)


class TestWhole(RunnerConformance):
    @pytest.fixture(scope="class", params=["llama", "gemma2", "deepseek_v3"])
    @classmethod
    def subject(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
        return make_subject(request.param, tmp_path_factory)


class TestExactness:
    @pytest.fixture(scope="class", params=list(ARCHITECTURES))
    @classmethod
    def subject(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
        return make_subject(request.param, tmp_path_factory)

    def test_is_the_plain_model(self, subject: Subject) -> None:
        rules = RunnerConformance()
        rules.test_a_batch_of_mixed_lengths_equals_the_plain_model(subject)
        rules.test_a_prompt_in_pieces_equals_the_plain_model(subject, 7)
        rules.test_blocks_of_others_stay_as_they_are(subject)
        rules.test_prompt_scores_equal_the_plain_model(subject)
        rules.test_a_cached_prefix_makes_no_difference(subject, 33)


class TestWithoutKernels(TestExactness):
    """What computes where numba is not installed, and on other devices."""

    @pytest.fixture(scope="class", params=["llama", "gemma2", "gpt_oss", "deepseek_v3"])
    @classmethod
    def subject(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
        return make_subject(request.param, tmp_path_factory, kernels=False)
