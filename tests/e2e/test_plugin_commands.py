"""What an author and an operator see of plugins from outside: commands, and processes that start up and shut down."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tickertape.testing.processes import Server, wait_until

Serve = Callable[..., Server]

EXAMPLE = Path(__file__).parents[2] / "examples" / "tickertape-plugin-example"

LIVING = """
import os
from pathlib import Path
from tickertape.plugins import hookimpl
API = (1, 0)
@hookimpl
def startup(process):
    with open({log!r}, "a") as log: log.write(f"+{{process}} ")
@hookimpl
def shutdown(process):
    with open({log!r}, "a") as log: log.write(f"-{{process}} ")
"""


def tickertape(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, with the example importable."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "tickertape", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": str(EXAMPLE)},
    )


@pytest.fixture(scope="module")
def markov(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The example's model, and a directory of plugins with the example in it."""
    root = tmp_path_factory.mktemp("markov")
    train = [sys.executable, "-m", "tickertape_plugin_example.train", str(EXAMPLE / "README.md"), str(root / "model")]
    subprocess.run(train, check=True, cwd=EXAMPLE, timeout=60)
    (root / "plugins").mkdir()
    (root / "plugins" / "markov.py").write_text("from tickertape_plugin_example import API, register_backends\n")
    return root / "model", root / "plugins"


def test_plugins_says_which_backend_serves_a_model(markov: tuple[Path, Path]) -> None:
    model, plugins = markov
    listed = json.loads(tickertape("plugins", str(model), "--plugins-dir", str(plugins), "--json").stdout)
    verdicts = {backend["name"]: (backend["supports"], backend.get("reason")) for backend in listed["backends"]}
    assert verdicts["markov"] == (True, None)
    supports, reason = verdicts["reference"]
    assert not supports
    assert "it computes LlamaForCausalLM" in str(reason)
    shown = tickertape("plugins", str(model), "--plugins-dir", str(plugins)).stdout
    assert "serves the model" in shown
    assert "no: it computes LlamaForCausalLM" in shown
    without = json.loads(tickertape("plugins", "--plugins-dir", str(plugins), "--json").stdout)
    assert not any("supports" in backend for backend in without["backends"])


def test_check_runs_the_kit(markov: tuple[Path, Path]) -> None:
    model, plugins = markov
    done = tickertape("check", "markov", "--model", str(model), "--plugins-dir", str(plugins))
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
    assert "failed" not in done.stdout


def test_check_is_red_for_a_backend_that_is_wrong(markov: tuple[Path, Path], tmp_path: Path) -> None:
    model, _ = markov
    (tmp_path / "wrong.py").write_text(
        "from tickertape_plugin_example import API, supports\n"
        "from tickertape.plugins import Backend, hookimpl\n"
        "@hookimpl\n"
        "def register_backends(register):\n"
        "    register(Backend(name='wrong', kind='runner', factory=f'{__name__}:make', supports=supports))\n"
        "def make(spec, options):\n"
        "    from tickertape_plugin_example.runner import MarkovRunner\n"
        "    class Wrong(MarkovRunner):\n"
        "        def places(self, batch, row, positions):\n"
        "            return positions + 16  # as if it were alone, and its blocks in a row\n"
        "    return Wrong(spec)\n"
    )
    done = tickertape("check", "wrong", "--model", str(model), "--plugins-dir", str(tmp_path))
    assert done.returncode == 1
    assert "test_a_batch_of_mixed_lengths_equals_the_plain_model" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("check", "nobody"), "tickertape: no backend 'nobody'; there are: "),
        (("plugins", "/nowhere/at/all"), "tickertape: "),
    ],
)
def test_what_cannot_be_done_is_one_line(arguments: tuple[str, ...], message: str) -> None:
    done = tickertape(*arguments)
    assert done.returncode == 1
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1


def test_a_backend_that_needs_a_model_of_its_own_is_wrong_usage() -> None:
    done = tickertape("check", "scripted")
    assert done.returncode == 2
    assert "backend 'scripted' needs a model of its own" in done.stderr
    assert "--model DIR" in done.stderr


def test_plugins_start_up_and_shut_down_in_every_process(serve: Serve, tmp_path: Path) -> None:
    log = tmp_path / "log"
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "living.py").write_text(LIVING.format(log=str(log)))
    server = serve("--plugins-dir", str(tmp_path / "plugins")).until_ready()
    wait_until(lambda: "-fetcher" in log.read_text())  # it has nothing more to do
    assert sorted(log.read_text().split()) == ["+fetcher", "+front", "+worker", "-fetcher"]
    server.process.send_signal(signal.SIGTERM)
    assert server.wait(10) == 0
    assert sorted(log.read_text().split()) == ["+fetcher", "+front", "+worker", "-fetcher", "-front", "-worker"]
