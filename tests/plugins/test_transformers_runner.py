"""The transformers runner beyond the kit: weights in place, the plan kept to the byte, types, frequencies, LAST."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from tickertape.plugins import (
    LAST,
    BackendOptions,
    Batch,
    Limits,
    ModelSpec,
    Opened,
    Progress,
    Row,
    SamplingParams,
    StartupError,
    pack_tokens,
)
from tickertape.plugins.backends.transformers.rope import pin_frequencies
from tickertape.plugins.backends.transformers.runner import TransformersRunner, make
from tickertape.testing.architectures import write_architecture
from tickertape.testing.models import plain_model
from tickertape.weights.mapping import MappedWeights

LIMITS = Limits(max_model_len=128, max_num_seqs=4, max_batch_tokens=128, block_tokens=16)
LONGROPE: dict[str, Any] = {
    "original_max_position_embeddings": 32,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [2.0, 3.0, 4.0, 5.0],
        "original_max_position_embeddings": 32,
    },
}

Start = Callable[..., TransformersRunner]


@pytest.fixture
def start() -> Iterator[Start]:
    """Makes, plans, loads and allocates runners, and closes them."""
    runners: list[TransformersRunner] = []

    def start(spec: ModelSpec, limits: Limits = LIMITS, **options: Any) -> TransformersRunner:
        runner = make(spec, BackendOptions(num_threads=1, extra={"self_check": False}, **options))
        runners.append(runner)
        plan = runner.plan(limits)
        for _ in runner.load(MappedWeights(Path(spec.path))):
            pass
        runner.allocate([33] * len(plan.groups))
        return runner

    yield start
    for runner in runners:
        runner.close()


def model_of(runner: TransformersRunner) -> Any:
    assert runner._paged is not None
    return runner._paged._model


def compute(runner: TransformersRunner, pieces: Sequence[Sequence[tuple[int, Sequence[int], int]]]) -> list[Any]:
    """The logits of every token of each step, float64; a step is [(slot, tokens, start), ...]."""
    assert runner._paged is not None
    num_groups = len(runner.plan(runner._limits).groups)
    tables = [np.arange(1, 33, dtype=np.int32).reshape(4, 8)] * num_groups
    return [
        runner._paged.logits([Row(slot, ids, at, len(ids)) for slot, ids, at in step], tables).double().numpy()
        for step in pieces
    ]


def ids_of(length: int) -> list[int]:
    return np.random.default_rng(length).integers(2, 199, length).tolist()  # type: ignore[no-any-return]


# -- weights ---------------------------------------------------------------------------------------------------------


def storage_bytes(model: Any, addresses: set[int]) -> tuple[int, int]:
    """Bytes of the model's tensors that lie at one of the addresses, and of those that do not."""
    found = {t.data_ptr(): t.nbytes for t in [*model.parameters(), *model.buffers()] if t.nbytes}
    mapped = sum(size for address, size in found.items() if address in addresses)
    return mapped, sum(found.values()) - mapped


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("model_type", ["llama", "gpt2", "gemma2", "mixtral", "deepseek_v3", "gpt_oss"])
def test_a_plan_is_kept_to_the_byte(model_type: str, dtype: str, tmp_path: Path, start: Start) -> None:
    """Tensors of the type that is computed in are used where they are mapped; merged experts and casts are copies."""
    spec = write_architecture(tmp_path, model_type, dtype="float32")
    runner = make(spec, BackendOptions(dtype=dtype, extra={"self_check": False}))
    plan = runner.plan(LIMITS)
    weights = MappedWeights(tmp_path)
    addresses = {weights.open(name).__array_interface__["data"][0] for name in weights.names()}
    for _ in runner.load(weights):
        pass
    assert storage_bytes(model_of(runner), addresses) == (plan.weight_bytes, plan.private_bytes)
    # Two architectures merge their experts; one keeps a few numbers in float32 whatever it computes in.
    share = plan.weight_bytes / (plan.weight_bytes + plan.private_bytes)
    if dtype == "float32":
        assert share > (0.2 if model_type in ("mixtral", "deepseek_v3") else 0.99)
    else:
        assert share < 0.01
    assert str(model_of(runner).get_output_embeddings().weight.dtype) == f"torch.{dtype}"
    runner.close()


@pytest.mark.parametrize("model_type", ["gemma2", "deepseek_v3"])
def test_the_cache_takes_what_was_planned(model_type: str, tmp_path: Path, start: Start) -> None:
    runner = start(write_architecture(tmp_path, model_type))
    groups = runner.plan(LIMITS).groups
    assert runner._paged is not None
    taken = sum(cache.nbytes for caches in runner._paged._caches for cache in caches)
    assert taken == sum(33 * group.block_bytes for group in groups)


