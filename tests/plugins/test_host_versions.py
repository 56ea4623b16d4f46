"""A plugin that was built against API 1.0 on two hosts: this one, and one that added an argument and a hook.

The newer host is this package, copied and changed as a later version would change it; both run on their own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest

PACKAGE = Path(__file__).parents[2] / "tickertape"

OLD_PLUGIN = """
from tickertape.plugins import Backend, hookimpl
API = (1, 0)
@hookimpl
def register_backends(register):
    register(Backend(name="old", kind="runner", factory="a:b"))
@hookimpl
def observe(event):
    pass
"""

NEW_PLUGIN = """
from tickertape.plugins import Backend, hookimpl
API = (1, 1)
@hookimpl
def register_backends(register, devices):
    register(Backend(name=f"new on {devices[0]}", kind="runner", factory="a:b"))
@hookimpl
def register_devices(register):
    pass
"""

PROBE = """
import json, sys
from tickertape.plugins.events import StepEvent
from tickertape.plugins.manager import Plugins
from tickertape.core.ports import EngineStats
plugins = Plugins.load(directory=sys.argv[1], found=())
plugins.observers(StepEvent(model="m", duration_s=0.0, stats=EngineStats()))
print(json.dumps({
    "backends": list(plugins.backends),
    "states": {r.name: [r.state, r.error] for r in plugins.records},
    "faults": dict(plugins.faults.counts),
}))
"""

CHANGES = {
    "hookspecs.py": [
        ("API: Final = (1, 0)", "API: Final = (1, 1)"),
        (
            "def register_backends(register: Callable[[Backend], None]) -> None:",
            "def register_backends(register: Callable[[Backend], None], devices: tuple[str, ...]) -> None:",
        ),
        (
            "@hookspec\ndef shutdown(",
            "@hookspec\ndef register_devices(register) -> None:\n    pass\n\n\n@hookspec\ndef shutdown(",
        ),
    ],
    "loader.py": [("(register=register)", "(register=register, devices=('cpu',))")],
}


@pytest.fixture
def newer_host(tmp_path: Path) -> Path:
    """The root of a copy that speaks API 1.1."""
    package = copytree(PACKAGE, tmp_path / "newer" / "tickertape", ignore=ignore_patterns("__pycache__"))
    for name, changes in CHANGES.items():
        path = Path(package) / "plugins" / name
        source = path.read_text()
        for old, new in changes:
            assert source.count(old) == 1, f"{name} no longer holds {old!r} once"
            source = source.replace(old, new)
        path.write_text(source)
    return tmp_path / "newer"


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    directory = tmp_path / "plugins"
    directory.mkdir()
    (directory / "old.py").write_text(OLD_PLUGIN)
    (directory / "new.py").write_text(NEW_PLUGIN)
    return directory


def probe(host: Path, plugins: Path) -> dict[str, object]:
    run = subprocess.run(
        [sys.executable, "-c", PROBE, str(plugins)], cwd=host, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    found: dict[str, object] = json.loads(run.stdout)
    return found


def test_on_this_host_the_old_one_works_and_the_new_one_says_what_it_needs(plugins: Path) -> None:
    found = probe(PACKAGE.parent, plugins)
    assert found["backends"] == ["old"]
    assert found["states"] == {
        "old": ["loaded", ""],
        "new": ["failed", "it needs API 1.1, this host speaks 1.0"],
    }
    assert found["faults"] == {}


def test_on_a_newer_host_both_work(plugins: Path, newer_host: Path) -> None:
    found = probe(newer_host, plugins)
    assert found["backends"] == ["new on cpu", "old"]
    assert found["states"] == {"old": ["loaded", ""], "new": ["loaded", ""]}
    assert found["faults"] == {}
