"""What the transformers backend does not serve it refuses before it loads anything, in one line; docs/architectures.md
says which, and is kept true here."""

from __future__ import annotations

import importlib
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from msgspec.structs import replace

from tickertape.plugins import BackendOptions, Limits, ModelSpec, StartupError
from tickertape.plugins.backends.transformers import self_check
from tickertape.plugins.backends.transformers.gather import gather_attention
from tickertape.plugins.backends.transformers.patterns import FULL, Pattern, recognise
from tickertape.plugins.backends.transformers.runner import make
from tickertape.plugins.backends.transformers.spans import Spans
from tickertape.plugins.backends.transformers.suitability import supports
from tickertape.plugins.manager import Plugins
from tickertape.testing.architectures import ARCHITECTURES, write_architecture
from tickertape.testing.models import write_llama
from tickertape.weights.spec import read_spec

PAGE = Path(__file__).parents[2] / "docs" / "architectures.md"


def model_class(model_type: str) -> str:
    config = type(transformers.AutoConfig.for_model(model_type))
    return str(transformers.AutoModelForCausalLM._model_mapping[config].__name__)


def write_config(directory: Path, model_type: str, **config: Any) -> ModelSpec:
    """A model without weights, as large as the library makes it by default."""
    settings = transformers.AutoConfig.for_model(model_type, **config)
    settings.architectures = [model_class(model_type)]
    settings.save_pretrained(directory)
    return spec_of(directory)


def spec_of(directory: Path) -> ModelSpec:
    config = json.loads((directory / "config.json").read_text())
    return ModelSpec(
        name="m",
        path=str(directory),
        architecture=config["architectures"][0],
        config=config,
        max_model_len=64,
        vocab_size=config.get("vocab_size", 64),
    )


def refusal(spec: ModelSpec) -> str:
    """The reason, from the front or else from the worker; "" when the model is served."""
    if reason := supports(spec):
        return reason
    try:
        make(spec, BackendOptions(num_threads=1))
    except StartupError as error:
        found = error
    else:
        return ""
    assert found.code == "UnsupportedArchitecture"
    assert "\n" not in found.message
    return found.message.removeprefix("the transformers backend cannot serve this model: ")


def table(heading: str) -> dict[str, list[str]]:
    """The rows of the table under a heading of the page, by their first cell."""
    section = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    [text] = [part for part in section if part.startswith(heading)]
    rows = [[cell.strip().strip("`") for cell in line.strip("|\n ").split("|")] for line in text.splitlines()]
    return {row[0]: row[1:] for row in rows if len(row) > 1 and row[0] and not row[0].startswith(("-", "model type"))}


def test_the_page_lists_what_the_kit_is_run_on() -> None:
    listed = table("Served")
    assert set(listed) == set(ARCHITECTURES)
    assert {kind: row[0] for kind, row in listed.items()} == {kind: model_class(kind) for kind in listed}


@pytest.mark.parametrize("model_type", list(table("Checked")))
def test_a_checked_model_passes_probe_and_self_check(model_type: str, tmp_path: Path) -> None:
    """In its default size, without weights: the geometry is the real one, the arithmetic that of a small twin."""
    assert refusal(write_config(tmp_path, model_type)) == ""


REFUSED_CONFIGS: dict[str, dict[str, Any]] = {"lfm2": {"layer_types": ["conv", "full_attention"] * 16}}


@pytest.mark.parametrize(("model_type", "reason"), [(kind, row[1]) for kind, row in table("Refused").items()])
def test_a_refused_model_is_refused_for_the_reason_given(model_type: str, reason: str, tmp_path: Path) -> None:
    assert refusal(write_config(tmp_path, model_type, **REFUSED_CONFIGS.get(model_type, {}))) == reason


def test_the_page_names_each_model_once_and_those_that_must_be_refused() -> None:
    served, checked, refused = set(table("Served")), set(table("Checked")), set(table("Refused"))
    assert not served & checked
    assert not (served | checked) & refused
    assert {"mamba2", "jamba", "qwen3_next", "lfm2", "bloom"} <= refused


