"""`tickertape weights`: every command on small stores, as text for people and as JSON for scripts."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from tests.weights.conftest import Models
from tickertape.__main__ import main
from tickertape.weights.holds import alone
from tickertape.weights.pins import Pins
from tickertape.weights.store import Recipe, Store
from tickertape.weights.uris import public

KIB = 1024
COMMIT = hashlib.sha1(b"a commit").hexdigest()
Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TICKERTAPE_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def run(root: Path) -> Run:
    def run(*arguments: str, status: int = 0) -> Result:
        result = CliRunner().invoke(main, ["weights", arguments[0], "--store", str(root), *arguments[1:]])
        assert result.exit_code == status, result.output + result.stderr
        if "--json" not in arguments:
            assert max((len(line) for line in result.stdout.splitlines()), default=0) <= 80
        return result

    return run


def content(letter: str, kib: int) -> bytes:
    return letter.encode() * (kib * KIB)


def put(root: Path, recipe: Recipe, files: dict[str, bytes], days: float = 0.0) -> str:
    store, digests = Store(root), {}
    for name, data in files.items():
        with store.workspace(recipe) as work:
            (work / "draft").write_bytes(data)
            digests[name] = hashlib.sha256(data).hexdigest()
            store.objects.adopt(work / "draft", digests[name])
    snapshot = store.publish(recipe, digests)
    store.close()
    then = time.time() - days * 86400
    os.utime(root / "used" / snapshot.path.name, (then, then))
    return snapshot.path.name


def fetched(uri: str, revision: str = COMMIT) -> Recipe:
    return Recipe("fetch", {"uri": uri, "revision": revision})


@pytest.fixture
def filled(root: Path) -> dict[str, str]:
    """Two models that share a file, and something that was made from the second."""
    one = put(root, fetched("hf://org/one"), {"w": content("a", 8), "shared": content("s", 2)}, 40)
    two = put(root, fetched("hf://org/two", ""), {"w": content("b", 16), "shared": content("s", 2)}, 3)
    made = Recipe("cast", {"file": hashlib.sha256(content("b", 16)).hexdigest(), "to": "float16"})
    return {"one": one, "two": two, "cast": put(root, made, {"w": content("c", 4)}, 2)}


def listed(run: Run) -> dict[str, dict[str, Any]]:
    return {model["model"]: model for model in json.loads(run("list", "--json").stdout)}


def test_list(run: Run, root: Path, filled: dict[str, str]) -> None:
    Pins(root).add(filled["one"], "hf://org/one", COMMIT)
    user = Store(root)
    assert user.find(fetched("hf://org/two", ""))
    lines = run("list").stdout.splitlines()
    assert lines == [
        "hf://org/two",
        "  22.0 KiB    3 files  just now          in use",
        "hf://org/one",
        f"  10.0 KiB    2 files  40 days ago       pinned, revision {COMMIT[:12]}",
    ]
    assert max(map(len, lines)) <= 80
    user.close()
    model = listed(run)["hf://org/two"]
    assert (model["size_bytes"], model["num_files"], model["in_use"], model["pinned"]) == (22 * KIB, 3, False, False)
    assert model["key"] == filled["two"]


def test_an_empty_store(run: Run, root: Path) -> None:
    assert run("list").stderr.startswith("no models in /")
    assert run("list", "--json").stdout == "[]\n"
    assert "0 B in all" in run("du").stdout
    assert "0 files, 0 B read" in run("verify").stdout
    assert not root.exists()


def test_a_store_that_is_a_file(run: Run, root: Path, tmp_path: Path) -> None:
    root.write_text("")
    commands = [["list"], ["du"], ["verify"], ["prune"], ["pin", "x"], ["unpin", "x"], ["pull", "x"], ["serve"]]
    for command in commands:
        done = run(*command, status=1)
        assert (done.stdout, done.stderr) == ("", f"tickertape: not a directory: {root}\n")


def test_du(run: Run, root: Path, filled: dict[str, str]) -> None:
    partial = root / "partial" / ("f" * 64)
    partial.mkdir(parents=True)
    (partial / "data").write_bytes(bytes(8 * KIB))
    with (partial / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lines = run("du").stdout.splitlines()
        fields = json.loads(run("du", "--json").stdout)
    assert lines[:-1] == [
        "       own      shared  snapshot      made by",
        "hf://org/two",
        f"  16.0 KiB     2.0 KiB  {filled['two'][:12]}  fetch",
        f"   4.0 KiB         0 B  {filled['cast'][:12]}  cast",
        f"hf://org/one at {COMMIT[:12]}",
        f"   8.0 KiB     2.0 KiB  {filled['one'][:12]}  fetch",
        "partial downloads",
        "   8.0 KiB  1, 1 in use",
    ]
    assert lines[-1].startswith("38.0 KiB in all, each file counted once; ")
    assert fields["size_bytes"] == 38 * KIB
    assert [left["in_use"] for left in fields["leftovers"]] == [True]
    snapshots = {snapshot["id"]: snapshot for snapshot in fields["snapshots"]}
    assert snapshots[filled["cast"]]["models"] == [filled["two"]]
    assert (snapshots[filled["one"]]["own_bytes"], snapshots[filled["one"]]["shared_bytes"]) == (8 * KIB, 2 * KIB)


@pytest.mark.parametrize("spelling", ["hf://org/one", "org/one", "one", "{key}", "{short}"])
def test_pin_and_unpin(run: Run, root: Path, filled: dict[str, str], spelling: str) -> None:
    name = spelling.format(key=filled["one"], short=filled["one"][:8])
    assert run("pin", name).stdout == f"pinned hf://org/one at {COMMIT}\n"
    assert listed(run)["hf://org/one"]["pinned"]
    run("prune", "--to", "0", status=1)
    assert set(listed(run)) == {"hf://org/one"}
    assert run("unpin", name).stdout == "unpinned hf://org/one\n"
    assert run("unpin", name).stdout == "not pinned: hf://org/one\n"
    run("prune", "--to", "0")
    assert listed(run) == {}


def test_what_is_being_removed_is_not_pinned(run: Run, root: Path, filled: dict[str, str]) -> None:
    gone = []
    with alone(root):  # as a collector that removes it
        pinning = threading.Thread(target=lambda: gone.append(run("pin", "hf://org/one", status=1)))
        pinning.start()
        pinning.join(0.5)
        shutil.rmtree(root / "snapshots" / filled["one"])
        (root / "snapshots" / f"{filled['one']}.json").unlink()
    pinning.join()
    assert gone[0].stderr == "tickertape: hf://org/one is not in the store\n"
    assert not Pins(root).keys()


def test_a_uri_with_a_secret_names_what_was_fetched_by_it_and_is_not_said_again(run: Run, root: Path) -> None:
    uri = "https://me:hunter2@host/m/?sig=hunter2"
    inputs = {"uri": public(uri), "revision": "r", "uri_sha256": hashlib.sha256(uri.encode()).hexdigest()}
    put(root, Recipe("fetch", inputs), {"w": content("a", 1)})
    assert run("pin", uri).stdout == "pinned https://host/m/ at r\n"
    other = uri.replace("sig=hunter2", "sig=hunter3")
    assert run("unpin", other, status=1).stderr == "tickertape: https://host/m/ is not in the store\n"
    assert run("unpin", "https://host/m/").stdout == "unpinned https://host/m/\n"


def test_a_model_that_is_not_there(run: Run, filled: dict[str, str]) -> None:
    for command in ("pin", "unpin", "verify"):
        assert run(command, "hf://org/three", status=1).stderr == "tickertape: hf://org/three is not in the store\n"


def test_a_name_that_two_models_have(run: Run, root: Path) -> None:
    for owner in ("a", "b"):
        put(root, fetched(f"hf://{owner}/same"), {"w": content(owner, 1)})
    assert run("pin", "same", status=1).stderr == "tickertape: same may be hf://a/same or hf://b/same\n"


def test_prune_to_a_size(run: Run, filled: dict[str, str]) -> None:
    expected = f"   8.0 KiB  fetch {filled['one'][:12]}  hf://org/one\n8.0 KiB would be removed, 22.0 KiB stay\n"
    assert run("prune", "--to", "25KiB", "--dry-run").stdout == expected
    assert len(listed(run)) == 2
    assert run("prune", "--to", "25KiB").stdout == expected.replace("would be", "were").replace("stay", "are left")
    assert set(listed(run)) == {"hf://org/two"}
    assert run("prune", "--to", "25KiB").stdout == "0 B were removed, 22.0 KiB are left\n"


def test_prune_by_age(run: Run, filled: dict[str, str]) -> None:
    report = json.loads(run("prune", "--unused-for", "30d", "--json").stdout)
    assert [(item["kind"], item["name"]) for item in report["removed"]] == [("snapshot", filled["one"])]
    assert report["freed_bytes"] == 8 * KIB
    # The model counts as used when what was made from it was.
    assert json.loads(run("prune", "--unused-for", "60h", "--json").stdout)["removed"] == []
    assert len(json.loads(run("prune", "--unused-for", "1d", "--json").stdout)["removed"]) == 2


def test_prune_what_was_broken_off_and_garbage(run: Run, root: Path, filled: dict[str, str]) -> None:
    (root / "partial" / ("f" * 64)).mkdir(parents=True)
    (root / "tmp" / "0.dead").mkdir(parents=True)
    store = Store(root)
    with store.workspace(fetched("x")) as work:
        (work / "d").write_bytes(content("u", 1))
        store.objects.adopt(work / "d", hashlib.sha256(content("u", 1)).hexdigest())
    store.close()
    assert run("prune").stdout.splitlines()[0] == "       0 B  workspace 0.dead"
    assert (root / "partial" / ("f" * 64)).exists()
    kinds = {item["kind"] for item in json.loads(run("prune", "--partials", "--json").stdout)["removed"]}
    assert kinds == {"partial", "object"}
    assert len(listed(run)) == 2


def test_prune_where_others_may_be(run: Run, filled: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tickertape.weights.holds.is_local", lambda _: False)
    error = run("prune", "--to", "0", status=1).stderr
    assert "shared with other computers" in error
    assert "--force" in error
    assert len(listed(run)) == 2
    run("prune", "--to", "0", "--force")
    assert listed(run) == {}


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--to", "much"), "50GiB"),
        (("--unused-for", "30"), "30d"),
        (("--to", "1GB", "--partials"), "exclude each other"),
        (("--to", "1GB", "--unused-for", "1d"), "exclude each other"),
    ],
)
def test_prune_wrongly(run: Run, arguments: tuple[str, ...], word: str) -> None:
    assert word in run("prune", *arguments, status=2).stderr


def damage(root: Path, data: bytes) -> None:
    """In place, so that it looks as it did: what only reading it through shows."""
    path = Store(root).objects.path(hashlib.sha256(data).hexdigest())
    before = path.stat()
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.write(b"?")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_verify_and_repair(run: Run, root: Path, filled: dict[str, str]) -> None:
    assert "4 files, 30.0 KiB read" in run("verify").stdout
    damage(root, content("s", 2))
    digest = hashlib.sha256(content("s", 2)).hexdigest()
    result = run("verify", "--all", status=1)
    lines = result.stdout.splitlines()
    assert lines[0] == f"corrupt: {digest[:12]}  hf://org/one: shared, hf://org/two: shared"
    assert lines[1].endswith("1 are not (see --repair)")
    Store(root).objects.path(hashlib.sha256(content("a", 8)).hexdigest()).unlink()
    faults = json.loads(run("verify", "org/one", "--json", status=1).stdout)["faults"]
    assert sorted((fault["problem"], *fault["files"]) for fault in faults) == [
        ("corrupt", "hf://org/one: shared", "hf://org/two: shared"),
        ("missing", "hf://org/one: w"),
    ]
    assert run("verify", "--repair").stdout.splitlines()[-1].endswith("2 removed, pull to get them again")
    assert Store(root).find(fetched("hf://org/two", "")) is None  # and so it is fetched again
    put(root, fetched("hf://org/two", ""), {"w": content("b", 16), "shared": content("s", 2)})
    assert "all are what they should be" in run("verify", "org/two").stdout


def test_verify_wrongly(run: Run) -> None:
    assert "exclude each other" in run("verify", "--all", "x", status=2).stderr


AUDITED = """
import os, sys
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
FORBIDDEN = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.utime"}

