"""The plugin host: what loads, what does not and says why, and which backend serves a model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, distributions
from pathlib import Path

import pytest

from tickertape.core.backend import load_factory
from tickertape.core.errors import PluginError, StartupError
from tickertape.plugins import ModelSpec
from tickertape.plugins.manager import PluginRecord, Plugins

BUILTIN = ("directory", "reference", "scripted", "wheel")
HEAD = "from tickertape.plugins import Backend, hookimpl\nAPI = (1, 0)\n"
LLAMA = ModelSpec(name="m", path="", architecture="LlamaForCausalLM", config={}, max_model_len=64, vocab_size=8)

GOOD = """
from tickertape.plugins import Backend, hookimpl
API = (1, 0)
@hookimpl
def register_backends(register):
    register(Backend(name="{name}", kind="runner", factory="{name}_plugin:make"))
"""


class Environment:
    """An import path of its own. `install` adds a distribution with one plugin; `found` lists what a host would find
    there, the plugins of BUILTIN included."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def install(self, name: str, source: str = GOOD, *, version: str = "1.2") -> None:
        (self.root / f"{name}_plugin.py").write_text(source.replace("{name}", name))
        info = self.root / f"{name}_dist-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-dist\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[tickertape]\n{name} = {name}_plugin\n")

    def found(self) -> list[EntryPoint]:
        return [
            point
            for distribution in distributions()
            if distribution.name == "tickertape" or str(distribution.locate_file("")) == str(self.root)
            for point in distribution.entry_points.select(group="tickertape")
            if distribution.name != "tickertape" or point.name in BUILTIN
        ]


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Environment]:
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield Environment(tmp_path)
    for name in set(sys.modules) - before:
        if name.endswith("_plugin") or name.startswith("tickertape_plugin_"):
            del sys.modules[name]


def record(plugins: Plugins, name: str) -> PluginRecord:
    [found] = [record for record in plugins.records if record.name == name]
    return found


def test_built_in_plugins_come_through_entry_points() -> None:
    plugins = Plugins.load(strict=True)
    assert set(BUILTIN) <= {r.name for r in plugins.records if r.distribution == "tickertape"}
    reference = record(plugins, "reference")
    assert reference.state == "loaded"
    assert reference.api == (1, 0)
    assert reference.hooks == ("register_backends",)
    assert {"reference", "scripted"} <= set(plugins.backends)
    assert {"file", "wheel"} <= set(plugins.sources)


def test_an_installed_plugin_is_loaded(environment: Environment) -> None:
    environment.install("mine", version="3.1")
    plugins = Plugins.load(found=environment.found())
    assert plugins.backend("mine").factory == "mine_plugin:make"
    assert record(plugins, "mine") == PluginRecord(
        name="mine",
        distribution="mine-dist",
        version="3.1",
        state="loaded",
        api=(1, 0),
        hooks=("register_backends",),
        registered={"backends": ("mine",)},
    )


FAULTS = {
    "import": ("import a_library_nobody_has", "import", "ModuleNotFoundError: No module named 'a_library_nobody_has'"),
    "syntax": ("def (:", "import", "SyntaxError: invalid syntax"),
    "exit": ("raise SystemExit('no licence')", "import", "SystemExit: no licence"),
    "no version": ("x = 1", "version", "it declares no API = (major, minor); this host speaks 1.0"),
    "odd version": ("API = '1.0'", "version", "it declares no API = (major, minor); this host speaks 1.0"),
    "newer minor": ("API = (1, 1)", "version", "it needs API 1.1, this host speaks 1.0"),
    "other major": ("API = (2, 0)", "version", "it needs API 2.0, this host speaks 1.0"),
    "unknown hook": (HEAD + "@hookimpl\ndef register_backend(register): ...", "register", "register_backend"),
    "unknown argument": (HEAD + "@hookimpl\ndef register_backends(registry): ...", "register", "registry"),
    "raises": (HEAD + "@hookimpl\ndef register_backends(register): 1 / 0", "register_backends", "ZeroDivisionError"),
    "no record": (
        HEAD + "@hookimpl\ndef register_backends(register): register('mine')",
        "register_backends",
        "register_backends takes Backend records, not str",
    ),
    "kind": (
        HEAD + "@hookimpl\ndef register_backends(register): register(Backend(name='b', kind='model', factory='a:b'))",
        "register_backends",
        "kind 'model' is none of",
    ),
    "factory": (
        HEAD + "@hookimpl\ndef register_backends(register): register(Backend(name='b', kind='runner', factory='a.b'))",
        "register_backends",
        "factory 'a.b' is not 'package.module:name'",
    ),
    "nameless": (
        HEAD + "@hookimpl\ndef register_backends(register): register(Backend(name='', kind='runner', factory='a:b'))",
        "register_backends",
        "needs a name",
    ),
    "no scheme": (
        HEAD + "@hookimpl\ndef register_weight_sources(register): register(object())",
        "register_weight_sources",
        "names no schemes",
    ),
}


