"""The vllm backend against a module that stands in for vLLM: what is asked of it, and what another version lacks."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tickertape.plugins import (
    BackendOptions,
    ContextLengthExceeded,
    Engine,
    EngineDead,
    Finish,
    Grammar,
    InvalidRequest,
    Limits,
    LogitsProcessorCall,
    ModelSpec,
    Overloaded,
    Request,
    RowError,
    SamplingParams,
    StartupError,
    TickertapeError,
    TokenDelta,
    TokenLogprobs,
    Unavailable,
    pack_tokens,
)
from tickertape.plugins.backends.vllm import supports
from tickertape.plugins.backends.vllm.engine import VllmEngine, make
from tickertape.testing.engine import EngineConformance
from tickertape.testing.processes import alive, wait_until
from tickertape.testing.rig import EngineSubject

FAKE = Path(__file__).parent / "fake_vllm"
SPEC = ModelSpec(name="m", path="/m", architecture="A", config={}, max_model_len=512, vocab_size=99)
LIMITS = Limits(max_model_len=512, max_num_seqs=4, max_batch_tokens=64, block_tokens=16)
PARAMS, ENGINE, ARGS = "vllm.sampling_params", "vllm.v1.engine.async_llm", "vllm.engine.arg_utils"


def forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]


@pytest.fixture(scope="module", autouse=True)
def vllm() -> Iterator[None]:
    """In place of the real one, whether that is installed or not."""
    forget()
    sys.path.insert(0, str(FAKE))
    importlib.invalidate_caches()
    yield
    sys.path.remove(str(FAKE))
    forget()


def options(**extra: Any) -> BackendOptions:
    return BackendOptions(limits=LIMITS, extra=extra)


@asynccontextmanager
async def started(options: BackendOptions | None = None, spec: ModelSpec = SPEC) -> AsyncIterator[VllmEngine]:
    engine = make(spec, options or BackendOptions(limits=LIMITS))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop(0.0)


def ask(sampling: dict[str, Any] | None = None, **others: Any) -> Request:
    fields: dict[str, Any] = {"max_tokens": 3, "seed": 5, **(sampling or {})}
    request = Request(id=1, prompt=pack_tokens([3, 4, 5]), num_prompt_tokens=3, sampling=SamplingParams(**fields))
    return replace(request, **others)


async def collect(engine: Engine, request: Request | None = None) -> list[TokenDelta]:
    async with aclosing(engine.generate(request or ask())) as deltas:  # type: ignore[type-var]
        return [delta async for delta in deltas]


def fake(engine: VllmEngine) -> Any:
    return engine._llm


class TestFake(EngineConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> EngineSubject:
        async def kill(engine: Engine) -> None:
            assert isinstance(engine, VllmEngine)
            fake(engine).dead.set()

        return EngineSubject(
            open=started, vocab_size=99, max_model_len=512, max_num_seqs=4, long_prompt=200, long_output=300, kill=kill
        )


# -- what it is asked ----------------------------------------------------------------------------------------------


async def test_every_field_reaches_it() -> None:
    sampling = {
        "temperature": 0.7, "top_k": 3, "top_p": 0.9, "min_p": 0.1, "presence_penalty": 0.1, "frequency_penalty": 0.2,
        "repetition_penalty": 1.1, "logit_bias": ((7, 2.0),), "allowed_tokens": (3, 4), "bad_tokens": ((8, 9),),
        "min_tokens": 1, "stop_tokens": (6,), "logprobs": 2, "prompt_logprobs": 1, "seed": 2**64 - 1,
    }  # fmt: skip
    async with started() as engine:
        await collect(engine, ask(sampling, cache_key=b"\x01\x02"))
        asked = fake(engine).asked[-1]
    assert asked["prompt"] == {"prompt_token_ids": [3, 4, 5], "cache_salt": "0102"}
    params = asked["params"]
    for name in ("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty"):
        assert getattr(params, name) == sampling[name]
    assert (params.repetition_penalty, params.min_tokens, params.max_tokens) == (1.1, 1, 3)
    assert (params.logit_bias, params.allowed_token_ids) == ({7: 2.0}, [3, 4])
    assert (params._bad_words_token_ids, params.stop_token_ids) == ([[8, 9]], [6])
    assert (params.logprobs, params.prompt_logprobs, params.seed) == (2, 1, 2**63 - 1)
    assert (params.ignore_eos, params.detokenize, params.output_kind.name) == (True, False, "DELTA")


@pytest.mark.parametrize(
    ("kind", "field"), [("json_schema", "json"), ("regex", "regex"), ("lark", "grammar"), ("structural_tag",) * 2]
)
async def test_grammars_reach_it_and_may_end_the_answer(kind: Any, field: str) -> None:
    async with started() as engine:
        await collect(engine, ask(grammar=Grammar(kind, "source")))
        params = fake(engine).asked[-1]["params"]
    assert getattr(params.structured_outputs, field) == "source"
    assert params.ignore_eos is False


async def test_adapters_and_priorities_where_it_has_them() -> None:
    extra = {"lora_modules": {"a": "/a", "b": "/b"}, "scheduling_policy": "priority"}
    async with started(options(**extra)) as engine:
        await collect(engine, ask(adapter="b", priority=-2))
        asked = fake(engine).asked[-1]
        assert (asked["lora"].lora_name, asked["lora"].lora_int_id, asked["lora"].lora_path) == ("b", 2, "/b")
        assert asked["priority"] == -2
        assert fake(engine).args.enable_lora is True
        with pytest.raises(InvalidRequest, match="there are: a, b"):
            await collect(engine, ask(adapter="c"))


async def test_ids_are_never_given_twice() -> None:
    async with started() as engine:
        for _ in range(3):
            await collect(engine, ask())
        ids = [asked["id"] for asked in fake(engine).asked]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (ask({"logits_processors": (LogitsProcessorCall("x"),)}), "logits_processors"),
        (ask(priority=1), "priority"),
        (ask(adapter="x"), "model"),
        (ask(grammar=Grammar("free", "")), "structured_outputs"),
        (ask(grammar=Grammar("lark", "start: @a", (("a", "{}"),))), "structured_outputs"),
    ],
)
async def test_what_it_cannot_do_is_refused_by_name(request_: Request, param: str) -> None:
    async with started() as engine:
        with pytest.raises(InvalidRequest) as caught:
            await collect(engine, request_)
        assert caught.value.param == param
        with pytest.raises(RowError):
            await collect(engine, replace(ask(), num_prompt_tokens=2))


# -- what it answers -----------------------------------------------------------------------------------------------


async def test_answers_are_put_in_our_order() -> None:
    async with started() as engine:
        deltas = await collect(engine, ask({"logprobs": 2, "prompt_logprobs": 1, "stop_tokens": (4,)}))
    assert deltas == [
        TokenDelta(
            (3,),
            (TokenLogprobs((3, 3, 4), (-0.5, -0.5, -1.5), 1),),
            (TokenLogprobs((4, 0), (-1.0, -0.1), 7), TokenLogprobs((5, 0), (-1.0, -0.1), 7)),
            0,
        ),
        TokenDelta((4,), (TokenLogprobs((4, 4, 5), (-0.5, -0.5, -1.5), 1),), finish=Finish("stop", 4)),
    ]


async def test_a_prompt_is_scored_alone() -> None:
    async with started() as engine:
        [delta] = await collect(engine, ask({"prompt_logprobs": 0, "max_tokens": 0, "logprobs": 1}))
    assert (delta.tokens, delta.logprobs, delta.finish) == ((), (), Finish("length"))
    assert [entry.ids for entry in delta.prompt_logprobs or ()] == [(4,), (5,)]


async def test_figures() -> None:
    async with started() as engine:
        assert engine.stats().num_generated_tokens == 0  # what warmed it up is not counted
        async with aclosing(engine.generate(ask())) as deltas:  # type: ignore[type-var]
            await anext(deltas)
            stats = engine.stats()
        assert (stats.num_blocks, stats.num_used_blocks, stats.kv_capacity_tokens) == (64, 32, 2048)
        assert (stats.max_model_len, stats.num_prompt_tokens) == (512, 3)
        assert stats.num_steps > 0
        assert engine.stats().num_used_blocks == 0
        assert fake(engine).num_aborted == 1


def cause(error: Exception, reason: Exception) -> Exception:
    error.__cause__ = reason
    return error


@pytest.mark.parametrize(
    ("module", "name", "arguments", "kind"),
    [
        ("vllm.exceptions", "VLLMValidationError", ("bad",), InvalidRequest),
        ("vllm.exceptions", "VLLMValidationError", ("over the maximum model length of 8",), ContextLengthExceeded),
        ("builtins", "ValueError", ("bad",), InvalidRequest),
        ("vllm.exceptions", "GracefulHTTPError", ("full",), Overloaded),
        ("vllm.v1.engine.exceptions", "EngineDeadError", (), EngineDead),
        ("vllm.v1.engine.exceptions", "EngineGenerateError", (), RowError),
        ("builtins", "KeyError", ("x",), RowError),
    ],
)
async def test_errors_keep_their_place_in_the_tree(
    module: str, name: str, arguments: tuple[str, ...], kind: type[TickertapeError]
) -> None:
    async with started() as engine:
        error = getattr(importlib.import_module(module), name)(*arguments)
        fake(engine).fault = cause(error, OSError("disk"))
        with pytest.raises(kind) as caught:
            await collect(engine)
        assert type(caught.value) is kind
        assert kind is not RowError or "OSError: disk" in caught.value.message


# -- settings ------------------------------------------------------------------------------------------------------


async def test_settings_reach_it() -> None:
    extra = {"tensor_parallel_size": 4, "pipeline_parallel_size": 2, "distributed_executor_backend": "ray"}
    chosen = replace(options(**extra), dtype="bfloat16", num_blocks=33, kv_cache_bytes=1 << 20)
    async with started(chosen, replace(SPEC, trust_remote_code=True)) as engine:
        args = fake(engine).args
    assert args.trust_remote_code is True
    assert (args.model, args.served_model_name, args.dtype) == ("/m", "m", "bfloat16")
    assert (args.max_model_len, args.max_num_seqs, args.max_num_batched_tokens) == (512, 4, 64)
    assert (args.num_gpu_blocks_override, args.kv_cache_memory_bytes, args.block_size) == (33, 1 << 20, None)
    assert (args.tensor_parallel_size, args.pipeline_parallel_size, args.distributed_executor_backend) == (4, 2, "ray")
    assert (args.skip_tokenizer_init, args.generation_config) == (True, "vllm")


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (options(tensor_paralel_size=2), "no setting 'tensor_paralel_size'; did you mean 'tensor_parallel_size'"),
        (options(model="/other"), "no setting 'model'"),
        (options(trust_remote_code=True), "no setting 'trust_remote_code'"),
        (options(lora_modules=["a"]), "a table of directories"),
        (BackendOptions(device="cuda"), "computes on cpu, not on cuda: --device cpu"),
        (BackendOptions(device="cpu:1"), "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_settings_that_it_does_not_have_are_refused(chosen: BackendOptions, message: str) -> None:
    with pytest.raises(StartupError, match=message):
        make(SPEC, chosen)


# -- other versions ------------------------------------------------------------------------------------------------


async def test_a_version_without_structured_outputs_refuses_grammars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(f"{PARAMS}.StructuredOutputsParams")
    async with started() as engine:
        with pytest.raises(InvalidRequest) as caught:
            await collect(engine, ask(grammar=Grammar("regex", "a")))
        assert caught.value.param == "structured_outputs"
        assert len(await collect(engine)) == 3


async def test_a_version_without_ids_of_bad_words_refuses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(f"{PARAMS}.SamplingParams._bad_words_token_ids")
    monkeypatch.setattr(f"{PARAMS}.SamplingParams.__init__", without(PARAMS, "SamplingParams", "_bad_words_token_ids"))
    async with started() as engine:
        with pytest.raises(InvalidRequest) as caught:
            await collect(engine, ask({"bad_tokens": ((1,),)}))
        assert caught.value.param == "bad_words"


async def test_a_version_that_knows_a_field_no_more_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{PARAMS}.SamplingParams.__init__", without(PARAMS, "SamplingParams", "logit_bias"))
    async with started() as engine:
        with pytest.raises(InvalidRequest) as caught:
            await collect(engine, ask({"logit_bias": ((1, 1.0),)}))
        assert caught.value.param == "logit_bias"
        assert len(await collect(engine)) == 3


async def test_a_version_without_errors_of_its_own_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("vllm.exceptions.VLLMClientError")
    monkeypatch.delattr("vllm.exceptions.GracefulHTTPError")
    async with started() as engine:
        fake(engine).fault = ValueError("bad")
        with pytest.raises(InvalidRequest):
            await collect(engine)


def test_a_setting_of_ours_that_a_version_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import make_dataclass

    monkeypatch.setattr(f"{ARGS}.AsyncEngineArgs", make_dataclass("AsyncEngineArgs", ["model", "dtype"]))
    with pytest.raises(StartupError, match="no setting 'generation_config'"):
        make(SPEC, options())


def test_a_version_without_the_engine_says_which_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(f"{ENGINE}.AsyncLLM")
    with pytest.raises(
        StartupError, match=r"vllm 0\.30\.0 has no vllm\.v1\.engine\.async_llm\.AsyncLLM .*0\.29 to 0\.32"
    ):
        make(SPEC, options())


def test_a_vllm_that_cannot_be_imported_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(StartupError, match="vllm cannot be imported: ModuleNotFoundError"):
        make(SPEC, options())


def test_it_is_offered_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert supports(SPEC) is None
    monkeypatch.setattr("tickertape.plugins.backends.vllm.find_spec", lambda _: None)
    assert supports(SPEC) == "vllm is not installed: pip install vllm"


async def test_a_stopped_engine_refuses() -> None:
    async with started() as engine:
        pass
    with pytest.raises(Unavailable):
        await engine.health()


KILLED = """
import os, signal, subprocess, sys
from tickertape.plugins.backends.vllm.guardian import Guardian, descendants
before_all = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
before = descendants()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
guardian = Guardian(before)
after = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, before_all.pid, after.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_descends_from_a_worker_that_is_killed_ends_with_it() -> None:
    run = subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    child, *others = map(int, run.stdout.readline().split())
    run.stdout.close()
    assert run.wait(20) == -signal.SIGKILL
    try:
        wait_until(lambda: not alive(child), 10)
        assert all(map(alive, others))  # what was there before and what came later is not vLLM's
    finally:
        for pid in others:
            os.kill(pid, signal.SIGKILL)


def without(module: str, name: str, field: str) -> Any:
    """The initialiser of a dataclass as it was before it had a field."""
    from dataclasses import MISSING, fields, make_dataclass

    kind = getattr(importlib.import_module(module), name)
    kept = [
        (each.name, Any, each) for each in fields(kind) if each.name != field and each.default_factory is MISSING
    ]  # fmt: skip
    lists = [
        (each.name, Any, each) for each in fields(kind) if each.name != field and each.default_factory is not MISSING
    ]
    return make_dataclass(name, [*kept, *lists]).__dict__["__init__"]
