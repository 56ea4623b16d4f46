"""What clients see: time to first token, inter-token latency, tokens a second; ours and the peers', in the same run.

Every server is asked the same work: chat prompts of about `--prompt-tokens` tokens, each different from its first
word on, `--output-tokens` tokens out, greedy, streamed. Closed loop: N clients that ask again as soon as they are
answered. Open loop: Poisson arrivals. Rounds alternate between the servers, so that a drift of the machine's speed
hits all of them; medians over the rounds are printed, and ratios where there is a peer.

    python benchmarks/serve.py [--quick] [--model DIR] [--peer transformers] [--streams 1,8,32] [--rate 2]

Everything runs on the loopback of one machine: the load generator takes its share of the cores from every server
alike.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from typing import Any

from load import Target, Trace, closed_loop, open_loop, prompt_of
from msgspec import Struct
from report import Figure, publish
from servers import PEERS, peer_command, running, tickertape_command

Load = Callable[[Target, Sequence[str]], Coroutine[Any, Any, list[Trace]]]
TEMPLATE_TOKENS = 31  # what the demo model's chat template adds to a prompt


class Round(Struct):
    """One load on one server."""

    ttft_p50_s: float
    ttft_p99_s: float
    gap_p50_s: float
    gap_p99_s: float
    tokens_per_s: float
    num_errors: int

    @classmethod
    def of(cls, traces: Sequence[Trace]) -> Round:
        good = [trace for trace in traces if trace.error is None]
        if not good:
            raise RuntimeError(f"every request failed: {traces[0].error}")
        ttfts = sorted(trace.ttft_s for trace in good)
        gaps = sorted(gap for trace in good for gap in trace.gaps_s) or [0.0]
        wall_s = max(trace.ended_s for trace in good) - min(trace.started_s for trace in good)
        return cls(
            ttft_p50_s=statistics.median(ttfts),
            ttft_p99_s=ttfts[int(len(ttfts) * 0.99)],
            gap_p50_s=statistics.median(gaps),
            gap_p99_s=gaps[int(len(gaps) * 0.99)],
            tokens_per_s=sum(trace.num_tokens for trace in good) / wall_s,
            num_errors=len(traces) - len(good),
        )


def median_round(rounds: Sequence[Round]) -> Round:
    return Round(*(statistics.median(getattr(r, field) for r in rounds) for field in Round.__struct_fields__))


def measure(
    targets: dict[str, Target], load: Load, *, num_prompts: int, num_rounds: int, num_words: int
) -> dict[str, Round]:
    """The median round of each server; rounds alternate, and the first of each (warm-up) is not counted."""
    rounds: dict[str, list[Round]] = {name: [] for name in targets}
    number = 0
    for turn in range(num_rounds + 1):
        for name, target in targets.items():
            prompts = [prompt_of(number + i, num_words) for i in range(num_prompts if turn else min(4, num_prompts))]
            number += num_prompts
            traces = asyncio.run(load(target, prompts))
            if turn:
                rounds[name].append(Round.of(traces))
    return {name: median_round(results) for name, results in rounds.items()}


def figures_of(label: str, results: dict[str, Round], goal_ratio: float | None) -> list[Figure]:
    figures = []
    for name, result in results.items():
        prefix = f"serve.{label}.{name}"
        figures += [
            Figure(f"{prefix}.tokens_per_s", result.tokens_per_s, "tok/s", better="higher"),
            Figure(f"{prefix}.ttft_p50", result.ttft_p50_s * 1e3, "ms"),
            Figure(f"{prefix}.ttft_p99", result.ttft_p99_s * 1e3, "ms"),
            Figure(f"{prefix}.gap_p50", result.gap_p50_s * 1e3, "ms"),
            Figure(f"{prefix}.gap_p99", result.gap_p99_s * 1e3, "ms"),
            Figure(f"{prefix}.errors", result.num_errors, "requests", 0.0),
        ]
        if name != "tickertape":
            ratio = results["tickertape"].tokens_per_s / result.tokens_per_s
            figures.append(
                Figure(
                    f"serve.{label}.ratio.{name}", ratio, "x", goal_ratio, better="higher", what="tokens/s, ours/peer"
                )
            )
    return figures


def loads(options: argparse.Namespace) -> dict[str, tuple[Load, int]]:
    """By label: the load, and how many prompts a round of it has."""

    def closed(num_streams: int) -> Load:
        return lambda target, prompts: closed_loop(target, prompts, num_streams, options.output_tokens)

    def opened(target: Target, prompts: Sequence[str]) -> Coroutine[Any, Any, list[Trace]]:
        return open_loop(target, prompts, options.rate, options.output_tokens, seed=len(prompts))

    found: dict[str, tuple[Load, int]] = {f"closed{n}": (closed(n), n * options.turns) for n in options.streams}
    if options.rate:
        found[f"open{options.rate:g}"] = (opened, max(4, int(options.rate * options.open_s)))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    if options.quick:
        options.streams, options.num_rounds, options.turns, options.open_s = [1, 8], 1, 1, 4.0
    num_words = max(1, options.prompt_tokens - TEMPLATE_TOKENS)
    figures: list[Figure] = []
    with ExitStack() as stack:
        serve = tickertape_command(options.model, ["--dtype", options.dtype, *options.ours])
        ours = stack.enter_context(running(serve, ready="/readyz", ignore_eos=True))
        targets = {"tickertape": ours}
        for peer in options.peer:
            command = peer_command(peer, options.model, options.dtype) if options.model else None
            if command is None:
                figures.append(Figure(f"serve.{peer}", None, "tok/s", what="not installed, or no --model to share"))
                continue
            targets[peer] = stack.enter_context(running(command, ready="/health", model=options.model))
        for label, (load, num_prompts) in loads(options).items():
            results = measure(
                targets, load, num_prompts=num_prompts, num_rounds=options.num_rounds, num_words=num_words
            )
            figures += figures_of(label, results, options.goal_ratio)
    title = (
        f"{options.model or 'demo model'}, {options.dtype}, ~{options.prompt_tokens} in, {options.output_tokens} out"
    )
    publish(title, figures)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1 and 8 streams, one round")
    parser.add_argument("--model", help="a model directory; default: the demo model")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--peer", action="append", default=[], choices=PEERS, help="compare with this server")
    parser.add_argument("--streams", type=_numbers, default=[1, 8, 32], help="closed loop: clients at once")
    parser.add_argument("--rate", type=float, default=2.0, help="open loop: requests a second; 0: none")
    parser.add_argument("--open-s", type=float, default=15.0, help="open loop: seconds of arrivals")
    parser.add_argument("--turns", type=int, default=2, help="closed loop: requests per client and round")
    parser.add_argument("--num-rounds", type=int, default=3)
    parser.add_argument("--prompt-tokens", type=int, default=60)
    parser.add_argument("--output-tokens", type=int, default=48)
    parser.add_argument("--goal-ratio", type=float, help="what ours/peer must reach")
    parser.add_argument("--ours", nargs=argparse.REMAINDER, default=[], help="further flags of tickertape serve")
    return parser


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    main()