@pytest.mark.parametrize(("source", "stage", "message"), FAULTS.values(), ids=FAULTS)
def test_a_broken_plugin_costs_one_record(environment: Environment, source: str, stage: str, message: str) -> None:
    environment.install("broken", source)
    environment.install("good")
    plugins = Plugins.load(found=environment.found())
    failed = record(plugins, "broken")
    assert (failed.state, failed.stage) == ("failed", stage)
    assert message in failed.error
    assert "\n" not in failed.error
    assert list(plugins.backends) == ["reference", "scripted", "good"]
    assert all(record(plugins, name).state == "loaded" for name in BUILTIN)


def test_a_plugin_that_fails_late_leaves_nothing_behind(environment: Environment) -> None:
    later = "\n@hookimpl\ndef register_weight_sources(register): raise RuntimeError('late')"
    environment.install("half", HEAD + _registers("half") + later)
    plugins = Plugins.load(found=environment.found())
    assert record(plugins, "half").stage == "register_weight_sources"
    assert "half" not in plugins.backends


@pytest.mark.parametrize("body", ["    {}", "    try: {}\n    except Exception: pass"], ids=["raised", "swallowed"])
def test_a_name_that_is_taken_is_refused(environment: Environment, body: str) -> None:
    register = "register(Backend(name='reference', kind='runner', factory='usurper:make'))"
    environment.install("a_usurper", HEAD + "@hookimpl\ndef register_backends(register):\n" + body.format(register))
    plugins = Plugins.load(found=environment.found())
    assert record(plugins, "a_usurper").error == "backend 'reference' is already registered by plugin 'reference'"
    assert plugins.backend("reference").factory.startswith("tickertape.")


def test_a_scheme_that_is_taken_is_refused(environment: Environment) -> None:
    source = "\nclass Source:\n    name, schemes = 's', ('s', 'file')\n"
    environment.install(
        "pirate", HEAD + source + "@hookimpl\ndef register_weight_sources(register): register(Source())"
    )
    plugins = Plugins.load(found=environment.found())
    assert record(plugins, "pirate").error == "weight source 'file' is already registered by plugin 'directory'"
    assert "s" not in plugins.sources


def test_strict_mode_raises_for_the_first_failure(environment: Environment) -> None:
    environment.install("broken", "raise ValueError('two\\nlines')")
    with pytest.raises(PluginError, match=r"^plugin 'broken' failed at import: ValueError: two lines$"):
        Plugins.load(found=environment.found(), strict=True)


def test_blocked_plugins_are_not_imported(environment: Environment) -> None:
    environment.install("loud", "raise RuntimeError('imported')")
    plugins = Plugins.load(found=environment.found(), block=["loud", "scripted"])
    assert record(plugins, "loud").state == record(plugins, "scripted").state == "blocked"
    assert list(plugins.backends) == ["reference"]


def test_an_allow_list_is_about_strangers(environment: Environment) -> None:
    environment.install("mine")
    environment.install("other")
    plugins = Plugins.load(found=environment.found(), allow=["mine", "absent"])
    assert list(plugins.backends) == ["reference", "scripted", "mine"]
    assert record(plugins, "other").state == "blocked"
    assert (record(plugins, "absent").stage, record(plugins, "absent").error) == (
        "discover",
        "allowed, but not installed",
    )


