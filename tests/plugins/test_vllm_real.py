"""vLLM itself, on the CPU. `make test-vllm` runs this in an environment that has it; elsewhere it is skipped."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from tokenizers import Tokenizer

from tickertape.plugins import BackendOptions, Engine, Finish, Grammar, InvalidRequest, Limits, ModelSpec
from tickertape.plugins.backends.vllm.engine import make
from tickertape.plugins.manager import Plugins
from tickertape.testing.engine import EngineConformance
from tickertape.testing.engines import paged_engine
from tickertape.testing.models import plain_model, write_llama
from tickertape.testing.processes import Server, alive, wait_until
from tickertape.testing.rig import EngineSubject, Heard, Rig
from tickertape.testing.tokenizers import write_byte_level

pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm")

LIMITS = Limits(max_model_len=1024, max_num_seqs=4, max_batch_tokens=64, block_tokens=16)
NEAR_TIE = 1e-3
PATIENCE_S = 180.0
TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    """Its heads are of a size that vLLM's attention knows."""
    directory = tmp_path_factory.mktemp("llama")
    write_byte_level(directory)
    end = Tokenizer.from_file(str(directory / "tokenizer.json")).token_to_id("<|im_end|>")
    return write_llama(
        directory, dtype="float32", vocab_size=320, head_dim=32, max_position_embeddings=1024, eos_token_id=end
    )


@asynccontextmanager
async def started(spec: ModelSpec) -> AsyncIterator[Engine]:
    options = BackendOptions(dtype="float32", limits=LIMITS, kv_cache_bytes=64 << 20, extra={"enforce_eager": True})
    engine = make(spec, options)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop(0.0)


def children(pid: int) -> Iterator[int]:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for child in (thread / "children").read_text().split():
            yield from children(int(child))
            yield int(child)


def engine_processes(of: int) -> list[int]:
    """The oldest first. The kernel keeps 15 characters of a name."""
    return sorted(pid for pid in children(of) if Path(f"/proc/{pid}/comm").read_text()[:12] == "VLLM::Engine")


async def kill(_: Engine) -> None:
    """The process of the engine that was started last, as the out-of-memory killer would."""
    os.kill(engine_processes(os.getpid())[-1], signal.SIGKILL)


