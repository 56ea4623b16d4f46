"""Real servers on loopback, in processes of their own; each is gone when its test ends, and so are its children."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tickertape.testing.models import write_scripted
from tickertape.testing.processes import Server, ServerProcess
from tickertape.testing.tokenizers import write_byte_level


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scripted model of 100 tokens a second. "nap": 1 s of digits; "slow": 3 s of them; "endless": never ends by
    itself; "die": the worker dies at the fourth token; "Q": an answer. Anything else comes back."""
    directory = tmp_path_factory.mktemp("models") / "tiny"
    directory.mkdir()
    write_byte_level(directory)
    end = Tokenizer.from_file(str(directory / "tokenizer.json")).token_to_id("<|im_end|>")
    assert end is not None
    plays: list[dict[str, Any]] = [
        {"when": list(b"slow"), "tokens": list(b"0123456789" * 30)},
        {"when": list(b"nap"), "tokens": list(b"0123456789" * 10)},
        {"when": list(b"die"), "tokens": list(b"abcdef"), "fail": {"at": 3, "kind": "worker"}},
        {"when": list(b"endless"), "tokens": list(b"tick "), "then": "repeat"},
        {"when": list(b"Q"), "tokens": list(b"The answer.")},
        {"echo": True},
    ]
    write_scripted(directory, plays, eos_token_id=end, token_s=0.01)
    return directory


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """`start(Server, *arguments)` or `start(ServerProcess, *arguments)`, in a directory and a store of the test."""
    started: list[ServerProcess] = []

    def start(kind: type[ServerProcess], *arguments: str, **options: Any) -> ServerProcess:
        (tmp_path / "cwd").mkdir(exist_ok=True)
        store = () if "--store" in arguments else ("--store", str(tmp_path / "store"))
        log = tmp_path / f"stderr-{len(started)}"
        server = kind([*arguments, *store], log=log, cwd=tmp_path / "cwd", **options)
        started.append(server)
        return server

    yield start
    for server in started:
        server.kill()


@pytest.fixture
def serve(start: Callable[..., Any], tiny: Path) -> Callable[..., Server]:
    """Serves the scripted model on a free port, with further arguments. The port is bound by then, no more."""

    def serve(*arguments: str, **options: Any) -> Server:
        server: Server = start(Server, f"tiny={tiny}", "--port", "0", *arguments, **options)
        return server

    return serve
