"""From Configure to an engine that is warm: what the dummy batch is like, and that it happens in a turn of the node."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tickertape.core.backend import BackendOptions, ModelSpec
from tickertape.core.batch import Batch
from tickertape.core.memory import Limits
from tickertape.core.messages import Configure
from tickertape.core.ports import Progress
from tickertape.engine_room import build_loop
from tickertape.plugins import Backend, Capabilities
from tickertape.plugins.backends.scripted.runner import ScriptedRunner
from tickertape.plugins.backends.scripted.script import Script
from tickertape.plugins.manager import Plugins
from tickertape.testing.models import write_scripted
from tickertape.weights.turns import turns_of

BATCHES: list[Batch] = []


def read_config(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "config.json").read_text())
    return found


def make(spec: ModelSpec, options: BackendOptions) -> ScriptedRunner:
    return ScriptedRunner(Script.of(spec), batches=BATCHES)


BACKEND = Backend(name="x", kind="runner", factory=f"{__name__}:make", capabilities=Capabilities(), summary="")


@pytest.fixture
def configure(tmp_path: Path) -> Configure:
    directory = tmp_path / "model"
    directory.mkdir()
    write_scripted(directory, [{"echo": True}])
    spec = ModelSpec(
        name="m", path=str(directory), architecture="ScriptedForCausalLM", config={}, max_model_len=512, vocab_size=8
    )
    limits = Limits(max_model_len=512, max_num_seqs=12, max_batch_tokens=256, block_tokens=16)
    return Configure(
        epoch=0, spec=spec, backend="x", options=BackendOptions(), limits=limits, num_blocks=64, plugins={}
    )


def shapes(batches: Sequence[Batch]) -> list[list[int]]:
    """The lengths of the rows of each step."""
    return [sorted(len(row.tokens) for row in batch.rows) for batch in batches if batch.rows]


def warmed(configure: Configure) -> tuple[list[list[int]], list[Progress]]:
    BATCHES.clear()
    heard: list[Progress] = []
    parts = build_loop(BACKEND, configure, heard.append, Plugins.none())
    try:
        assert not parts.loop.has_work()
        assert parts.loop.stats().num_used_blocks == 0
        return shapes(BATCHES), heard
    finally:
        parts.loop.close()
        parts.weights.close()


def test_the_warm_up_has_as_many_rows_as_there_may_be_and_a_long_prompt(configure: Configure) -> None:
    steps, heard = warmed(configure)
    assert steps == [[1], [1] * 4, [1] * 11 + [64]]
    assert [step.stage for step in heard][-2:] == ["warm", "warm"]


def test_on_a_device_the_prompt_fills_the_batch(configure: Configure) -> None:
    steps, _ = warmed(replace(configure, options=BackendOptions(device="cuda:0")))
    assert sum(steps[0]) == 256
    assert [1] * 12 in steps[1:]  # a step of decoding


def test_where_every_row_costs_as_much_it_makes_do_with_a_few(configure: Configure, tmp_path: Path) -> None:
    write_scripted(tmp_path / "model", [{"echo": True}], token_s=0.6)
    steps, _ = warmed(replace(configure, spec=replace(configure.spec, config=read_config(tmp_path / "model"))))
    assert steps == [[1], [1] * 4]


@pytest.mark.parametrize(
    "change",
    [
        {"max_num_seqs": 1}, {"max_model_len": 2}, {"max_model_len": 3}, {"max_batch_tokens": 1},
        {"max_num_seqs": 200, "max_batch_tokens": 50}, {"block_tokens": 512},
    ],
    ids=str,
)  # fmt: skip
def test_it_keeps_within_every_limit(configure: Configure, change: dict[str, int]) -> None:
    limits = replace(configure.limits, **change)
    steps, _ = warmed(replace(configure, limits=limits))
    assert max(len(step) for step in steps) <= limits.max_num_seqs
    assert max(map(sum, steps)) <= limits.max_batch_tokens


def test_it_takes_no_more_blocks_than_there_are(configure: Configure) -> None:
    steps, _ = warmed(replace(configure, num_blocks=4))
    assert max(map(len, steps)) == 3  # a block is nobody's


def test_nobody_loads_out_of_turn(configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    configure = replace(configure, store=str(tmp_path / "store"))
    made: list[Any] = []
    with turns_of(tmp_path / "store", "cpu", 1).taken(lambda _: None):

        def give_up(progress: Progress) -> None:
            made.append(progress.stage)
            raise InterruptedError

        with pytest.raises(InterruptedError):
            build_loop(BACKEND, configure, give_up, Plugins.none())
    assert made == ["turn"]
    steps, heard = warmed(configure)
    assert steps
    assert "turn" not in [step.stage for step in heard]
