"""llm, the command, with a model of an OpenAI-compatible server in its configuration."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asked import GREETING, MODEL, Endpoint

pytest.importorskip("llm", reason="llm is not installed")


@pytest.fixture
def llm(server: Endpoint, busy: Endpoint, tmp_path: Path) -> Callable[..., str]:
    models = [
        {
            "model_id": name,
            "model_name": MODEL,
            "api_base": endpoint.base_url,
            "api_key_name": "ours",
            "supports_schema": True,
        }
        for name, endpoint in (("ours", server), ("crowded", busy))
    ]
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(models))  # JSON is YAML
    (tmp_path / "keys.json").write_text(json.dumps({"ours": server.key}))

    def run(*arguments: str, model: str = "ours") -> str:
        command = [str(Path(sys.executable).parent / "llm"), "-m", model, *arguments]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            stdin=subprocess.DEVNULL,
            env=os.environ | {"LLM_USER_PATH": str(tmp_path)},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


def test_whole_and_streamed(llm: Callable[..., str]) -> None:
    assert llm("greet") == GREETING
    assert llm("greet", "--no-stream") == GREETING
    assert llm("say it back", "-s", "You are an echo", "-o", "temperature", "0.5", "-o", "max_tokens", "200")


def test_structured_output(llm: Callable[..., str]) -> None:
    for stream in ((), ("--no-stream",)):
        assert json.loads(llm("person", "--schema", "name, age int", *stream)) == {"name": "Ada", "age": 36}


def test_it_tries_again_after_a_429(
    llm: Callable[..., str], crowd: Callable[[], Any], refusals: Callable[[], int]
) -> None:
    """Twice, as openai does unless told otherwise. (It has no option for a timeout.)"""
    before = refusals()
    with crowd():
        assert llm("greet", "--no-stream", model="crowded") == GREETING
    assert refusals() > before
