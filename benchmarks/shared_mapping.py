"""One copy per node: what the second and every further process over the same weights costs.

First processes that only map and touch a file of the store, 2 to 8 of them at once over the same snapshot: bytes read
from the disk, major faults, the sum of their shares (Pss) of the mapping against the file, bytes hashed to get there.
Then real servers over one store, 2 and 3 of them: what their workers' mappings come to, and what they read.

    python benchmarks/shared_mapping.py [--quick] [--size-mib 512] [--store DIR]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from memory import mappings, totals
from report import Figure, publish
from start import until_ready

from tickertape.plugins.sources.directory import DirectorySource
from tickertape.testing.models import write_llama
from tickertape.testing.processes import Server, command_line
from tickertape.testing.tokenizers import write_byte_level
from tickertape.weights.mapping import MappedWeights
from tickertape.weights.materialize import materialize
from tickertape.weights.objects import DigestWriter
from tickertape.weights.prefault import prefault
from tickertape.weights.store import Recipe, Store
from tickertape.weights.writer import write_tensors

MIB: Final = 1 << 20
RECIPE: Final = Recipe("benchmark", {"what": "shared mapping"})
SLACK: Final = 1.02


class Cost(NamedTuple):
    """Of one process, from before it looks for the snapshot until it has touched every page."""

    read_bytes: int
    major_faults: int
    hashed_bytes: int
    pss_bytes: int


def make_snapshot(store: Store, size_bytes: int) -> Path:
    """A model of one weight file of that size, as an object of the store."""
    with store.workspace(RECIPE) as work:
        rng = np.random.default_rng(0)
        rows = size_bytes // (4096 * 4)
        with DigestWriter(work / "weights") as out:
            pieces = (rng.standard_normal((256, 4096), np.float32)[: min(256, rows - at)] for at in range(0, rows, 256))
            write_tensors(out, {"w": ("F32", (rows, 4096))}, pieces)
        store.objects.adopt(out.path, out.sha256)
        return store.publish(RECIPE, {"model.safetensors": out.sha256}).path


class CountingDigest:
    """A sha256 that counts what is fed to it, over all of them."""

    num_bytes = 0
    _make = staticmethod(hashlib.sha256)

    def __init__(self, data: bytes = b"") -> None:
        self._digest = self._make(data)
        self.hexdigest = self._digest.hexdigest

    def update(self, data: Any) -> None:
        CountingDigest.num_bytes += len(data)
        self._digest.update(data)


def child(root: str) -> None:
    """What a worker does, and no more: finds, maps, prefaults, touches; then says what it cost, and waits."""
    hashlib.sha256 = CountingDigest  # type: ignore[assignment]
    before, faults = disk_bytes("self"), resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    snapshot = Store(Path(root)).find(RECIPE)
    assert snapshot is not None
    weights = MappedWeights(snapshot.path)
    prefault(weights.mappings, 1 << 40, lambda _: None)
    total = sum(float(weights.open(name).reshape(-1)[::1024].sum()) for name in weights.names())
    after = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    print(json.dumps([disk_bytes("self") - before, after - faults, CountingDigest.num_bytes, total]), flush=True)
    sys.stdin.readline()  # all have mapped it now
    print(mapped_share(os.getpid()), flush=True)
    sys.stdin.read()


def disk_bytes(pid: int | str) -> int:
    """What the disk was read for."""
    fields = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(fields["read_bytes"])


def mapped_share(pid: int) -> int:
    """Pss of the mapped weights."""
    return sum(totals(lines).get("Pss", 0) for lines in mappings(pid) if "/objects/" in lines[0])


def cached_bytes(path: Path) -> int:
    """Of a file in the page cache, as fincore sees it."""
    answer = subprocess.check_output(["fincore", "--bytes", "--noheadings", "--output", "RES", str(path)], text=True)
    return int(answer)


def processes(root: Path, number: int) -> list[Cost]:
    with ExitStack() as stack:
        command = [sys.executable, __file__, "--child", str(root)]
        started = [
            stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            for _ in range(number)
        ]
        said = [json.loads(line_of(process)) for process in started]
        for process in started:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        shares = [int(line_of(process)) for process in started]
        for process in started:
            assert process.stdin is not None
            process.stdin.close()
        assert len({sums for *_, sums in said}) == 1, "they do not see the same weights"
        return [
            Cost(read, faults, hashed, share) for (read, faults, hashed, _), share in zip(said, shares, strict=True)
        ]


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "a process ended early"
    return line


def servers(model: Path, store: Path, number: int) -> tuple[int, int, int, int]:
    """Size of the mapped files, the workers' shares of them together, what those after the first read from the disk,
    and their private bytes (each)."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        flags = ["--port", "0", "--backend", "reference", "--store", str(store), "--kv-cache-bytes", "16MiB"]
        workers: list[int] = []
        for index in range(number):
            server = Server([f"m=file://{model}", "--dtype", "float32", *flags], log=directory / f"log{index}")
            stack.callback(server.kill)
            until_ready(server)
            workers += [pid for pid in server.children() if "tickertape.worker" in command_line(pid)]
        files = {line[0].split(maxsplit=5)[5] for line in mappings(workers[0]) if "/objects/" in line[0]}
        size = sum(Path(file).stat().st_size for file in files)
        private = [totals(Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]) for pid in workers]
        return (
            size,
            sum(map(mapped_share, workers)),
            sum(map(disk_bytes, workers[1:])),
            max(each["Private_Clean"] + each["Private_Dirty"] for each in private),
        )


