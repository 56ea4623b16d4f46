"""The pages on plugins and settings name everything there is, as it is spelled in the code."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import tickertape.plugins
import tickertape.testing
from tickertape.plugins import Capabilities, hookspecs
from tickertape.plugins.hookspecs import API

DOCS = Path(__file__).parents[1] / "docs"
PLUGIN_API = (DOCS / "plugin-api.md").read_text(encoding="utf-8")
TUTORIAL = (DOCS / "writing-a-backend.md").read_text(encoding="utf-8")
EXAMPLE = DOCS.parent / "examples" / "tickertape-plugin-example"

HOOKS = [hook for name in hookspecs.__all__ if hasattr(hook := getattr(hookspecs, name), "tickertape_spec")]
PORTS = [
    port
    for name in tickertape.plugins.__all__
    if inspect.isclass(port := getattr(tickertape.plugins, name)) and getattr(port, "_is_protocol", False)
]


def section(page: str, heading: str) -> str:
    """From a heading to the next one."""
    _, found, rest = page.partition(f"\n{heading}\n")
    assert found, f"no heading {heading!r}"
    return re.split(r"\n#", rest, maxsplit=1)[0]


@pytest.mark.parametrize("hook", HOOKS, ids=[hook.__name__ for hook in HOOKS])
def test_every_hook_is_documented_with_its_arguments(hook: object) -> None:
    assert inspect.isfunction(hook)
    arguments = ", ".join(inspect.signature(hook).parameters)
    assert section(PLUGIN_API, f"### `{hook.__name__}({arguments})`").strip()
    assert hook.__doc__ is not None
    assert re.search(r"Runs? (in|where)|are told in", hook.__doc__), "it does not say in which process it runs"
    table = section(PLUGIN_API, "## Hooks")
    assert f"`{hook.__name__}`" in table


def test_no_hook_is_made_up() -> None:
    documented = re.findall(r"^### `(\w+)\(", PLUGIN_API, re.MULTILINE)
    assert sorted(documented) == sorted(hook.__name__ for hook in HOOKS)


def members(port: type) -> list[tuple[str, list[str] | None]]:
    """The port's own methods with their arguments, and its attributes with None."""
    found: list[tuple[str, list[str] | None]] = []
    for name, value in vars(port).items():
        if name.startswith("_"):
            continue
        if inspect.isfunction(value):
            found.append((name, list(inspect.signature(value).parameters)[1:]))
        elif isinstance(value, property):
            found.append((name, None))
    return found


@pytest.mark.parametrize("port", PORTS, ids=[port.__name__ for port in PORTS])
def test_every_port_is_documented_method_by_method(port: type) -> None:
    text = section(PLUGIN_API, f"### {port.__name__}")
    rows = re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
    expected = [name if arguments is None else f"{name}({', '.join(arguments)})" for name, arguments in members(port)]
    assert sorted(rows) == sorted(expected)


def test_every_capability_is_documented() -> None:
    text = section(PLUGIN_API, "## Capabilities")
    assert {*re.findall(r"`(\w+)`", text)} >= set(Capabilities.__struct_fields__)


def test_every_kit_is_documented() -> None:
    text = section(PLUGIN_API, "## Testing")
    for name in tickertape.testing.__all__:
        if name.endswith(("Conformance", "Subject")):
            assert f"`{name}`" in text


def test_the_changes_end_with_this_version() -> None:
    rows = re.findall(r"^\| (\d{4}-\d\d-\d\d) \| (\d+)\.(\d+) \|", section(PLUGIN_API, "## Changes"), re.MULTILINE)
    assert rows == sorted(rows)
    assert (int(rows[-1][1]), int(rows[-1][2])) == API
    assert PLUGIN_API.startswith(f"# The plugin API, version {API[0]}.{API[1]}\n")


def test_the_rules_in_the_tutorial_are_there() -> None:
    rules = " ".join(name for name in vars(tickertape.testing.RunnerConformance) if name.startswith("test_"))
    for cell in re.findall(r"^\| (`.+?`) \|", TUTORIAL, re.MULTILINE):
        for rule in re.findall(r"`(\w+)`", cell):
            assert rule in rules, f"no rule has {rule} in its name"


def test_links_lead_somewhere() -> None:
    for page in DOCS.glob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_settings_page_is_up_to_date() -> None:
    page = script("make_settings").page()
    assert (DOCS / "settings.md").read_text(encoding="utf-8") == page, "run: python docs/make_settings.py"


async def test_the_page_of_fields_is_up_to_date() -> None:
    page = await script("make_fields").page()
    assert (DOCS / "fields.md").read_text(encoding="utf-8") == page, "run: python docs/make_fields.py"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
