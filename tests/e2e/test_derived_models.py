"""A model directory that lacks what a server needs: no tokenizer.json, weights of another type than is computed in."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tickertape.testing.models import write_llama
from tickertape.testing.processes import Server, command_line
from tickertape.testing.tokenizers import byte_level_tokenizer
from tickertape.weights.materialize import DEFAULT_MODEL


def write_bare(directory: Path) -> Path:
    """float16 weights, GPT-2's tokenizer files, and a word on how to decode."""
    write_llama(directory, dtype="float16", vocab_size=512)
    model = json.loads(byte_level_tokenizer().to_str())["model"]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    (directory / "vocab.json").write_text(json.dumps(model["vocab"]))
    (directory / "merges.txt").write_text("\n".join(merges) + "\n")
    (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    (directory / "generation_config.json").write_text('{"do_sample": false, "max_new_tokens": 24}')
    return directory


def test_it_is_served_from_derived_files_with_its_own_defaults(start: Callable[..., Any], tmp_path: Path) -> None:
    directory = write_bare(tmp_path / "bare")
    before = sorted(path.name for path in directory.iterdir())
    store = tmp_path / "store"
    flags = ("--store", str(store), "--port", "0", "--backend", "reference", "--dtype", "float32")
    server: Server = start(Server, f"tiny={directory}", *flags, "--default-max-tokens", "9").until_ready()
    maps = Path(f"/proc/{server.worker()}/maps").read_text()
    assert str(store / "objects") in maps
    assert str(directory / "model.safetensors") not in maps
    assert sorted(path.name for path in directory.iterdir()) == before

    def texts(num_tokens: int, **fields: Any) -> set[str]:
        answers = [server.ask("the cat", seed=seed, ignore_eos=True, **fields).json() for seed in range(4)]
        assert [answer["usage"]["completion_tokens"] for answer in answers] == [num_tokens] * 4
        return {answer["choices"][0]["text"] for answer in answers}

    assert len(texts(9)) == 1  # greedy by the file, 9 tokens by the flag
    assert len(texts(5, max_tokens=5, temperature=1)) > 1


@pytest.mark.demo
def test_the_demo_model_in_int8_answers_and_is_found_by_the_next_start(start: Callable[..., Any]) -> None:
    """Two models of one server, and a second server: every worker maps the same object of integers."""
    store = Path(os.environ.get("TICKERTAPE_STORE", "~/.cache/tickertape")).expanduser()
    flags = ("--port", "0", "--store", str(store), "--quantization", "int8", "--dtype", "float32")
    models = [f"{name}={DEFAULT_MODEL}" for name in ("one", "two")]
    server: Server = start(Server, *models, *flags)
    server.until_ready(300)  # the first time on a machine it fetches, converts and compiles; one model after the other
    for name in ("one", "two"):
        body = {"model": name, "messages": [{"role": "user", "content": "What is the capital of France?"}]}
        answer = server.client.post("/v1/chat/completions", json={**body, "temperature": 0, "max_tokens": 20})
        assert "Paris" in answer.json()["choices"][0]["message"]["content"]
    mapped = {objects_of(pid, store) for pid in server.children() if "tickertape.worker" in command_line(pid)}
    assert len(mapped) == 1
    [objects] = mapped
    assert sum(Path(path).stat().st_size for path in objects) < 240e6  # 538 MB when wide
    inodes = {path: Path(path).stat().st_ino for path in objects}
    server.kill()
    again: Server = start(Server, models[0], *flags).until_ready()
    assert objects_of(again.worker(), store) == objects
    assert {path: Path(path).stat().st_ino for path in objects} == inodes


def objects_of(pid: int, store: Path) -> frozenset[str]:
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return frozenset(line.split(maxsplit=5)[5] for line in lines if str(store / "objects") in line)
