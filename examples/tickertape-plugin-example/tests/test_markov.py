"""The conformance kit, and the model as a whole."""

from pathlib import Path

import numpy as np
import pytest
from tickertape_plugin_example.runner import make
from tickertape_plugin_example.train import train

from tickertape.plugins import BackendOptions
from tickertape.testing import RunnerConformance, Subject, model_spec, model_weights

README = Path(__file__).parents[1] / "README.md"


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("markov")
    train(README.read_text(), directory)
    return model_spec(directory)


class TestMarkov(RunnerConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls, model):
        table = model_weights(model).open("table")

        def plain(ids):
            return table[np.array([0, *ids[:-1]]) * model.vocab_size + ids].astype(np.float64)

        return Subject(
            make=lambda: make(model, BackendOptions()),
            weights=lambda: model_weights(model),
            plain=plain,
            vocab_size=model.vocab_size,
        )


def test_it_speaks_like_the_page_it_has_read(server, model):
    answer = server(spec=model).complete("The p", max_tokens=12, temperature=0)
    assert answer.status == 200
    text = answer.json()["choices"][0]["text"]
    assert all(("The p" + text)[n : n + 3] in README.read_text() for n in range(3, 10))