def test_single_files_of_a_directory_are_plugins(environment: Environment, tmp_path: Path) -> None:
    directory = tmp_path / "plugins"
    directory.mkdir()
    (directory / "b_file.py").write_text(
        HEAD
        + "@hookimpl\ndef register_backends(register):\n"
        + "    register(Backend(name='filed', kind='runner', factory=f'{__name__}:make'))\n"
        + "def make(spec, options): return 'made'\n"
    )
    (directory / "a_broken.py").write_text("1 / 0")
    (directory / "_private.py").write_text("raise SystemExit")
    (directory / "json.py").write_text("API = (1, 0)")
    plugins = Plugins.load(found=environment.found(), directory=directory)
    assert load_factory(plugins.backend("filed"))(LLAMA, None) == "made"  # type: ignore[arg-type]
    assert record(plugins, "a_broken").error == "ZeroDivisionError: division by zero"
    assert record(plugins, "json").state == "loaded"
    import json

    assert hasattr(json, "loads"), "a plugin's file took the place of a module"
    assert "_private" not in {r.name for r in plugins.records}


def test_a_plugins_directory_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="no such plugins directory") as caught:
        Plugins.load(directory=tmp_path / "absent")
    assert caught.value.code == "PathNotFound"


def test_an_unknown_backend_names_those_there_are(environment: Environment) -> None:
    environment.install("broken", "1 / 0")
    plugins = Plugins.load(found=environment.found())
    with pytest.raises(PluginError, match=r"no backend 'none'; there are: reference, scripted$"):
        plugins.backend("none")
    with pytest.raises(PluginError, match=r"plugin 'broken' failed import ZeroDivisionError: division by zero$"):
        plugins.backend("broken")


def test_the_most_preferred_backend_that_supports_the_model_is_chosen(environment: Environment) -> None:
    """The first registered among equals; the reference backend after those that are made to be fast."""
    for name, preference in (("anything", 0), ("besides", 0), ("last", -2)):
        record = f"Backend(name='{name}', kind='runner', factory='a:b', preference={preference})"
        environment.install(name, HEAD + f"@hookimpl\ndef register_backends(register): register({record})")
    plugins = Plugins.load(found=environment.found())
    assert plugins.choose(LLAMA).name == "anything"
    assert plugins.choose(LLAMA, "last").name == "last"
    assert Plugins.load(found=environment.found(), block=["anything", "besides"]).choose(LLAMA).name == "reference"
    unknown = ModelSpec(name="m", path="", architecture="Odd", config={}, max_model_len=64, vocab_size=8)
    assert plugins.choose(unknown).name == "anything"
    with pytest.raises(PluginError, match="no backend 'other'"):
        plugins.choose(LLAMA, "other")


def test_a_model_nobody_supports_gets_every_reason(environment: Environment) -> None:
    shy = "def shy(spec): raise KeyError('layers')\n"
    register = "register(Backend(name='shy', kind='runner', factory='a:b', supports=shy))"
    environment.install("shy", HEAD + shy + f"@hookimpl\ndef register_backends(register): {register}")
    plugins = Plugins.load(found=environment.found())
    unknown = ModelSpec(name="m", path="", architecture="Odd", config={}, max_model_len=64, vocab_size=8)
    with pytest.raises(StartupError) as caught:
        plugins.choose(unknown)
    assert caught.value.code == "UnsupportedArchitecture"
    assert caught.value.message == (
        "no backend serves m (Odd): scripted: it plays ScriptedForCausalLM only; shy: its supports() raised KeyError: "
        "'layers'; reference: it computes LlamaForCausalLM, MistralForCausalLM, MinistralForCausalLM only"
    )
    with pytest.raises(StartupError, match=r"no backend serves m \(Odd\): scripted: it plays"):
        plugins.choose(unknown, "scripted")


def _registers(name: str) -> str:
    record = f"Backend(name='{name}', kind='runner', factory='a:b')"
    return f"@hookimpl\ndef register_backends(register): register({record})"