def test_code_that_comes_with_a_model_runs_when_the_operator_trusts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = importlib.import_module("transformers.dynamic_module_utils")
    monkeypatch.setattr(modules, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("sys.path", sys.path[:])  # the library adds its cache to it
    directory = tmp_path / "trusted"
    write_llama(directory, dtype="float32")
    (directory / "modeling_own.py").write_text(
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'own'\n"
        "class OwnForCausalLM(LlamaForCausalLM):\n    config_class = OwnConfig\n"
    )
    config = json.loads((directory / "config.json").read_text()) | {
        "architectures": ["OwnForCausalLM"],
        "model_type": "own",
        "auto_map": {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"},
    }
    (directory / "config.json").write_text(json.dumps(config))
    spec = read_spec(directory, "m")
    assert "--trust-remote-code" in str(supports(spec))
    trusted = replace(spec, trust_remote_code=True)
    assert supports(trusted) is None
    runner = make(trusted, BackendOptions(dtype="float32"))
    plan = runner.plan(Limits(max_model_len=64, max_num_seqs=2, max_batch_tokens=32, block_tokens=8))
    assert plan.weight_bytes == spec.weight_bytes


def test_code_that_comes_with_a_model_is_not_run(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "modeling_own.py").write_text(f"open({str(ran)!r}, 'w')")
    config = {
        "architectures": ["OwnForCausalLM"],
        "model_type": "own",
        "auto_map": {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert refusal(spec_of(tmp_path)) == (
        "it brings code of its own (remote code), which is run with --trust-remote-code only"
    )
    with pytest.raises(StartupError, match="cannot read its config") as caught:
        make(spec_of(tmp_path), BackendOptions())
    assert caught.value.code == "UnsupportedArchitecture"
    assert not ran.exists()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"quantization_config": {"quant_method": "awq"}},
            "its weights are quantized (awq), which this backend does not compute with",
        ),
        ({"is_encoder_decoder": True}, "it is an encoder-decoder model"),
        ({"vision_config": {"layers": 2}}, "it sees or hears; only models of text alone are served"),
        ({"layer_types": ["conv"]}, "its conv layers keep a state that is not paged"),
        ({"architectures": ["OtherForCausalLM"]}, "transformers has no causal language model OtherForCausalLM"),
    ],
)
def test_the_front_refuses_from_the_config_alone(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    write_config(tmp_path, "llama")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    started = time.perf_counter()
    assert supports(spec_of(tmp_path)) == reason
    assert time.perf_counter() - started < 0.5


def test_a_model_that_moves_its_frequencies_out_of_our_reach_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    spec = write_config(tmp_path, "llama", rope_parameters=rope)
    assert refusal(spec) == ""
    monkeypatch.setattr("tickertape.plugins.backends.transformers.rope._pin", lambda module, length: 0)
    assert "cannot be fixed" in refusal(spec)


@pytest.mark.parametrize("model_type", ["llama", "mistral", "gpt2"])
def test_the_self_check_notices_a_wrong_attention(
    model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that sees a token too many, or whose positions are off by one."""

    def wrong(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spans: Spans, **others: Any) -> None:
        if spans.window:
            spans = spans._replace(window=spans.window + 1)
        else:
            spans = spans._replace(start=(spans.start - 1).clamp(min=0))
        gather_attention(q, k, v, spans, **others)

    spec = write_architecture(tmp_path, model_type)
    assert refusal(spec) == ""
    monkeypatch.setattr(self_check, "gather_attention", wrong)
    assert re.fullmatch(r"computed over packed rows its logits are \S+ off", refusal(spec))


def test_the_transformers_backend_goes_before_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = write_architecture(tmp_path, "llama")
    assert Plugins.load().choose(spec).name == "transformers"
    monkeypatch.setattr(
        "tickertape.plugins.backends.transformers.suitability.find_spec", lambda name: None if name == "torch" else 1
    )
    assert Plugins.load().choose(read_spec(tmp_path, "m")).name == "reference"


def test_patterns_are_told_apart() -> None:
    def mask(pattern: Pattern) -> Any:
        return lambda batch, head, q, k: pattern.sees(q, k)

    for pattern in (FULL, Pattern("sliding", 11), Pattern("chunked", 16), Pattern("sliding", 4096)):
        assert recognise(mask(pattern), pattern.size or None) == pattern
    assert recognise(lambda batch, head, q, k: k == k, None) is None
    assert recognise(lambda batch, head, q, k: k <= q + 1, None) is None
    assert recognise(mask(Pattern("sliding", 12)), 11) is None
    assert recognise(mask(Pattern("sliding", 11)), None) is None
