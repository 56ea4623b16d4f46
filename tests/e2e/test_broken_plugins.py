"""Plugins that break, each in its own way, in one real server: it stays up, says so, and others are not affected."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import pytest

from tickertape.testing.processes import Server, wait_until

Serve = Callable[..., Server]

HEAD = "from tickertape.plugins import Backend, hookimpl\nAPI = (1, 0)\n@hookimpl\n"

BROKEN = {
    "at_import": ("raise OSError('no such device')", "import", "OSError: no such device"),
    "at_version": ("API = (9, 0)", "version", "it needs API 9.0, this host speaks 1.0"),
    "at_register": (HEAD + "def register_backends(register): 1 / 0", "register_backends", "division by zero"),
    "at_startup": (HEAD + "def startup(process): raise KeyError(process)", "startup", "KeyError: 'front'"),
}

OBSERVER = HEAD + "def observe(event): raise RuntimeError('nothing to write to')"

FRAGILE = (
    HEAD
    + """
def register_backends(register):
    register(Backend(name="fragile", kind="runner", factory=f"{__name__}:make", supports=supports))

def supports(spec):
    return None if spec.architecture == "FragileForCausalLM" else "it serves nothing but its own"

def make(spec, options):
    from tickertape.plugins.backends.scripted.runner import ScriptedRunner
    from tickertape.plugins.backends.scripted.script import Script

    class Fragile(ScriptedRunner):
        def forward(self, batch):
            if any(ord("F") in row.tokens for row in batch.rows):
                raise ValueError("forward is broken")
            super().forward(batch)
            self.rows = batch.rows

        def sample(self, masks):
            if any(ord("S") in row.tokens for row in self.rows):
                raise ValueError("sample is broken")
            return super().sample(masks)

    return Fragile(Script.of(spec))
"""
)


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    directory = tmp_path / "plugins"
    directory.mkdir()
    for name, (source, _, _) in BROKEN.items():
        (directory / f"{name}.py").write_text(source)
    (directory / "observer.py").write_text(OBSERVER)
    (directory / "fragile.py").write_text(FRAGILE)
    return directory


@pytest.fixture
def fragile(tiny: Path, tmp_path: Path) -> Path:
    """The scripted model, under an architecture that only the fragile backend takes."""
    directory = copytree(tiny, tmp_path / "fragile")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"architectures": ["FragileForCausalLM"]}))
    return Path(directory)


def test_the_server_stays_up_and_says_what_broke(serve: Serve, plugins: Path, fragile: Path) -> None:
    server = serve(f"fragile={fragile}", "--plugins-dir", str(plugins)).until_ready()
    listed = {each["name"]: each for each in server.client.get("/v1/plugins").json()["data"]}
    for name, (_, stage, error) in BROKEN.items():
        assert (listed[name]["state"], listed[name]["stage"]) == ("failed", stage)
        assert error in listed[name]["error"]
        [line] = [line for line in server.stderr().splitlines() if f"plugin '{name}' failed at {stage}" in line
                  and "front" in line]  # fmt: skip
        assert error.replace("'", "") in line.replace("'", "")
    assert listed["observer"]["state"] == "loaded"

    for prompt, said in (("F", "forward is broken"), ("S", "sample is broken")):
        with server.stream("nap") as unaffected:
            lines = unaffected.iter_lines()
            next(lines)
            failed = server.client.post("/v1/completions", json={"model": "fragile", "prompt": prompt})
            assert (failed.status_code // 100, failed.json()["error"]["type"]) == (5, "server_error")
            assert "broken" not in failed.text
            wait_until(lambda said=said: f"ValueError: {said}" in server.stderr())  # type: ignore[misc]
            assert server.client.get("/livez").status_code == 200
            assert [line for line in lines if line][-1] == "data: [DONE]"
        server.until_ready()  # another worker has come up
        again = server.client.post("/v1/completions", json={"model": "fragile", "prompt": "Q"})
        assert again.json()["choices"][0]["text"] == "The answer."
    metrics = server.client.get("/metrics").text
    assert f'tickertape_plugins{{state="failed"}} {len(BROKEN)}.0' in metrics
    assert 'tickertape_plugin_faults_total{plugin="observer"}' in metrics


def test_a_server_does_not_start_without_its_authentication(serve: Serve, plugins: Path) -> None:
    (plugins / "auth.py").write_text("import a_library_nobody_has")
    server = serve("--plugins-dir", str(plugins), "--auth-plugins", "auth", "--startup-linger-s", "0")
    assert server.wait() == 1
    [line] = [line for line in server.stderr().splitlines() if line.startswith("tickertape: ")]
    assert line.startswith("tickertape: plugin 'auth' must authenticate, and does not; plugin 'auth' failed import")
