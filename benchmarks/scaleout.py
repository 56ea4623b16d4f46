"""Scale-out on one machine: many pods, probes and an origin of bounded bandwidth, beside huggingface_hub.

Nodes are network namespaces with limited links where this runs as root, loopback addresses otherwise. Sizes and rates
are small; what is published are ratios. docs/scaleout.md says what each figure means. W8 (faults) is
`make test-faults`; W9 (shared memory) is benchmarks/shared_mapping.py.

    python benchmarks/scaleout.py [--quick | --reduced] [--only NAME ...] [--check ID ...] [--picture FILE.svg]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, structs
from report import Figure, publish
from scenarios import answering, holders, kills, mishaps, one_node, stampede, streaming
from scenarios.common import Scale

from tests.sim.timeline import Series, Timeline, draw

__all__ = ["main"]

_MiB = 1 << 20
_WINDOW_S = 10.0


class Sizes(Struct, frozen=True):
    """What a run of everything takes. A stampede's download takes ten startup budgets and more, and much longer than
    the imports of all pods on this machine's processors."""

    stampede: Scale
    unhurried: Scale
    two_slots: Scale
    storm: Scale
    storm_requests: int
    kills: Scale
    num_kills: int
    num_contests: int
    one_node: Scale
    full_rate: Scale
    streaming: Scale
    streaming_s: float
    mishaps: Scale


FULL = Sizes(
    stampede=Scale(24, 6, 400 * _MiB, 2e6, link_mbps=400),
    unhurried=Scale(24, 6, 8 * _MiB, 4e6, link_mbps=400),
    two_slots=Scale(12, 6, 160 * _MiB, 4e6, link_mbps=400),
    storm=Scale(12, 6, 48 * _MiB, 4e6, link_mbps=400),
    storm_requests=16,
    kills=Scale(1, 1, 256 * _MiB, 10e6),
    num_kills=20,
    num_contests=50,
    one_node=Scale(8, 1, 160 * _MiB, 4e6),
    full_rate=Scale(1, 1, 1024 * _MiB, 4e6),
    streaming=Scale(4, 4, 256 * _MiB, 100e6, link_mbps=100),
    streaming_s=15.0,
    mishaps=Scale(1, 1, 16 * _MiB, 4e6),
)
REDUCED = structs.replace(
    FULL,
    stampede=Scale(8, 3, 160 * _MiB, 4e6, link_mbps=400),
    storm=Scale(6, 3, 24 * _MiB, 4e6, link_mbps=400),
    kills=Scale(1, 1, 128 * _MiB, 10e6),
    num_kills=10,
    num_contests=10,
)
QUICK = structs.replace(
    REDUCED,
    stampede=Scale(4, 2, 40 * _MiB, 4e6, link_mbps=400, budget_s=5.0),
    kills=Scale(1, 1, 48 * _MiB, 10e6),
    num_kills=4,
)


class Part(Struct, frozen=True):
    run: Callable[[Path, Sizes], list[Figure]]
    quick: bool = False


PARTS: Mapping[str, Part] = {
    "holders": Part(lambda at, sizes: holders.contest(at, sizes.num_contests)),
    "kills": Part(lambda at, sizes: kills.repeated_kills(at, sizes.kills, sizes.num_kills), quick=True),
    "mishaps": Part(lambda at, sizes: mishaps.mishaps(at, sizes.mishaps)),
    "two-slots": Part(lambda at, sizes: stampede.two_slots(at, sizes.two_slots)),
    "storm": Part(lambda at, sizes: stampede.storm(at, sizes.storm, sizes.storm_requests, _WINDOW_S)),
    "one-node": Part(lambda at, sizes: one_node.together_on_one_node(at, sizes.one_node)),
    "full-rate": Part(lambda at, sizes: answering.full_rate(at, sizes.full_rate)),
    "streaming": Part(lambda at, sizes: streaming.served_while_others_warm(at, sizes.streaming, sizes.streaming_s)),
    "unhurried": Part(lambda at, sizes: stampede.unhurried_control(at, sizes.unhurried)),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="few pods and kills, and only some parts")
    size.add_argument("--reduced", action="store_true", help="fewer pods and kills, smaller models")
    parser.add_argument("--only", nargs="+", choices=["stampede", *PARTS], help="these parts alone")
    parser.add_argument("--check", nargs="+", default=(), help="fail when a figure whose id begins so misses its goal")
    parser.add_argument("--picture", type=Path, help="where to draw the stampede")
    options = parser.parse_args(arguments)
    sizes = QUICK if options.quick else REDUCED if options.reduced else FULL
    wanted = options.only or ["stampede", *(name for name, part in PARTS.items() if part.quick or not options.quick)]
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="scaleout-") as name:
        for part in wanted:
            began = time.monotonic()
            found = _stampede(Path(name) / part, sizes, options.picture) if part == "stampede" else None
            figures += found if found is not None else PARTS[part].run(Path(name) / part, sizes)
            print(f"{part}: {time.monotonic() - began:.0f} s", flush=True)
    publish(f"Scale-out, {'quick' if options.quick else 'reduced' if options.reduced else 'full'}", figures)
    checked = [figure for figure in figures if figure.id.startswith(tuple(options.check))]
    return int(any(figure.goal is not None and not figure.ok for figure in checked))


def _stampede(directory: Path, sizes: Sizes, picture: Path | None) -> list[Figure]:
    """Ours, then the control for as long as ours took, but no longer than it takes to see where that leads."""
    figures, ours = stampede.cold_start(directory / "ours", sizes.stampede)
    seconds = min(ours.timeline.end_s, 5 * sizes.stampede.budget_s)
    more, theirs = stampede.control(directory / "control", sizes.stampede, seconds)
    if picture is not None:
        draw(picture, _panels((ours.timeline, theirs.timeline), sizes.stampede))
    return [*figures, *more]


def _panels(runs: Sequence[Timeline], scale: Scale) -> list[tuple[str, list[Series]]]:
    def series(run: Timeline, points: Sequence[tuple[float, float]], unit: float) -> Series:
        last = points[-1][1] if points else 0.0
        return Series(run.label, tuple((at, value / unit) for at, value in (*points, (run.end_s, last))))

    return [
        (f"Pods ready, of {scale.num_pods}", [series(run, run.ready, 1) for run in runs]),
        ("Bytes sent by the origin, in models", [series(run, run.origin_bytes, scale.size_bytes) for run in runs]),
    ]


if __name__ == "__main__":
    sys.exit(main())
