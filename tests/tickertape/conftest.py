"""Compilers of grammars over two tiny vocabularies; children that run a script of the test's."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tickertape.api.tokenizer import TextTokenizer
from tickertape.children import Child
from tickertape.core.errors import InvalidRequest
from tickertape.core.request import Grammar
from tickertape.grammar.compiler import MatcherCompiler
from tickertape.grammar.vocabulary import model_vocabulary
from tickertape.testing.tokenizers import write_byte_level, write_sentencepiece

VOCAB = 512


@pytest.fixture(params=["byte level", "sentencepiece"], scope="module")
def vocabulary(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[MatcherCompiler, TextTokenizer]:
    directory = tmp_path_factory.mktemp("model")
    (write_byte_level if request.param == "byte level" else write_sentencepiece)(directory)
    compiler = MatcherCompiler(VOCAB, lambda: model_vocabulary(directory, VOCAB, {}))
    assert compiler.ready() is None
    return compiler, TextTokenizer.from_directory(directory)


@pytest.fixture(scope="module")
def refusal(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], InvalidRequest]:
    directory = tmp_path_factory.mktemp("model")
    write_byte_level(directory)
    compiler = MatcherCompiler(VOCAB, lambda: model_vocabulary(directory, VOCAB, {}))

    def refuse(kind: Any, source: str) -> InvalidRequest:
        started = time.thread_time()
        with pytest.raises(InvalidRequest) as caught:
            compiler.compile(Grammar(kind, source), ())
        assert time.thread_time() - started < 5
        message = caught.value.message
        assert "\n" not in message
        assert len(message) < 500
        return caught.value

    return refuse


class Children:
    """Real children of a supervisor. `started` has them all."""

    def __init__(self, directory: Path) -> None:
        self.started: list[Child] = []
        self._script = directory / "child.py"

    def of(self, script: str) -> Callable[[], Child]:
        """Starts a child that runs the script, with the descriptor of its socket as the argument."""
        self._script.write_text(script)

        def start() -> Child:
            ours, theirs = socket.socketpair()
            fd = theirs.fileno()
            process = subprocess.Popen([sys.executable, str(self._script), str(fd)], pass_fds=(fd,), process_group=0)
            theirs.close()
            self.started.append(Child(process, ours))
            return self.started[-1]

        return start


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    made = Children(tmp_path)
    yield made
    for child in made.started:
        child.kill()