def figures_of_processes(root: Path, size_bytes: int, counts: Sequence[int]) -> list[Figure]:
    store = Store(root)
    path = (make_snapshot(store, size_bytes) / "model.safetensors").resolve()
    size = path.stat().st_size
    processes(root, 1)  # the first one has it in memory
    figures = [Figure("shared.cached", round(cached_bytes(path) / size, 3), "of the file", 1.0, "higher", "fincore")]
    for number in counts:
        processes(root, 1)  # the kernel may have dropped some of it since
        costs = processes(root, number)
        name = f"shared.{number}"
        figures += [
            Figure(f"{name}.read", sum(cost.read_bytes for cost in costs), "bytes", 0.0, what="from the disk, all"),
            Figure(f"{name}.major_faults", sum(cost.major_faults for cost in costs), "faults", 0.0),
            Figure(f"{name}.hashed", sum(cost.hashed_bytes for cost in costs), "bytes", 0.0),
            Figure(f"{name}.pss", round(sum(cost.pss_bytes for cost in costs) / size, 4), "of the file", SLACK),
        ]
    return figures


def figures_of_servers(root: Path, counts: Sequence[int]) -> list[Figure]:
    model, store = root / "model", root / "servers"
    model.mkdir()
    write_byte_level(model)
    write_llama(model, dtype="float16", hidden_size=512, intermediate_size=2048, num_hidden_layers=8, vocab_size=512)
    materialize(
        f"file://{model}",
        store=Store(store),
        sources={"file": DirectorySource()},
        report=lambda _: None,
        dtype="float32",
    )
    figures = []
    for number in counts:
        size, share, read, private = servers(model, store, number)
        name = f"servers.{number}"
        figures += [
            Figure(f"{name}.pss", round(share / size, 4), "of the file", SLACK, what=f"{size / MIB:.0f} MiB mapped"),
            Figure(f"{name}.read", round(read / size, 4), "of the file", 0.001, what="by the workers after the first"),
            Figure(f"{name}.private", round(private / MIB, 1), "MiB", what="of a worker: interpreter, KV, workspace"),
        ]
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 and 8 processes, 2 servers, 128 MiB")
    parser.add_argument("--size-mib", type=int, help="of the file that processes map; default 512")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child is not None:
        child(options.child)
        return
    size_bytes = (options.size_mib or (128 if options.quick else 512)) * MIB
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        figures = figures_of_processes(root / "processes", size_bytes, (2, 8) if options.quick else range(2, 9))
        figures += figures_of_servers(root, (2,) if options.quick else (2, 3))
    publish("processes over one copy of the weights", figures)


if __name__ == "__main__":
    main()