def test_tied_embeddings_are_one_tensor(tmp_path: Path, start: Start) -> None:
    spec = write_architecture(tmp_path, "llama", tie_word_embeddings=True)
    model = model_of(start(spec, dtype="float32"))
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_loading_reports_every_byte(tmp_path: Path) -> None:
    spec = write_architecture(tmp_path, "llama")
    runner = make(spec, BackendOptions(extra={"self_check": False}))
    runner.plan(LIMITS)
    reports = [report for report in runner.load(MappedWeights(tmp_path)) if report.stage == "load"]
    assert reports[-1] == Progress("load", spec.weight_bytes, spec.weight_bytes)
    assert [report.done for report in reports] == sorted({report.done for report in reports})
    runner.close()


def test_bfloat16_comes_bit_for_bit(tmp_path: Path, start: Start) -> None:
    spec = write_architecture(tmp_path, "llama", dtype="bfloat16")
    model = model_of(start(spec, dtype="bfloat16"))
    stored = load_file(tmp_path / "model.safetensors")
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, stored[name])


@pytest.mark.parametrize(
    ("spoil", "code", "message"),
    [
        (lambda t: t.pop("model.norm.weight"), "MissingTensor", "the model's files lack model.norm.weight"),
        (
            lambda t: t.update({"model.extra.weight": torch.zeros(3)}),
            "UnexpectedTensor",
            "the model has no place for model.extra.weight",
        ),
        (lambda t: t.update({"model.norm.weight": torch.zeros(3)}), "BadTensor", "model.norm.weight"),
        (
            lambda t: t.update({"model.norm.weight": torch.zeros(32, dtype=torch.uint8)}),
            "BadTensor",
            "weights of a type that is not computed with: model.norm.weight",
        ),
    ],
)
def test_files_that_do_not_fit_are_refused(
    spoil: Callable[[dict[str, torch.Tensor]], object], code: str, message: str, tmp_path: Path, start: Start
) -> None:
    spec = write_architecture(tmp_path, "llama")
    tensors = load_file(tmp_path / "model.safetensors")
    spoil(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(StartupError) as caught:
        start(spec)
    assert caught.value.code == code
    assert message in caught.value.message
    assert "\n" not in caught.value.message


def test_attention_implementations_are_taken_back_when_a_runner_closes(tmp_path: Path, start: Start) -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    before = set(AttentionInterface._global_mapping), set(AttentionMaskInterface._global_mapping)
    start(write_architecture(tmp_path, "llama")).close()
    assert (set(AttentionInterface._global_mapping), set(AttentionMaskInterface._global_mapping)) == before


# -- types -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", ["llama", "gemma2", "gpt2", "qwen3_moe", "gpt_oss", "deepseek_v3"])
def test_float32_logits_are_the_plain_model_s(model_type: str, tmp_path: Path, start: Start) -> None:
    spec = write_architecture(tmp_path, model_type, dtype="float32")
    one, other = ids_of(70), ids_of(33)
    steps = [[(0, one[:40], 0), (1, other[:5], 0)], [(1, other[5:], 5), (0, one[40:], 40)]]
    first, second = compute(start(spec), steps)
    plain = plain_model(spec, "float32")
    np.testing.assert_allclose(np.concatenate([first[:40], second[28:]]), plain(one), atol=1e-4, rtol=0)
    np.testing.assert_allclose(np.concatenate([first[40:], second[:28]]), plain(other), atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_types_stay_near_the_plain_model(dtype: str, tmp_path: Path, start: Start) -> None:
    spec = write_architecture(tmp_path, "llama", dtype="float32")
    ids = ids_of(50)
    [found] = compute(start(spec, dtype=dtype), [[(0, ids, 0)]])
    expected = plain_model(spec)(ids)
    assert np.abs(found - expected).max() < (0.02 if dtype == "float16" else 0.2) * np.abs(expected).max()


def test_auto_follows_the_file_where_the_cpu_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(stored: str) -> str:
        spec = ModelSpec(name="m", path="", architecture="", config={}, dtype=stored, max_model_len=8, vocab_size=8)
        return str(placement(spec, BackendOptions()).dtype)

    from tickertape.plugins.backends.transformers import options
    from tickertape.plugins.backends.transformers.options import placement

    monkeypatch.setattr(options, "_computed_by_cpu", lambda dtype: dtype != torch.float16)
    assert [chosen(stored) for stored in ("float64", "float32", "bfloat16", "float16")] == [
        "torch.float64",
        "torch.float32",
        "torch.bfloat16",
        "torch.float32",
    ]


@pytest.mark.parametrize("options", [{"quantization": "int4"}, {"device": "cuda:7"}])
def test_options_that_cannot_be_followed_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    spec = write_architecture(tmp_path, "llama")
    with pytest.raises(StartupError) as caught:
        make(spec, BackendOptions(**options))
    assert caught.value.code == "BadOption"


# -- positions -------------------------------------------------------------------------------------------------------


def pinned_plain(spec: ModelSpec, max_model_len: int) -> Callable[[Sequence[int]], NDArray[np.float64]]:
    """The plain model with its frequencies fixed for a context of that length."""
    plain = plain_model(spec)
    assert plain.__closure__ is not None
    [model] = [cell.cell_contents for cell in plain.__closure__ if isinstance(cell.cell_contents, torch.nn.Module)]
    pin_frequencies(model, max_model_len)
    return plain


def test_rows_on_both_sides_of_the_original_length_are_each_as_alone(tmp_path: Path, start: Start) -> None:
    """A longrope model of 32 original positions, served up to 128: the long row is the plain model's, and the short
    one is what it is alone."""
    spec = write_architecture(tmp_path, "phi3", **LONGROPE)
    long, short = ids_of(60), ids_of(9)
    [together] = compute(start(spec), [[(0, long, 0), (1, short, 0)]])
    [alone] = compute(start(spec), [[(1, short, 0)]])
    np.testing.assert_allclose(together[60:], alone, atol=1e-5, rtol=0)
    np.testing.assert_allclose(together[:60], plain_model(spec)(long), atol=1e-4, rtol=0)
    np.testing.assert_allclose(alone, pinned_plain(spec, 128)(short), atol=1e-4, rtol=0)


def test_within_the_original_length_a_longrope_model_is_as_trained(tmp_path: Path, start: Start) -> None:
    spec = write_architecture(tmp_path, "phi3", **LONGROPE)
    limits = Limits(max_model_len=32, max_num_seqs=4, max_batch_tokens=64, block_tokens=16)
    ids = ids_of(30)
    [found] = compute(start(spec, limits), [[(0, ids, 0)]])
    np.testing.assert_allclose(found, plain_model(spec)(ids), atol=1e-4, rtol=0)


def test_dynamic_frequencies_are_those_of_the_served_length(tmp_path: Path, start: Start) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    spec = write_architecture(tmp_path, "llama", rope_parameters=rope, max_position_embeddings=64)
    ids = ids_of(100)
    steps = [[(0, ids[:50], 0)], [(0, ids[50:], 50), (1, ids[:9], 0)]]
    first, second = compute(start(spec), steps)
    plain = pinned_plain(spec, 128)
    np.testing.assert_allclose(np.concatenate([first, second[:50]]), plain(ids), atol=1e-4, rtol=0)
    np.testing.assert_allclose(second[50:], plain(ids[:9]), atol=1e-4, rtol=0)


def test_attention_in_chunks(tmp_path: Path, start: Start) -> None:
    config: dict[str, Any] = {
        "attention_chunk_size": 16,
        "num_local_experts": 4,
        "intermediate_size_mlp": 48,
        "no_rope_layers": [1, 0],
    }
    spec = write_architecture(tmp_path, "llama4_text", dtype="float32", **config)
    ids = ids_of(70)
    pieces = [[(0, ids[:13], 0)], [(0, ids[13:16], 13), (1, ids[:40], 0)], [(0, ids[16:], 16), (1, ids[40:41], 40)]]
    first, second, third = compute(start(spec), pieces)
    expected = plain_model(spec, "float32")(ids)
    np.testing.assert_allclose(np.concatenate([first, second[:3], third[:54]]), expected, atol=1e-4, rtol=0)
    np.testing.assert_allclose(np.concatenate([second[3:], third[54:]]), expected[:41], atol=1e-4, rtol=0)
    odd = Limits(max_model_len=128, max_num_seqs=4, max_batch_tokens=128, block_tokens=12)
    with pytest.raises(StartupError, match="does not divide the model's attention chunk of 16"):
        start(spec, odd)


def test_a_window_longer_than_the_context_is_full_attention(tmp_path: Path, start: Start) -> None:
    runner = start(write_architecture(tmp_path, "gemma2", sliding_window=128))
    assert [(group.kind, group.window) for group in runner.plan(LIMITS).groups] == [("full", None)]


def test_last_stands_for_the_id_sampled_in_the_step_before(tmp_path: Path, start: Start) -> None:
    runner = start(write_architecture(tmp_path, "llama"))
    table = np.arange(1, 33, dtype=np.int32).reshape(4, 8)
    sampling = SamplingParams(max_tokens=8, seed=0, temperature=0.0)

    def generate(slot: int, last: bool) -> list[int]:
        ids, given = ids_of(7), []
        opened: tuple[Opened, ...] = (Opened(slot, sampling, pack_tokens(ids), 7),)
        row = Row(slot, ids, 0, 1)
        for step in range(8):
            runner.forward(Batch(step, (row,), opened, (), (table,)))
            [[token]] = runner.sample(None).tokens
            given.append(token)
            opened, row = (), Row(slot, (LAST if last else token,), 7 + step, 1)
        return given

    assert generate(0, last=True) == generate(1, last=False)


def test_a_model_that_calls_out_of_order_does_not_go_on(tmp_path: Path, start: Start) -> None:
    runner = start(write_architecture(tmp_path, "llama"))
    layers = model_of(runner).model.layers
    layers[0].self_attn.layer_idx, layers[1].self_attn.layer_idx = 1, 0
    with pytest.raises(RuntimeError, match="out of order"):
        compute(runner, [[(0, [1, 2, 3], 0)]])
