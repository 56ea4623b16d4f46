"""A server that cannot start says why in one line and on /readyz, is never ready, and exits non-zero."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tickertape.testing.models import write_llama
from tickertape.testing.processes import Server, ServerProcess
from tickertape.testing.tokenizers import write_byte_level

Start = Callable[..., Any]


def llama(directory: Path) -> Path:
    directory.mkdir()
    write_byte_level(directory)
    write_llama(directory, vocab_size=512)
    return directory


def missing(_: Path) -> None:
    pass


def without_a_shard(directory: Path) -> None:
    llama(directory)
    (directory / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def truncated(directory: Path) -> None:
    file = llama(directory) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def of_an_unknown_architecture(directory: Path) -> None:
    config = llama(directory) / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"architectures": ["PerceptronForCausalLM"]}))


def pickled(directory: Path) -> None:
    llama(directory)
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")


def with_a_broken_template(directory: Path) -> None:
    llama(directory)
    (directory / "chat_template.jinja").write_text("{% for message in messages %}{{ message }")


def without_a_tokenizer(directory: Path) -> None:
    (llama(directory) / "tokenizer.json").unlink()


@pytest.mark.parametrize(
    ("break_it", "reason", "words"),
    [
        (missing, "PathNotFound", "path not found"),
        (without_a_shard, "MissingShard", "model-00001-of-00002.safetensors"),
        (truncated, "TruncatedFile", "model.safetensors"),
        (of_an_unknown_architecture, "UnsupportedArchitecture", "PerceptronForCausalLM"),
        (pickled, "PickleOnly", "pytorch_model.bin"),
        (with_a_broken_template, "BadChatTemplate", "chat_template.jinja"),
        (without_a_tokenizer, "MissingTokenizer", "tokenizer.json"),
    ],
)
def test_a_bad_model_is_named(
    start: Start, tmp_path: Path, break_it: Callable[[Path], None], reason: str, words: str
) -> None:
    break_it(tmp_path / "model")
    server: Server = start(Server, str(tmp_path / "model"), "--port", "0", "--startup-linger-s", "1")
    reasons: list[str] = []
    while server.process.poll() is None:
        try:
            answer = server.client.get("/readyz")
        except httpx.TransportError:  # it is gone
            break
        assert answer.status_code == 503
        if not reasons or reasons[-1] != answer.json()["reason"]:
            reasons.append(answer.json()["reason"])
    assert server.wait() == 1
    assert reasons[-1] == reason
    assert_one_line(server, words)


def assert_one_line(server: ServerProcess, words: str) -> None:
    plain = [line for line in server.stderr().splitlines() if not line.startswith("{")]
    assert len(plain) == 1, server.stderr()
    assert plain[0].startswith("tickertape: ")
    assert words.lower() in plain[0].lower()
    assert "Traceback" not in server.stderr()


def test_a_port_in_use(start: Start, tiny: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server: ServerProcess = start(ServerProcess, str(tiny), "--port", str(port))
        assert server.wait() == 1
    assert_one_line(server, f"cannot listen on 127.0.0.1:{port}: address already in use")
    assert server.process.stdout is not None
    assert server.process.stdout.read() == b""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--backend", "reference", "--dtype", "bfloat16"), "backend 'reference' does not do dtype bfloat16"),
        (("--backend", "vllm", "--quantization", "int8"), "backend 'vllm' does not do quantization int8"),
        (("--quantization", "int8", "--dtype", "float64"), "weights of int8 are not computed in float64"),
        (("--dtype", "bfloat16", "--backend-option", "zz=1"), "backend 'transformers' has no option 'zz'"),
    ],
)
def test_what_the_backend_refuses_is_not_made_first(
    start: Start, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    write_llama(llama(tmp_path / "model"), vocab_size=512, dtype="float32")
    flags = ("--port", "0", "--startup-linger-s", "0", "--store", str(tmp_path / "store"))
    server: Server = start(Server, str(tmp_path / "model"), *flags, *arguments)
    assert server.wait() == 1
    assert_one_line(server, words)
    assert not list(tmp_path.glob("store/objects/*"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--backend", "nope"), "no backend 'nope'"),
        (("--backend", "reference"), "ScriptedForCausalLM"),
        (("--quantization", "int8"), "quantization int8"),
        (("--max-model-len", "100000"), "100000"),
        (("--backend-option", "zz=1"), "backend 'scripted' has no option 'zz'; it has none"),
        (("--kv-cache-bytes", "1"), "bytes"),
        (("--api-keys", "/dev/null"), "holds none"),
    ],
)
def test_settings_that_the_model_cannot_honour(
    start: Start, tiny: Path, arguments: tuple[str, ...], words: str
) -> None:
    server: Server = start(Server, str(tiny), "--port", "0", "--startup-linger-s", "0", *arguments)
    assert server.wait() == 1
    assert_one_line(server, words)


def test_settings_that_are_wrong(start: Start, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "server.toml").write_text("prot = 80\n")
    server: ServerProcess = start(ServerProcess, str(tiny), "--config", str(tmp_path / "server.toml"))
    assert server.wait() == 2
    assert_one_line(server, "prot: no such setting")


def test_two_models_of_one_name(start: Start, tiny: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny, tmp_path / "other" / "tiny")
    server: Server = start(Server, str(tiny), str(tmp_path / "other" / "tiny"), "--port", "0")
    assert server.wait() == 1
    assert_one_line(server, "two models are named 'tiny'")