def audit(event, arguments):
    if event in FORBIDDEN or (event == "open" and arguments[2] & WRITES):
        print("wrote", event, arguments, file=sys.stderr)
        os._exit(9)

sys.dont_write_bytecode = True
sys.addaudithook(audit)
from tickertape.__main__ import main
main(["weights", *sys.argv[1:]])
"""


@pytest.mark.parametrize("command", ["list", "du", "verify"])
def test_looking_writes_nothing(root: Path, filled: dict[str, str], command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AUDITED, command, "--store", str(root)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_a_store_that_cannot_be_written_to(run: Run, filled: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tickertape.weights.pins.write_atomically", refuse)
    monkeypatch.setattr("tickertape.weights.gc.alone", refuse)
    assert "read-only" in run("pin", "one", status=1).stderr
    assert "read-only" in run("prune", "--to", "0", status=1).stderr


def tickertape(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tickertape", "weights", *arguments]


def pulled(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        tickertape("pull", *arguments), capture_output=True, text=True, timeout=60, check=False
    )  # in a process of its own: it configures the logs of the whole


def test_pull_converts_what_a_server_will_want(run: Run, root: Path, tmp_path: Path) -> None:
    tensors = {"a.weight": np.ones((64, 64), np.float32)}
    directory = Models(tmp_path).directory("tiny", {"model.safetensors": tensors})
    options = ("--store", str(root), "--dtype", "bfloat16", "--store-reserve-bytes", "0")
    done = pulled(*options, str(directory))
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith(f"tiny: 8.0 KiB of weights in {root / 'snapshots'}")
    assert second.endswith(" made here")
    again = json.loads(pulled(*options, "--json", f"name={directory}").stdout)
    assert (again["models"][0]["name"], again["num_bytes"]) == ("name", {})
    assert list(listed(run)) == [str(directory)]


def test_pull_says_in_one_line_what_is_wrong(run: Run, root: Path) -> None:
    done = pulled("--store", str(root), "--log-level", "error", "/no/such/model")
    assert (done.returncode, done.stderr) == (1, "tickertape: path not found: /no/such/model\n")
    assert "float12" in run("pull", "--dtype", "float12", "x", status=2).stderr
    assert "--max-origin-mbps" in run("pull", "--max-origin-mbps", "0", "x", status=2).stderr


def test_pull_without_room(root: Path, tmp_path: Path) -> None:
    from tests.weights.conftest import Ggufs

    path = Ggufs(tmp_path / "gguf").write()
    done = pulled("--store", str(root), "--store-reserve-bytes", "1000TiB", "--log-level", "error", str(path))
    assert done.returncode == 1
    assert done.stderr.startswith("tickertape: no space in the weights store: ")
    assert "1000.0 TiB kept in reserve" in done.stderr


def test_serve_gives_peers_what_there_is(root: Path, filled: dict[str, str]) -> None:
    command = tickertape("serve", "--store", str(root), "--log-level", "error")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            first = json.loads(server.stdout.readline())
            assert first["pid"] == server.pid
            digest = hashlib.sha256(content("a", 8)).hexdigest()
            with urllib.request.urlopen(
                f"http://127.0.0.1:{first['peer_port']}/weights/{digest}", timeout=10
            ) as answer:
                assert answer.read() == content("a", 8)
            server.send_signal(signal.SIGTERM)
            _, errors = server.communicate(timeout=20)
        finally:
            server.kill()
    assert server.returncode == 0
    assert errors == "8.0 KiB in 1 upload\n"


def test_manifest(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    printed = CliRunner().invoke(main, ["weights", "manifest", str(tmp_path), "--stdout"])
    assert [file["path"] for file in json.loads(printed.stdout)["files"]] == ["config.json", "model.safetensors"]
    assert not (tmp_path / "manifest.json").exists()
    done = CliRunner().invoke(main, ["weights", "manifest", str(tmp_path)])
    assert (done.exit_code, done.stdout) == (0, f"{tmp_path / 'manifest.json'}: 2 files\n")
    assert (tmp_path / "manifest.json").read_text() == printed.stdout
    assert CliRunner().invoke(main, ["weights", "manifest", str(tmp_path / "none")]).exit_code == 1
    (tmp_path / os.fsdecode(b"no-text-\xff.json")).write_text("{}")
    refused = CliRunner().invoke(main, ["weights", "manifest", str(tmp_path)])
    assert (refused.exit_code, refused.stderr) == (
        1,
        "tickertape: not a name that can be written: 'no-text-\\udcff.json'\n",
    )


@pytest.mark.parametrize("command", ["", "list", "du", "pull", "verify", "pin", "unpin", "prune", "serve", "manifest"])
def test_help_fits_a_terminal(command: str) -> None:
    result = CliRunner().invoke(main, ["weights", *([command] if command else []), "--help"])
    assert result.exit_code == 0
    assert max(len(line) for line in result.output.splitlines()) <= 80
    assert "Exit status" in result.output or command not in ("", "pull", "verify", "prune")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ((), "has neither safetensors nor a GGUF file"),
        (("config.json", "pytorch_model.bin"), "has only pickled weights"),
        (("model.safetensors", "tokenizer.json"), "no config.json, so not a model directory"),
        (("a.gguf",), ""),
        (("a.gguf", "b.gguf"), ""),
    ],
)
def test_a_manifest_is_made_of_models(tmp_path: Path, files: tuple[str, ...], words: str) -> None:
    for name in files:
        (tmp_path / name).write_bytes(b"x")
    done = CliRunner().invoke(main, ["weights", "manifest", str(tmp_path)])
    assert (done.exit_code, (tmp_path / "manifest.json").exists()) == ((1, False) if words else (0, True))
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == bool(words)
