"""Seconds from exec to the first token with an empty store, stage by stage, and again with the model in the store; and
what loading the same weights and a first token take with the page cache warm and cold: a worker of ours, vLLM,
`from_pretrained`.

The large model is random weights behind a local origin, so that the network costs nothing; the demo model comes from
the package index. What is compared runs in processes of its own (loaders.py), imports apart, the median of a few.

    python benchmarks/cold_start.py [--quick]        --quick: the demo model alone
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import httpx
from report import Figure, publish

from tests.sim.files import read_commit
from tests.sim.origin import Origin
from tickertape.testing.processes import Server

HERE: Final = Path(__file__).parent
REPO: Final = "org/random"
SHAPE: Final = ("--layers", "9", "--inner", "5632")  # 2 GB of float32
PATIENCE_S: Final = 600.0
STAGES: Final = {
    "DownloadingOrigin": "fetch",
    "DownloadingPeer": "fetch",
    "Verifying": "verify",
    "Converting": "convert",
    "Casting": "convert",
    "Prefaulting": "load",
    "Loading": "load",
    "Warming": "warm",
}
LOADED: Final = re.compile(r"Loading weights took ([0-9.]+) seconds")
NUM_LOADS: Final = 3
WEIGHTS: Final = "model.safetensors"
VLLM: Final = HERE.parent / ".peers" / "vllm" / "bin" / "python"


def staged(arguments: Sequence[str], environment: Mapping[str, str], directory: Path) -> dict[str, float]:
    """Seconds by stage as /readyz tells them (start: all that is none of the others), of the first token after that,
    and in total."""
    server = Server([*arguments, "--port", "0", "--no-grpc"], log=directory / "log", environment=environment)
    seconds: dict[str, float] = defaultdict(float)
    try:
        since = server.started
        while (answer := server.client.get("/readyz")).status_code != 200:
            now = time.monotonic()
            if now > server.started + PATIENCE_S:
                raise TimeoutError(server.stderr()[-2000:])
            seconds[STAGES.get(answer.json()["reason"], "start")] += now - since
            since = now
            time.sleep(0.005)
        ready_at = time.monotonic()
        model = server.client.get("/v1/models").json()["data"][0]["id"]
        body = {"model": model, "prompt": "Hello", "max_tokens": 1}
        server.client.post("/v1/completions", json=body).raise_for_status()
        seconds["first_token"] = time.monotonic() - ready_at
        seconds["total"] = time.monotonic() - server.started
        return seconds
    except httpx.TransportError as error:
        raise RuntimeError(server.stderr()[-2000:]) from error
    finally:
        server.kill()


def forget(files: Sequence[Path]) -> None:
    """Their pages leave the page cache."""
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def read_all(files: Sequence[Path]) -> None:
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.read(1 << 22):
                pass


def load(name: str, model: Path) -> dict[str, float] | None:
    """What loaders.py measures; `weights` is what vLLM says of its loader alone. None when it is not installed."""
    python = VLLM if name == "vllm" else Path(sys.executable)
    if not python.exists():
        return None
    command = [str(python), str(HERE / "loaders.py"), name, str(model)]
    offline = os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    done = subprocess.run(command, env=offline, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    if alone := LOADED.search(done.stdout + done.stderr):
        found["weights"] = float(alone[1])
    return found


def demo(directory: Path) -> list[Figure]:
    first = staged(["--store", str(directory / "store")], {}, directory)
    again = staged(["--store", str(directory / "store")], {}, directory)
    figures = [Figure(f"demo.cold.{stage}", round(value, 2), "s") for stage, value in first.items()]
    figures.append(Figure("demo.again.total", round(again["total"], 2), "s", what="the store has it"))
    snapshot = _with_tokenizer(directory / "store" / "snapshots")
    return figures + compared("demo", snapshot, snapshot)


def large(directory: Path) -> list[Figure]:
    model = directory / "model"
    tokenizer = _with_tokenizer(directory / "store" / "snapshots")
    write = [sys.executable, str(HERE / "random_model.py"), str(model), "--tokenizer-from", str(tokenizer), *SHAPE]
    subprocess.run(write, check=True)
    with Origin() as origin:
        origin.add(REPO, read_commit(model))
        flags = [f"hf://{REPO}", "--store", str(directory / "store")]
        environment = {"HF_ENDPOINT": origin.url}
        first = staged(flags, environment, directory)
        again = staged(flags, environment, directory)
    figures = [Figure(f"2gb.cold.{stage}", round(value, 2), "s") for stage, value in first.items()]
    figures.append(Figure("2gb.again.total", round(again["total"], 2), "s", what="the store has it"))
    return figures + compared("2gb", _with_file(directory / "store" / "snapshots", model / WEIGHTS), model)


def compared(label: str, snapshot: Path, model: Path) -> list[Figure]:
    """Each loads the same bytes: we from the store, the others from `model`."""
    figures = []
    for name, at in (("tickertape", snapshot), ("transformers", model), ("vllm", model)):
        load(name, at)  # its libraries come into the page cache
        for state, prepare in (("warm", read_all), ("cold", forget)):
            runs = []
            for _ in range(NUM_LOADS):
                prepare([(at / WEIGHTS).resolve()])
                runs.append(load(name, at))
            figures.append(_loads(f"{label}.{state}_cache.{name}", [run for run in runs if run is not None]))
    return figures


def _loads(id: str, runs: Sequence[Mapping[str, float]]) -> Figure:
    """Loading and the token together are what can be compared: who maps the file reads it with the first token."""
    if not runs:
        return Figure(id, None, "s")
    median = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    what = (
        f"load {median['load']:.2f} s, a token {median['first_token']:.2f} s, imports before {median['import']:.1f} s"
    )
    if "weights" in median:
        what += f"; its loader alone {median['weights']:.2f} s"
    total_s = statistics.median(run["load"] + run["first_token"] for run in runs)
    return Figure(id, round(total_s, 2), "s", what=what)


def _with_file(snapshots: Path, file: Path) -> Path:
    """The snapshot that has this file."""
    size = file.stat().st_size
    return next(path.parent for path in sorted(snapshots.glob(f"*/{file.name}")) if path.stat().st_size == size)


def _with_tokenizer(snapshots: Path) -> Path:
    """The demo model, as converted."""
    return next(path.parent for path in sorted(snapshots.glob("*/tokenizer.json")))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the demo model alone")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="cold-start-") as name:
        figures = demo(Path(name))
        if not options.quick:
            figures += large(Path(name))
    publish("Cold start, from exec", figures)


if __name__ == "__main__":
    main()
