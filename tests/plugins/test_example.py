"""The example package keeps to what is promised: the public names of two modules. `make test-example` runs it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import tickertape.plugins
import tickertape.testing

EXAMPLE = Path(__file__).parents[2] / "examples" / "tickertape-plugin-example"
PROMISED = {
    "tickertape.plugins": set(tickertape.plugins.__all__),
    "tickertape.testing": set(tickertape.testing.__all__),
}
FILES = sorted(EXAMPLE.rglob("*.py"))


def used(source: str) -> dict[str, set[str]]:
    """The names of ours that a file imports, by module."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "tickertape":
            found.setdefault(node.module, set()).update(alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.split(".")[0] == "tickertape"]
            found.update({name: {"*"} for name in names})
    return found


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(EXAMPLE)) for path in FILES])
def test_only_public_names_are_used(path: Path) -> None:
    for module, names in used(path.read_text()).items():
        assert names <= PROMISED.get(module, set()), f"{module} is not promised, or not all of {names}"


def test_the_backend_is_about_a_hundred_lines() -> None:
    package = EXAMPLE / "tickertape_plugin_example"
    backend = [package / name for name in ("__init__.py", "runner.py")]
    assert sum(len(path.read_text().splitlines()) for path in backend) <= 100
    assert FILES, "the example is gone"
