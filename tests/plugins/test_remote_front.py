"""A front before another server: what clients see is what they would see there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tickertape.testing.models import write_scripted
from tickertape.testing.processes import Server, events, text_of, wait_until
from tickertape.testing.tokenizers import write_byte_level

pytestmark = pytest.mark.e2e

Start = Callable[..., Server]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 tokens a second. "slow" is answered with 3 s of digits; anything else comes back."""
    directory = tmp_path_factory.mktemp("models") / "tiny"
    write_byte_level(directory)
    end = Tokenizer.from_file(str(directory / "tokenizer.json")).token_to_id("<|im_end|>")
    assert end is not None
    plays: list[dict[str, Any]] = [{"when": list(b"slow"), "tokens": list(b"0123456789" * 30)}, {"echo": True}]
    write_scripted(directory, plays, eos_token_id=end, token_s=0.01)
    return directory


@pytest.fixture
def start(tiny: Path, tmp_path: Path) -> Iterator[Start]:
    started: list[Server] = []

    def start(*arguments: str) -> Server:
        store = ("--store", str(tmp_path / f"store-{len(started)}"))
        server = Server([f"tiny={tiny}", *store, *arguments], log=tmp_path / f"stderr-{len(started)}")
        started.append(server)
        return server

    yield start
    for server in started:
        server.kill()


def before(start: Start, upstream: Server, *arguments: str) -> Server:
    option = ("--backend-option", f"url={upstream.url}")
    return start("--port", "0", "--backend", "remote", *option, *arguments)


def without_ids(answer: Any) -> Any:
    return {name: value for name, value in answer.json().items() if name not in ("id", "created", "system_fingerprint")}


@pytest.mark.parametrize("arguments", [(), ("--in-process",)])
def test_clients_see_no_difference(start: Start, arguments: tuple[str, ...]) -> None:
    upstream = start("--port", "0").until_ready()
    front = before(start, upstream, *arguments).until_ready()
    for body in (
        {"prompt": "héllo", "max_tokens": 20},
        {"prompt": "hello", "max_tokens": 4, "logprobs": 2, "seed": 3},
        {"prompt": ["one", "two"], "max_tokens": 9, "stop": ["w"]},
        {"prompt": "hello", "max_tokens": 3, "echo": True, "logprobs": 1, "prompt_logprobs": 2},
    ):
        answers = [
            server.client.post("/v1/completions", json={"model": "tiny", **body}) for server in (upstream, front)
        ]
        assert answers[0].status_code == 200
        assert without_ids(answers[0]) == without_ids(answers[1])
    with front.stream("stream this, please", max_tokens=40) as response:
        found = events(response.iter_lines())
    assert text_of(found) == "stream this, please"
    assert found[-1] == "[DONE]"


def test_what_the_server_refuses_is_refused_with_its_words(start: Start) -> None:
    upstream = start("--port", "0").until_ready()
    front = before(start, upstream).until_ready()
    for body in ({"bad_words": ["x"]}, {"priority": 3}, {"prompt": "x" * 3000}, {"temperature": 9}):
        asked = {"model": "tiny", "prompt": "hi", **body}
        answers = [server.client.post("/v1/completions", json=asked) for server in (upstream, front)]
        name = next(iter(body))
        assert answers[1].status_code == 400
        assert answers[1].json()["error"]["param"] == name
        assert name == "bad_words" or answers[0].json() == answers[1].json()


def test_a_server_that_is_away_makes_the_front_wait_for_it(start: Start) -> None:
    upstream = start("--port", "0").until_ready()
    front = before(start, upstream).until_ready()
    worker = front.worker()
    with front.stream("slow", max_tokens=300) as response:
        lines = response.iter_lines()
        while not next(lines).startswith("data: "):
            pass
        upstream.kill()
        last = events(lines)[-1]
    assert last["error"]["type"] == "server_error"
    refused = front.ask("hi")
    assert refused.status_code == 503
    assert refused.headers["retry-after"]
    assert front.client.get("/livez").status_code == 200
    start("--port", str(upstream.port)).until_ready()
    wait_until(lambda: front.ask("hi", max_tokens=2).status_code == 200)
    assert front.worker() == worker
