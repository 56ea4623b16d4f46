"""The commands that talk to a server, and what the command line says about itself."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from tickertape.settings import Settings
from tickertape.testing.processes import Server, wait_until

Serve = Callable[..., Server]


def tickertape(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TICKERTAPE_")}
    return subprocess.run(
        [sys.executable, "-m", "tickertape", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        check=False,
    )


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored where the tests run in the background
            os.execv(sys.executable, [sys.executable, "-m", "tickertape", *arguments])
        self.shown = ""

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def read_until(self, text: str, timeout_s: float = 30.0) -> str:
        """What was shown up to and with `text`; the rest stays for the next call."""
        deadline = time.monotonic() + timeout_s
        while text not in self.shown:
            assert time.monotonic() < deadline, f"{text!r} does not come after {self.shown!r}"
            if select.select([self._fd], [], [], 0.1)[0]:
                self.shown += os.read(self._fd, 65536).decode()
        before, _, self.shown = self.shown.partition(text)
        return before + text

    def close(self) -> None:
        os.close(self._fd)

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def open_terminal(*arguments: str) -> Terminal:
        opened.append(Terminal(*arguments))
        return opened[-1]

    yield open_terminal
    for one in opened:
        one.close()


def test_chat_answers_an_argument_and_a_pipe(serve: Serve) -> None:
    server = serve().until_ready()
    asked = tickertape("chat", "--url", server.url, "Q?")
    assert (asked.returncode, asked.stdout, asked.stderr) == (0, "The answer.\n", "")
    piped = tickertape("chat", "--url", server.url, "--model", "tiny", "--system", "Be brief", stdin="Q from a pipe\n")
    assert (piped.returncode, piped.stdout) == (0, "The answer.\n")
    nothing = tickertape("chat", "--url", server.url)
    assert (nothing.returncode, nothing.stderr) == (1, "tickertape: nothing was asked\n")
    unknown = tickertape("chat", "--url", server.url, "--model", "huge", "hello")
    assert unknown.returncode == 1
    assert "The model 'huge' does not exist" in unknown.stderr
    assert tickertape("models", "--url", server.url).stdout == "tiny\n"


def test_a_conversation(serve: Serve, terminal: Callable[..., Terminal]) -> None:
    server = serve().until_ready()
    chat = terminal("chat", "--url", server.url)
    chat.read_until("> ")
    chat.type("Q?\n")
    chat.read_until("The answer.")
    chat.read_until("> ")
    chat.type("endless\n")
    chat.read_until("tick tick tick")
    chat.type("\x03")  # Ctrl-C: the answer ends, the conversation does not
    chat.read_until("[stopped]")
    chat.read_until("> ")
    wait_until(lambda: 'tickertape_requests_running{model="tiny"} 0' in server.client.get("/metrics").text)
    chat.type("/reset\n")
    chat.read_until("> ")
    chat.type("Q again\n")
    chat.read_until("The answer.")
    chat.read_until("> ")
    chat.type("\x04")
    assert chat.wait() == 0


def test_chat_shows_an_error_that_ends_an_answer(serve: Serve) -> None:
    server = serve().until_ready()
    cut = tickertape("chat", "--url", server.url, "die")
    assert cut.returncode == 1
    assert cut.stderr.startswith("tickertape: ")
    assert "Traceback" not in cut.stderr


def test_chat_sends_the_key(serve: Serve) -> None:
    server = serve("--api-key", "secret").until_ready()
    refused = tickertape("chat", "--url", server.url, "Q")
    assert refused.returncode == 1
    assert "API key" in refused.stderr
    assert tickertape("chat", "--url", server.url, "--api-key", "secret", "Q").stdout == "The answer.\n"
    assert "secret" not in server.stderr()


def test_chat_sends_a_key_that_is_not_ascii(serve: Serve) -> None:
    server = serve("--api-key", "k\u00e9").until_ready()
    # The URL as other clients want it.
    answer = tickertape("chat", "--url", f"{server.url}/v1", "--api-key", "k\u00e9", "Q")
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "The answer.\n", "")


def test_an_empty_prompt_is_wrong_usage() -> None:
    answer = tickertape("chat", "")
    assert answer.returncode == 2
    assert "the prompt is empty" in answer.stderr


def test_check_says_that_a_backend_needs_a_model_of_its_own() -> None:
    answer = tickertape("check", "scripted")
    assert answer.returncode == 2
    assert "needs a model of its own" in answer.stderr
    assert "it plays ScriptedForCausalLM only" in answer.stderr


def test_help_names_each_default_once() -> None:
    assert tickertape("serve", "--help").stdout.count("[default: auto]") == sum(
        field.default == "auto" and "[default:" not in (field.description or "")
        for field in Settings.model_fields.values()
    )


def test_no_server_is_one_line() -> None:
    for command in ("chat", "models"):
        gone = tickertape(command, "--url", "http://127.0.0.1:9")
        assert gone.returncode == 1
        assert gone.stderr == "tickertape: no server answers at http://127.0.0.1:9; start one with: tickertape serve\n"


@pytest.mark.parametrize("command", [(), ("serve",), ("chat",), ("models",), ("plugins",), ("check",)])
def test_help_fits_eighty_columns(command: tuple[str, ...]) -> None:
    shown = tickertape(*command, "--help")
    assert shown.returncode == 0
    assert max(map(len, shown.stdout.splitlines())) <= 80


def test_version_and_plugins() -> None:
    assert tickertape("--version").stdout.startswith("tickertape 0.")
    table = tickertape("plugins").stdout
    assert "reference" in table
    records = json.loads(tickertape("plugins", "--json").stdout)
    assert {record["name"]: record["state"] for record in records["data"]}["scripted"] == "loaded"


def test_a_broken_plugin_costs_one_line_unless_strict(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("plugins")
    (directory / "broken.py").write_text("import no_such_module\n")
    listed = tickertape("plugins", "--plugins-dir", str(directory))
    assert "no_such_module" in listed.stdout
    server = serve("--plugins-dir", str(directory)).until_ready()
    assert server.ask("Q").status_code == 200
    strict = serve("--plugins-dir", str(directory), "--strict-plugins", "--startup-linger-s", "0")
    assert strict.wait() == 1
    assert "plugin 'broken' failed" in strict.stderr()


def test_settings_come_from_flag_environment_and_file(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> None:
    config = tmp_path_factory.mktemp("config") / "server.toml"
    config.write_text('max_model_len = 100\nmax_body_bytes = "2KiB"\n')
    server = serve("--config", str(config), environment={"TICKERTAPE_MAX_MODEL_LEN": "200"}).until_ready()
    too_long = server.ask("x" * 300)
    assert too_long.status_code == 400
    assert "200" in too_long.json()["error"]["message"]
    assert server.ask("x" * 4000).status_code == 413


ENGINE_PLUGIN = '''
import asyncio

from tickertape.plugins import Backend, EngineStats, Finish, MemoryPlan, TokenDelta, hookimpl

API = (1, 0)


class Counting:
    """An engine of its own: says 65, 66, 67, ... and knows when it is cancelled."""

    def __init__(self) -> None:
        self.running = 0
        self.steps = 0

    def plan(self):
        return MemoryPlan(0, 0, 0, ())

    async def start(self):
        await asyncio.sleep(0.01)

    async def generate(self, request):
        self.running += 1
        try:
            for index in range(request.sampling.max_tokens):
                await asyncio.sleep(0.05)
                self.steps += 1
                if index and index == request.sampling.top_k:
                    raise ValueError("too far")
                last = index + 1 == request.sampling.max_tokens
                yield TokenDelta((65 + index,), finish=Finish("length") if last else None)
        finally:
            self.running -= 1

    def stats(self):
        return EngineStats(num_running=self.running, num_steps=self.steps, max_model_len=100)

    async def health(self):
        pass

    async def stop(self, grace_s):
        pass


def make(spec, options):
    return Counting()


@hookimpl
def register_backends(register):
    register(Backend(name="counting", kind="engine", factory=f"{__name__}:make"))
'''


@pytest.mark.parametrize("where", [(), ("--in-process",)])
def test_an_engine_plugin_is_served(
    serve: Serve, tmp_path_factory: pytest.TempPathFactory, where: tuple[str, ...]
) -> None:
    directory = tmp_path_factory.mktemp("plugins")
    (directory / "counting.py").write_text(ENGINE_PLUGIN)
    server = serve("--plugins-dir", str(directory), "--backend", "counting", *where).until_ready()
    answer = server.ask("x", max_tokens=5).json()
    assert answer["choices"][0]["text"] == "ABCDE"
    assert answer["choices"][0]["finish_reason"] == "length"
    failed = server.ask("x", max_tokens=40, top_k=3)
    assert (failed.status_code, failed.json()["error"]["type"]) == (500, "server_error")
    with server.stream("x", max_tokens=90) as response:
        next(response.iter_lines())
    running = 'tickertape_requests_running{model="tiny"}'
    wait_until(lambda: f"{running} 0" in server.client.get("/metrics").text, 3.0)  # the answer would take longer
    server.process.send_signal(signal.SIGTERM)
    assert server.wait(5) == 0


@pytest.mark.demo
def test_the_demo_model_knows_the_capital_of_france(start: Callable[..., Server]) -> None:
    """No model named: fetched once into the store of the machine, converted, served by a worker, asked by the CLI."""
    store = os.environ.get("TICKERTAPE_STORE", "~/.cache/tickertape")
    server = start(Server, "--port", "0", "--store", store).until_ready(300)  # so long may it take the first time
    answer = tickertape("chat", "--url", server.url, "--temperature", "0", "What is the capital of France?")
    assert answer.returncode == 0
    assert "Paris" in answer.stdout
    assert tickertape("models", "--url", server.url).stdout == "SmolLM2-135M-Instruct\n"
