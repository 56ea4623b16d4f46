"""What a process pays for plugins it does not use."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest

PROBE = """
import sys, time
import tickertape.plugins
before = set(sys.modules)
started = time.perf_counter()
import {module}
print(time.perf_counter() - started)
print(*sorted({{name.partition(".")[0] for name in set(sys.modules) - before}}))
"""

LOAD = """
import sys, time
from tickertape.plugins.manager import Plugins
started = time.perf_counter()
plugins = Plugins.load(directory=sys.argv[1], strict=True)
print(time.perf_counter() - started, len(plugins.records))
"""

HEAVY = {
    "certifi",
    "gguf",
    "httpx",
    "httpx2",
    "huggingface_hub",
    "llguidance",
    "numba",
    "obstore",
    "pydantic",
    "starlette",
    "tokenizers",
    "torch",
    "transformers",
    "urllib3",
    "vllm",
}
BUILT_IN = [point for point in entry_points(group="tickertape") if point.dist and point.dist.name == "tickertape"]


def probed(code: str, *arguments: str) -> list[list[str]]:
    """What three runs print, word by word: the machine may be busy."""
    runs = [
        subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True, timeout=60)
        for _ in range(3)
    ]
    return [run.stdout.split() for run in runs]


@pytest.mark.parametrize("plugin", BUILT_IN, ids=[point.name for point in BUILT_IN])
def test_loading_a_built_in_plugin_is_light(plugin: EntryPoint) -> None:
    """Under 50 ms, and without what does the work."""
    runs = probed(PROBE.format(module=plugin.value))
    assert min(float(words[0]) for words in runs) < 0.05
    assert not HEAVY & set(runs[0][1:])


def test_ten_more_plugins_cost_next_to_nothing(tmp_path: Path) -> None:
    for n in range(10):
        (tmp_path / f"more{n}.py").write_text(
            "from tickertape.plugins import Backend, hookimpl\nAPI = (1, 0)\n"
            f"@hookimpl\ndef register_backends(register): register(Backend(name='b{n}', kind='runner', factory='a:b'))"
        )
    empty = tmp_path / "none"
    empty.mkdir()
    without, with_ten = probed(LOAD, str(empty)), probed(LOAD, str(tmp_path))
    assert int(with_ten[0][1]) == int(without[0][1]) + 10
    assert min(float(words[0]) for words in with_ten) - min(float(words[0]) for words in without) < 0.1


def test_the_pytest_plugin_is_light() -> None:
    code = "import sys, tickertape.testing.pytest_plugin; print(*{'torch', 'transformers', 'numpy'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == ""
