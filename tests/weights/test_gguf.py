"""GGUF turned into a model directory: the same numbers, names and sizes, in little memory; anything else refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import quants
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from tickertape.core.errors import StartupError
from tickertape.core.ports import Progress
from tickertape.weights.gguf.convert import convert_gguf
from tickertape.weights.gguf.reader import GgufFile
from tickertape.weights.mapping import MappedWeights
from tickertape.weights.spec import read_spec
from tickertape.weights.writer import to_bfloat16

Weights = dict[str, npt.NDArray[np.float32]]


def ignore(_: Progress) -> None:
    pass


def convert(source: Path, **options: Any) -> Path:
    target = source.with_suffix(".model")
    target.mkdir()
    convert_gguf(source, target, options.pop("report", ignore), **options)
    return target


def refusal(source: Path) -> StartupError:
    with pytest.raises(StartupError) as caught:
        convert(source)
    assert "\n" not in caught.value.message
    assert source.name in caught.value.message
    return caught.value


def tensors_of(directory: Path) -> Weights:
    weights = MappedWeights(directory)
    return {name: weights.open(name) for name in weights.names()}


@pytest.fixture(scope="module")
def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=True, rms_norm_eps=1e-5,
        bos_token_id=1, eos_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def weights_of(model: LlamaForCausalLM) -> Weights:
    tied = model.config.tie_word_embeddings
    return {
        name: value.numpy() for name, value in model.state_dict().items() if not (tied and name == "lm_head.weight")
    }


def test_the_converted_model_computes_the_same(ggufs: Any, llama: LlamaForCausalLM) -> None:
    directory = convert(ggufs.write(tensors=weights_of(llama)))
    loaded = LlamaForCausalLM.from_pretrained(directory)
    ids = torch.arange(40)[None] * 7 % 300
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, llama(ids).logits, rtol=0, atol=0)
    for name in ("hidden_size", "head_dim", "num_key_value_heads", "rms_norm_eps", "tie_word_embeddings", "vocab_size"):
        assert getattr(loaded.config, name) == getattr(llama.config, name), name
    assert loaded.config.rope_parameters == llama.config.rope_parameters
    assert loaded.generation_config.eos_token_id == [0, 2]  # the end of text, and <|im_end|> that closes a turn
    assert loaded.generation_config.pad_token_id == 0


def test_an_untied_head_is_kept(ggufs: Any, llama: LlamaForCausalLM) -> None:
    head = np.random.default_rng(1).normal(size=(300, 64)).astype(np.float32)
    directory = convert(ggufs.write(tensors=weights_of(llama) | {"lm_head.weight": head}))
    assert json.loads((directory / "config.json").read_text())["tie_word_embeddings"] is False
    np.testing.assert_array_equal(tensors_of(directory)["lm_head.weight"], head)


def test_biases_are_permuted_with_their_rows(ggufs: Any, llama: LlamaForCausalLM) -> None:
    random = np.random.default_rng(2)
    sizes = {"q_proj": 64, "k_proj": 32, "v_proj": 32}
    biases = {
        f"model.layers.{layer}.self_attn.{part}.bias": random.normal(size=size).astype(np.float32)
        for layer in range(2)
        for part, size in sizes.items()
    }
    directory = convert(ggufs.write(tensors=weights_of(llama) | biases))
    found = tensors_of(directory)
    for name, values in biases.items():
        np.testing.assert_array_equal(found[name], values)
    assert json.loads((directory / "config.json").read_text())["attention_bias"] is True


QUANTISABLE = [Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0, Kind.MXFP4]


@pytest.mark.parametrize("kind", QUANTISABLE)
def test_quantised_weights_are_expanded_in_their_place(ggufs: Any, llama: LlamaForCausalLM, kind: Kind) -> None:
    original = weights_of(llama)
    found = tensors_of(convert(ggufs.write(tensors=original, kind=kind)))
    assert set(found) == set(original)
    for name, values in original.items():
        if values.ndim == 1:
            np.testing.assert_array_equal(found[name], values)
        else:
            expected = (
                quants.dequantize(quants.quantize(values, kind), kind) if kind != Kind.F16 else np.float16(values)
            )
            np.testing.assert_array_equal(found[name], np.asarray(expected, np.float32))


KNOWN = [
    Kind.F32, Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0, Kind.Q2_K, Kind.Q3_K,
    Kind.Q4_K, Kind.Q5_K, Kind.Q6_K, Kind.IQ1_S, Kind.IQ1_M, Kind.IQ2_XXS, Kind.IQ2_XS, Kind.IQ2_S, Kind.IQ3_XXS,
    Kind.IQ3_S, Kind.IQ4_NL, Kind.IQ4_XS, Kind.TQ1_0, Kind.TQ2_0, Kind.MXFP4,
]  # fmt: skip


def test_every_type_that_the_library_expands_is_among_those_tested() -> None:
    expanded = set()
    for kind, (_, block_bytes) in gguf.GGML_QUANT_SIZES.items():
        try:
            quants.dequantize(np.zeros((1, block_bytes), np.uint8), kind)
            expanded.add(kind)
        except NotImplementedError:
            pass
    assert expanded >= set(KNOWN)
    assert {kind.name for kind in expanded - set(KNOWN)} <= {"NVFP4"}  # not in a release of the formats' own tools yet


def quantised(kind: Kind, num_rows: int, row_length: int, seed: int) -> npt.NDArray[np.uint8]:
    """Random rows of a type: any bytes are a valid row, but for scales that are no finite numbers."""
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(seed)
    if kind in (Kind.F32, Kind.F16, Kind.BF16):
        values = random.normal(size=(num_rows, row_length)).astype(np.float32)
        raw: npt.NDArray[np.uint8] = quants.quantize(values, kind).view(np.uint8)
        return raw
    blocks = random.integers(0, 256, (num_rows * row_length // block, block_bytes), np.uint8)
    for _ in range(50):
        with np.errstate(all="ignore"):
            values = quants.dequantize(blocks, kind)
        bad = ~np.isfinite(values).all(axis=1)
        if not bad.any():
            break
        blocks[bad] = random.integers(0, 256, (int(bad.sum()), block_bytes), np.uint8)
    return blocks.reshape(num_rows, -1)


@pytest.mark.parametrize("kind", KNOWN)
def test_a_model_of_any_quantisation(ggufs: Any, kind: Kind) -> None:
    """Every matrix in random bytes of the type, through the whole conversion; the library alone is the oracle."""
    shapes = {
        "token_embd": (300, 256), "attn_q": (256, 256), "attn_k": (128, 256), "attn_v": (128, 256),
        "attn_output": (256, 256), "ffn_gate": (512, 256), "ffn_up": (512, 256), "ffn_down": (256, 512),
    }  # fmt: skip
    raw = {name: quantised(kind, *shape, seed) for seed, (name, shape) in enumerate(shapes.items())}

    def add(writer: gguf.GGUFWriter) -> None:
        for name, rows in raw.items():
            full = f"{name}.weight" if name == "token_embd" else f"blk.0.{name}.weight"
            writer.add_tensor(full, rows, raw_shape=rows.shape, raw_dtype=kind)
        for name in ("output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"):
            writer.add_tensor(name, np.ones(256, np.float32))

    found = tensors_of(convert(ggufs.write(tensors=None, sizes=(300, 256, 512, 1), change=add)))
    names = {"token_embd": "model.embed_tokens", "attn_v": "model.layers.0.self_attn.v_proj",
             "attn_output": "model.layers.0.self_attn.o_proj", "ffn_gate": "model.layers.0.mlp.gate_proj",
             "ffn_up": "model.layers.0.mlp.up_proj", "ffn_down": "model.layers.0.mlp.down_proj"}  # fmt: skip
    for ours, theirs in names.items():
        np.testing.assert_array_equal(found[f"{theirs}.weight"], quants.dequantize(raw[ours], kind), ours)
    for part, heads in (("attn_q", 4), ("attn_k", 2)):
        halves = quants.dequantize(raw[part], kind).reshape(heads, -1, 2, 256).swapaxes(1, 2).reshape(-1, 256)
        np.testing.assert_array_equal(found[f"model.layers.0.self_attn.{part[5]}_proj.weight"], halves)


def test_large_results_become_bfloat16(ggufs: Any, llama: LlamaForCausalLM) -> None:
    original = weights_of(llama)
    num_bytes = sum(values.nbytes for values in original.values())
    at = convert(ggufs.write("at.gguf", tensors=original), float32_below_bytes=num_bytes)
    below = convert(ggufs.write("below.gguf", tensors=original), float32_below_bytes=num_bytes + 1)
    assert (read_spec(at, "m").dtype, read_spec(below, "m").dtype) == ("bfloat16", "float32")
    assert json.loads((at / "config.json").read_text())["dtype"] == "bfloat16"
    for name, bits in tensors_of(at).items():
        expected = torch.from_numpy(original[name]).to(torch.bfloat16).view(torch.uint16).numpy()
        np.testing.assert_array_equal(bits, expected)


def test_bfloat16_rounds_to_even_and_keeps_what_is_not_a_number() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 100_000, np.uint32)
    values = np.concatenate([bits.view(np.float32), np.array([0.0, -0.0, np.inf, -np.inf, 3.39e38], np.float32)])
    expected = torch.from_numpy(values).to(torch.bfloat16)
    ours = torch.from_numpy(to_bfloat16(values)).view(torch.bfloat16)
    torch.testing.assert_close(ours, expected, rtol=0, atol=0, equal_nan=True)


def test_progress_counts_bytes_up_to_the_whole(ggufs: Any) -> None:
    steps: list[Progress] = []
    directory = convert(ggufs.write(), report=steps.append)
    total = read_spec(directory, "m").weight_bytes
    assert {step.stage for step in steps} == {"convert"}
    assert [step.done for step in steps] == sorted(step.done for step in steps)
    assert (steps[0].done, steps[-1].done, {step.total for step in steps}) == (0, total, {total})


def llama3_factors(factor: float) -> npt.NDArray[np.float32]:
    """The divisors of the 8 frequencies of a head of 16 at base 10000, by the published rule: wavelengths over 8192
    divide by the factor, under 2048 stay, between the two a line."""
    factors = []
    for pair in range(8):
        wavelength = 2 * np.pi * 10000 ** (pair / 8)
        smooth = (8192 / wavelength - 1) / 3
        mixed = 1 / ((1 - smooth) / factor + smooth)
        factors.append(factor if wavelength > 8192 else 1.0 if wavelength < 2048 else mixed)
    return np.array(factors, np.float32)


def test_llama3_scaling_is_recovered(ggufs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ggufs.write(change=lambda writer: writer.add_tensor("rope_freqs.weight", llama3_factors(8.0)))
    directory = convert(path)
    scaling = json.loads((directory / "config.json").read_text())["rope_scaling"]
    assert scaling["rope_type"] == "llama3"
    model = LlamaForCausalLM.from_pretrained(directory)
    plain = 10000.0 ** -(np.arange(8) / 8)
    np.testing.assert_allclose(model.model.rotary_emb.inv_freq.numpy(), plain / llama3_factors(8.0), rtol=1e-5)


def test_unknown_rotary_factors_are_refused(ggufs: Any) -> None:
    path = ggufs.write(change=lambda writer: writer.add_tensor("rope_freqs.weight", np.full(8, 2.0, np.float32)))
    assert refusal(path).code == "UnsupportedFormat"


@pytest.mark.parametrize(
    ("kind", "scaling"),
    [
        (gguf.RopeScalingType.LINEAR, {"rope_type": "linear", "factor": 4.0}),
        (gguf.RopeScalingType.YARN, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}),
    ],
)
def test_rotary_scalings(ggufs: Any, kind: gguf.RopeScalingType, scaling: dict[str, Any]) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(kind)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(64)

    config = json.loads((convert(ggufs.write(change=change)) / "config.json").read_text())
    assert config["rope_scaling"] == scaling


def test_mistral_is_a_llama_with_a_window(ggufs: Any) -> None:
    path = ggufs.write(architecture="mistral", change=lambda writer: writer.add_sliding_window(32))
    config = json.loads((convert(path) / "config.json").read_text())
    assert (config["architectures"], config["sliding_window"]) == (["MistralForCausalLM"], 32)


def without(name: str) -> Callable[[Any], Path]:
    def write(ggufs: Any) -> Path:
        tensors = ggufs_tensors()
        del tensors[name]
        return ggufs.write(tensors=tensors)  # type: ignore[no-any-return]

    return write


def llama_of(vocab: int) -> Weights:
    return ggufs_tensors() | {"model.embed_tokens.weight": np.zeros((vocab, 64), np.float32)}


def ggufs_tensors() -> Weights:
    random = np.random.default_rng(0)
    shapes = {
        "input_layernorm": (64,), "self_attn.q_proj": (64, 64), "self_attn.k_proj": (32, 64),
        "self_attn.v_proj": (32, 64), "self_attn.o_proj": (64, 64), "post_attention_layernorm": (64,),
        "mlp.gate_proj": (128, 64), "mlp.up_proj": (128, 64), "mlp.down_proj": (64, 128),
    }  # fmt: skip
    named = {f"model.layers.0.{part}.weight": shape for part, shape in shapes.items()}
    named |= {"model.embed_tokens.weight": (300, 64), "model.norm.weight": (64,)}
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in named.items()}


@pytest.mark.parametrize(
    ("write", "code", "word"),
    [
        (lambda g: g.write(architecture="mamba"), "UnsupportedArchitecture", "mamba"),
        (lambda g: g.write(change=lambda w: w.add_expert_count(8)), "UnsupportedFormat", "experts"),
        (lambda g: g.write(change=lambda w: w.add_uint16("split.count", 3)), "UnsupportedFormat", "one of 3 parts"),
        (
            lambda g: g.write(change=lambda w: w.add_tensor("rope_factors_long.weight", np.ones(8, np.float32))),
            "UnsupportedFormat",
            "longrope",
        ),
        (
            lambda g: g.write(change=lambda w: w.add_tensor("odd", np.zeros(8, np.float32))),
            "UnsupportedFormat",
            "'odd'",
        ),
        (lambda g: g.write(tensors=llama_of(vocab=200), tokens=300), "BadHeader", "more tokens"),
        (lambda g: g.write(tokenizer=False), "UnsupportedTokenizer", "tokenizer"),
        (lambda g: g.write(pre="unheard-of"), "UnsupportedTokenizer", "unheard-of"),
        (lambda g: g.write(heads=8), "BadHeader", "attn_"),
        (without("model.norm.weight"), "MissingTensor", "output_norm.weight"),
        (without("model.layers.0.mlp.down_proj.weight"), "MissingTensor", "blk.0.ffn_down.weight"),
    ],
)
def test_what_cannot_be_expressed_is_refused(ggufs: Any, write: Callable[[Any], Path], code: str, word: str) -> None:
    error = refusal(write(ggufs))
    assert error.code == code
    assert word in error.message


def test_integers_are_not_weights(ggufs: Any) -> None:
    tensors = ggufs_tensors() | {"model.norm.weight": np.zeros(64, np.int8)}
    error = refusal(ggufs.write(tensors=tensors))
    assert error.code == "UnsupportedFormat"
    assert "I8" in error.message


def test_layers_that_are_not_there_are_missed(ggufs: Any) -> None:
    path = ggufs.write(tensors=ggufs_tensors())
    raw = path.read_bytes()
    key = b"llama.block_count" + (4).to_bytes(4, "little")
    at = raw.index(key) + len(key)
    path.write_bytes(raw[:at] + (2**32 - 1).to_bytes(4, "little") + raw[at + 4 :])
    assert refusal(path).code == "MissingTensor"  # and at once, not after four thousand million names


@pytest.mark.parametrize("content", [b"", b"GGU", b"PK\x03\x04", b"GGML" + bytes(100)])
def test_what_is_no_gguf(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.gguf").write_bytes(content)
    assert refusal(tmp_path / "x.gguf").code == "BadHeader"


@pytest.mark.parametrize("version", [1, 4, 3 << 24])
def test_versions_that_cannot_be_read(tmp_path: Path, version: int) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF" + version.to_bytes(4, "little") + bytes(16))
    assert refusal(tmp_path / "x.gguf").code == "UnsupportedFormat"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "w.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("a.strings", ["one", "two"])
    writer.add_array("a.numbers", [1, 2, 3])
    writer.add_bool("a.bool", True)
    writer.add_tensor("t", np.ones((4, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def test_every_cut_is_noticed(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "cut.gguf"
    last = len(whole) - len(whole) % 32  # the writer pads behind the last tensor
    for size in range(last):
        path.write_bytes(whole[:size])
        with pytest.raises(StartupError) as caught:
            GgufFile(path)
        assert caught.value.code == ("BadHeader" if size < 4 else "TruncatedFile")


@settings(max_examples=300, deadline=1000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(4, 250), st.integers(0, 255)), min_size=1, max_size=8))
def test_damage_never_crashes_hangs_or_allocates(tmp_path: Path, whole: bytes, changes: list[tuple[int, int]]) -> None:
    raw = bytearray(whole)
    for at, value in changes:
        raw[at] = value
    path = tmp_path / "x.gguf"
    path.unlink(missing_ok=True)  # the mapping of the example before may be alive
    path.write_bytes(raw)
    try:
        with GgufFile(path) as file:
            assert all(tensor.offset + tensor.size_bytes <= len(raw) for tensor in file.tensors.values())
    except StartupError:
        pass  # the only way to fail
