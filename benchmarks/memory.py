"""What a worker holds, against what its plan promised; and what a second worker of the same model adds.

A random model of half a gigabyte is served, asked once with a full prompt, and looked at in /proc. The baseline is what
a worker of the same kind holds that serves a model of next to nothing: interpreter, libraries, compiled kernels.
Weights that are mapped count as the plan has them, although all workers share them.

    python benchmarks/memory.py [--quick] [--dtype bfloat16] [--quantization int8]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from report import Figure, publish
from start import until_ready

from tickertape.plugins import BackendOptions, Limits
from tickertape.testing.models import model_spec, write_llama
from tickertape.testing.processes import Server, command_line
from tickertape.testing.tokenizers import write_byte_level

MIB = 1 << 20
KV_BYTES = 64 * MIB
LIMITS = Limits(max_model_len=512, max_num_seqs=8, max_batch_tokens=256, block_tokens=16)
BIG = {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16, "num_key_value_heads": 4,
       "head_dim": 64, "vocab_size": 16_000, "num_hidden_layers": 8}  # fmt: skip
SMALL = {"vocab_size": 512}


class Plan(NamedTuple):
    """`weights_bytes` are mapped, `own_bytes` are private: copies, workspace and the KV pool."""

    weights_bytes: int
    own_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.own_bytes


class Held(NamedTuple):
    """Of one worker."""

    resident_bytes: int
    private_bytes: int
    weights_bytes: int  # of the mapped files
    weights_share_bytes: int  # of those, divided by who else maps them


Workers = tuple[list[Held], Path]


def plan_of(directory: Path, dtype: str) -> Plan:
    """Made in a process of its own: this one is to import no torch."""
    code = "import sys, memory; print(memory.make_plan(*sys.argv[1:]))"
    command = [sys.executable, "-c", code, str(directory), dtype]
    output = subprocess.check_output(command, cwd=Path(__file__).parent, text=True)
    return Plan(*json.loads(output.splitlines()[-1]))


def make_plan(directory: str, dtype: str) -> str:
    from tickertape.plugins.backends.transformers.runner import make

    plan = make(model_spec(Path(directory)), BackendOptions(dtype=dtype)).plan(LIMITS)
    return json.dumps([plan.weight_bytes, plan.private_bytes + plan.workspace_bytes + KV_BYTES])


def workers_of(models: Sequence[str], dtype: str, store: Path, kv_bytes: int, flags: Mapping[str, str]) -> Workers:
    """What the workers hold after a full prompt, and where the model lay that they served."""
    given = {
        **flags, "store": store, "dtype": dtype, "kv-cache-bytes": kv_bytes, "max-model-len": LIMITS.max_model_len,
        "max-num-seqs": LIMITS.max_num_seqs, "max-batch-tokens": LIMITS.max_batch_tokens, "port": 0,
    }  # fmt: skip
    arguments = [*models, *(f"--{name}={value}" for name, value in given.items())]
    with tempfile.TemporaryDirectory() as directory:
        server = Server(arguments, log=Path(directory) / "log")
        try:
            until_ready(server)
            for model in models:
                body = {"model": model.partition("=")[0], "prompt": "x" * 400, "max_tokens": 40, "ignore_eos": True}
                server.client.post("/v1/completions", json=body).raise_for_status()
            workers = [pid for pid in server.children() if "tickertape.worker" in command_line(pid)]
            return [held_by(pid) for pid in workers], weights_path(workers[0])
        finally:
            server.kill()


def held_by(pid: int) -> Held:
    rollup = totals(Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    weights = [line for mapping in mappings(pid) if ".safetensors" in mapping[0] or "/objects/" in mapping[0]
               for line in mapping[1:]]  # fmt: skip
    mapped = totals(weights)
    return Held(
        resident_bytes=rollup["Rss"],
        private_bytes=rollup["Private_Clean"] + rollup["Private_Dirty"],
        weights_bytes=mapped.get("Rss", 0),
        weights_share_bytes=mapped.get("Pss", 0),
    )


def weights_path(pid: int) -> Path:
    return next(Path(mapping[0].split(maxsplit=5)[5]) for mapping in mappings(pid)
                if ".safetensors" in mapping[0] or "/objects/" in mapping[0])  # fmt: skip


def mappings(pid: int) -> list[list[str]]:
    """The lines of each mapping, its head first."""
    found: list[list[str]] = []
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if not line.partition(" ")[0].endswith(":"):
            found.append([])
        found[-1].append(line)
    return found


def totals(lines: Sequence[str]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for line in lines:
        name, _, rest = line.partition(":")
        if rest.endswith(" kB"):
            sums[name] = sums.get(name, 0) + (int(rest.split()[0]) << 10)
    return sums


def write_model(directory: Path, config: Mapping[str, int]) -> Path:
    write_llama(directory, dtype="float32", max_position_embeddings=512, **config)
    write_byte_level(directory)
    return directory


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="float32 only")
    parser.add_argument("--dtype", action="append", help="types to compute in; default: float32, bfloat16")
    parser.add_argument("--quantization", default="none")
    options = parser.parse_args(arguments)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as root:
        store = Path(root) / "store"
        big, small = write_model(Path(root) / "big", BIG), write_model(Path(root) / "small", SMALL)
        for dtype in options.dtype or (["float32"] if options.quick else ["float32", "bfloat16"]):
            figures += figures_of(dtype, big, small, store, {"quantization": options.quantization})
    publish("a random llama of 8 layers and 1024 wide, on CPU", figures)


def figures_of(dtype: str, big: Path, small: Path, store: Path, flags: Mapping[str, str]) -> list[Figure]:
    (idle,), _ = workers_of([f"one={small}"], dtype, store, MIB, flags)
    baseline = idle.resident_bytes
    (first, second), served = workers_of([f"one={big}", f"two={big}"], dtype, store, KV_BYTES, flags)
    plan = plan_of(directory_of(served, big, store), dtype)
    promised = plan.total_bytes * 1.05 + 32 * MIB
    beyond = first.resident_bytes - baseline

    def mib(name: str, value: float, what: str, goal: float | None = None) -> Figure:
        scaled = None if goal is None else round(goal / MIB, 1)
        return Figure(f"memory.{dtype}.{name}", round(value / MIB, 1), "MiB", scaled, what=what)

    share = first.weights_share_bytes + second.weights_share_bytes
    own, own_promised = second.private_bytes - idle.private_bytes, plan.own_bytes * 1.05 + 32 * MIB
    return [
        mib("baseline", baseline, f"interpreter, libraries, kernels; {idle.private_bytes / MIB:.0f} of it private"),
        mib("plan", plan.total_bytes, f"{plan.weights_bytes / MIB:.0f} of it mapped weights"),
        mib("worker", beyond, "resident beyond the baseline", promised),
        mib("second_private", own, "private bytes of a second worker, beyond the baseline's", own_promised),
        mib("weights_pss", share, "both workers' share of the files", plan.weights_bytes * 1.02 + MIB),
    ]


def directory_of(file: Path, given: Path, store: Path) -> Path:
    """The model directory that a mapped file was reached by: the given one, or the snapshot of the store."""
    if not file.is_relative_to(store):
        return given
    links = (store / "snapshots").glob("*/model.safetensors")
    return next(link.parent for link in links if link.resolve() == file and (link.parent / "config.json").exists())


if __name__ == "__main__":
    main()