class TestVllm(EngineConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls, llama: ModelSpec) -> EngineSubject:
        return EngineSubject(
            open=lambda: started(llama),
            vocab_size=llama.vocab_size,
            max_model_len=LIMITS.max_model_len,
            max_num_seqs=LIMITS.max_num_seqs,
            capabilities=Plugins.load().backend("vllm").capabilities,
            kill=kill,
            exact=False,  # the sums of float32 come in another order in another batch
            patience_s=120.0,
        )

    # -- the same request through others -----------------------------------------------------------------------------

    @pytest.mark.parametrize("name", ["reference", "transformers"])
    def test_greedy_tokens_are_those_of_our_backends(self, rig: Rig, llama: ModelSpec, name: str) -> None:
        """Wherever the plain model tells the first two apart by more than a near tie."""
        backend = Plugins.load().backend(name)
        options = BackendOptions(dtype="float32")
        requests = [rig.request(length, max_tokens=32) for length in (5, 17, 70)]

        async def rule() -> list[tuple[Heard, Heard]]:
            async with paged_engine(backend, llama, LIMITS, options=options) as ours:
                theirs = Rig(ours, rig.subject, rig._runner)
                return [(await rig.collect(request), await theirs.collect(request)) for request in requests]

        logits = plain_model(llama, "float32")
        num_same = 0
        for vllm, ours in rig.run(rule()):
            prompt = np.frombuffer(vllm.request.prompt, "<u4").tolist()
            for n, (mine, other) in enumerate(zip(vllm.tokens, ours.tokens, strict=True)):
                if mine != other:
                    first, second = np.sort(logits([*prompt, *vllm.tokens[:n]])[-1])[-2:][::-1]
                    assert first - second < NEAR_TIE, f"token {n}: {mine}, not {other}"
                    break
                num_same += 1
        assert num_same >= 3 * 32 - 8

    def test_log_probabilities_are_those_of_the_plain_model(self, rig: Rig, llama: ModelSpec) -> None:
        async def rule() -> Heard:
            return await rig.collect(rig.request(23, max_tokens=8, logprobs=4, prompt_logprobs=2))

        heard = rig.run(rule())
        prompt = np.frombuffer(heard.request.prompt, "<u4").tolist()
        ids = [*prompt, *heard.tokens]
        logits = plain_model(llama, "float32")(ids)
        expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        found = [*(heard.deltas[0].prompt_logprobs or ()), *(e for d in heard.deltas for e in d.logprobs or ())]
        assert len(found) == len(ids) - 1
        for position, entry in enumerate(found):
            line = expected[position]
            assert entry.ids[0] == ids[position + 1]
            assert len(entry.ids) == (3 if position < len(prompt) - 1 else 5)
            np.testing.assert_allclose(entry.values, line[list(entry.ids)], atol=TOLERANCE)
            above, below = line[entry.ids[0]] + NEAR_TIE, line[entry.ids[0]] - NEAR_TIE
            assert 1 + int((line > above).sum()) <= entry.rank <= 1 + int((line > below).sum())

    # -- fields ------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("sampling", "only"),
        [
            ({"allowed_tokens": (70, 71, 72), "temperature": 1.0}, {70, 71, 72}),
            ({"logit_bias": ((80, 100.0),)}, {80}),
            ({"logit_bias": ((80, 100.0), (81, 90.0)), "bad_tokens": ((80,),)}, {81}),
        ],
    )
    def test_what_may_be_sampled(self, rig: Rig, sampling: dict[str, Any], only: set[int]) -> None:
        async def rule() -> Heard:
            return await rig.collect(rig.request(max_tokens=12, **sampling))

        assert set(rig.run(rule()).tokens) <= only

    def test_a_sequence_of_bad_tokens_is_not_completed(self, rig: Rig) -> None:
        async def rule() -> Heard:
            bias = ((80, 100.0), (81, 90.0))
            return await rig.collect(rig.request(max_tokens=12, logit_bias=bias, bad_tokens=((80, 80),)))

        assert rig.run(rule()).tokens[:4] == [80, 81, 80, 81]

    def test_stop_tokens_wait_for_min_tokens(self, rig: Rig) -> None:
        async def rule() -> Heard:
            bias = ((80, 100.0),)
            return await rig.collect(rig.request(max_tokens=12, logit_bias=bias, stop_tokens=(80,), min_tokens=5))

        heard = rig.run(rule())
        assert len(heard.tokens) == 6
        assert heard.deltas[-1].finish is not None
        assert heard.deltas[-1].finish.stop_token == heard.deltas[-1].tokens[-1] == 80

    def test_the_prompt_is_scored_alone(self, rig: Rig) -> None:
        async def rule() -> Heard:
            return await rig.collect(rig.request(9, max_tokens=0, prompt_logprobs=1))

        heard = rig.run(rule())
        assert heard.tokens == []
        assert len(heard.deltas[0].prompt_logprobs or ()) == 8

    def test_choices_of_one_seed_differ_and_repeat(self, rig: Rig) -> None:
        async def rule() -> list[list[int]]:
            asked = [rig.request(temperature=1.0, seed=2**64 - 1, choice=n % 2) for n in range(4)]
            return [(await rig.collect(request)).tokens for request in asked]

        texts = rig.run(rule())
        assert texts[0] != texts[1]
        assert texts[:2] == texts[2:]

    def test_the_prefix_cache_is_told(self, rig: Rig) -> None:
        async def rule() -> int | None:
            await rig.collect(rig.request(200, variant=7))
            return (await rig.collect(rig.request(200, variant=7))).deltas[0].num_cached_tokens

        cached = rig.run(rule())
        assert cached is not None
        assert 100 <= cached < 200
        assert rig.engine.stats().kv_capacity_tokens > 1024
        assert rig.engine.stats().num_steps > 0

    def test_an_answer_follows_its_grammar(self, rig: Rig, llama: ModelSpec) -> None:
        tokenizer = Tokenizer.from_file(str(Path(llama.path) / "tokenizer.json"))
        ends = tuple(tokenizer.token_to_id(text) for text in ("<|im_end|>", "<|endoftext|>"))

        async def rule(grammar: Grammar) -> str:
            request = replace(rig.request(max_tokens=40, temperature=1.0, stop_tokens=ends), grammar=grammar)
            heard = await rig.collect(request)
            assert heard.deltas[-1].finish == Finish("stop", heard.tokens[-1])
            assert heard.tokens[-1] in ends
            text: str = tokenizer.decode(heard.tokens[:-1])
            return text

        assert re.fullmatch("[ab]{3}c", rig.run(rule(Grammar("regex", "[ab]{3}c"))))
        schema = json.dumps({"enum": [1234, "x"]})
        assert json.loads(rig.run(rule(Grammar("json_schema", schema)))) in (1234, "x")
        assert rig.run(rule(Grammar("lark", 'start: "yes" | "no"'))) in ("yes", "no")
        with pytest.raises(InvalidRequest):
            rig.run(rule(Grammar("regex", "[ab")))

    def test_what_is_not_there_is_refused_by_name(self, rig: Rig) -> None:
        async def rule() -> None:
            with pytest.raises(InvalidRequest, match="no adapter 'x'") as caught:
                await rig.collect(replace(rig.request(), adapter="x"))
            assert caught.value.param == "model"
            with pytest.raises(InvalidRequest, match="priority"):
                await rig.collect(replace(rig.request(), priority=3))
            with pytest.raises(InvalidRequest):
                await rig.collect(rig.request(logprobs=50))
            await rig.engine.health()

        rig.run(rule())


def test_its_death_is_the_workers_and_the_next_one_serves(llama: ModelSpec, tmp_path: Path) -> None:
    """Through the front: a worker with vLLM in it, whose engine process is killed."""
    arguments = [
        f"tiny={llama.path}", "--backend", "vllm", "--dtype", "float32", "--port", "0", "--max-model-len", "1024",
        "--kv-cache-bytes", "64MiB", "--backend-option", "enforce_eager=true", "--store", str(tmp_path / "store"),
    ]  # fmt: skip
    server = Server(arguments, log=tmp_path / "stderr", environment={"PYTHONWARNINGS": "default"})
    fields = {"max_tokens": 8, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    try:
        server.until_ready(PATIENCE_S)  # its imports alone take half a minute on two busy cores
        first = server.ask("hello", logprobs=1, **fields).json()["choices"][0]
        assert len(first["token_ids"]) == len(first["logprobs"]["tokens"]) == 8
        worker = server.worker()
        os.kill(engine_processes(worker)[-1], signal.SIGKILL)
        wait_until(lambda: not alive(worker), PATIENCE_S)
        wait_until(lambda: server.ask("hello", **fields).status_code == 200, PATIENCE_S)
        assert server.ask("hello", **fields).json()["choices"][0]["token_ids"] == first["token_ids"]
        assert server.worker() != worker
        left = engine_processes(server.worker())
        assert left
    finally:
        server.kill()
    wait_until(lambda: not any(map(alive, left)), PATIENCE_S)
