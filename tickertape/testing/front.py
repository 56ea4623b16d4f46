"""A whole front in one process: the HTTP app over the service over our paged engine over the scripted backend."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp

from tickertape.api.admission import Admission, AdmissionLimits
from tickertape.api.app import build_app
from tickertape.api.health import Readiness
from tickertape.api.isolated_renders import IsolatedRenders
from tickertape.api.kept_streams import ResumeLimits
from tickertape.api.keys import Keys
from tickertape.api.limits import CallLimits
from tickertape.api.metrics import Metrics
from tickertape.api.models import Models, ServedModel
from tickertape.api.options import WireOptions
from tickertape.api.output_format import OutputFormat
from tickertape.api.prompts import PromptEncoder
from tickertape.api.render_pool import RenderPool
from tickertape.api.service import Service
from tickertape.api.templates import ChatTemplate
from tickertape.api.tokenizer import TextTokenizer
from tickertape.core.engine import PagedEngine, paged_loop
from tickertape.core.memory import Limits
from tickertape.grammar.checker import CheckThreads, MatcherChecker
from tickertape.grammar.compiler import MatcherCompiler
from tickertape.grammar.vocabulary import model_vocabulary
from tickertape.plugins import Batch, Capabilities, ModelSpec, OutputParserSpec
from tickertape.plugins.backends.scripted.runner import ScriptedRunner
from tickertape.plugins.backends.scripted.script import Script
from tickertape.plugins.parsers import bare_json, deepseek, harmony, hermes, mistral, pythonic, qwen_xml, think
from tickertape.testing import templates
from tickertape.testing.asgi import Answer, AsgiClient, Connection
from tickertape.testing.checks import check_idle
from tickertape.testing.tokenizers import write_byte_level, write_sentencepiece

__all__ = ["PLAIN_TEXT", "Front", "built_in_parsers", "front", "spoken", "until"]

PLAIN_TEXT = "A known text."
"""What any prompt that calls for no other play is answered with."""

_VOCAB_SIZE = 512
_NUM_BLOCKS = 65
_NAME = "scripted"


def spoken(text: str) -> list[int]:
    """A text as ids of the byte-level tokenizer, one byte each."""
    return list(text.encode())


async def until(holds: Callable[[], bool], patience_s: float = 5.0) -> None:
    """Waits for something that comes by itself."""
    deadline = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < deadline, "it never came to that"
        await asyncio.sleep(0.002)


@dataclass
class Front:
    """Everything a test may look at. `batches` holds what the runner was given, step by step."""

    app: ASGIApp
    client: AsgiClient
    service: Service
    models: Models
    model: ServedModel
    engine: PagedEngine
    readiness: Readiness
    metrics: Metrics
    tokenizer: TextTokenizer
    batches: list[Batch]
    headers: Mapping[str, str]

    async def chat(self, content: Any = "plain", **fields: Any) -> Answer:
        body = self.chat_body(content, **fields)
        return await self.client.post("/v1/chat/completions", body, headers=self.headers)

    async def complete(self, prompt: Any = "plain", **fields: Any) -> Answer:
        body = {"model": _NAME, "prompt": prompt, **fields}
        return await self.client.post("/v1/completions", body, headers=self.headers)

    @asynccontextmanager
    async def streaming(self, content: Any = "plain", **fields: Any) -> AsyncIterator[Connection]:
        """A chat stream under way."""
        body = self.chat_body(content, stream=True, **fields)
        async with self.client.open("POST", "/v1/chat/completions", body, headers=self.headers) as connection:
            yield connection

    def chat_body(self, content: Any = "plain", **fields: Any) -> dict[str, Any]:
        messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
        return {"model": _NAME, "messages": messages, **fields}

    async def idle(self, patience_s: float = 5.0) -> None:
        """Waits until nothing runs or waits; the common end check says what does if it goes on."""
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            stats = self.engine.stats()
            if not (stats.num_running or stats.num_waiting or stats.num_used_blocks):
                break
            await asyncio.sleep(0.005)
        check_idle(self.engine.stats())
        admission = self.service.admission
        assert admission.num_waiting_requests == admission.num_waiting_tokens == 0
        assert admission.in_flight(_NAME) == 0

    async def check(self) -> None:
        """The end of every test: idle, nothing leaked, and a plain request gives the known text."""
        await self.idle()
        answer = await self.complete(max_tokens=40)
        assert answer.status == 200, answer.body
        assert answer.json()["choices"][0]["text"].lstrip() == PLAIN_TEXT
        await self.idle()


def built_in_parsers() -> Sequence[OutputParserSpec]:
    """In the order in which a server registers them."""
    specs: list[OutputParserSpec] = []
    for module in (bare_json, deepseek, harmony, hermes, mistral, pythonic, qwen_xml, think):
        module.register_output_parsers(specs.append)
    return specs


@asynccontextmanager
async def front(
    directory: Path,
    plays: Sequence[Mapping[str, Any]] = (),
    *,
    sentencepiece: bool = False,
    template: str | None = templates.CHATML,
    special: Sequence[str] = (),
    reasoning_parser: str = "auto",
    tool_parser: str = "auto",
    isolated: IsolatedRenders | None = None,
    max_model_len: int = 512,
    max_num_seqs: int = 8,
    max_batch_tokens: int = 256,
    num_blocks: int = _NUM_BLOCKS,
    block_tokens: int = 16,
    policy: str = "arrival",
    options: WireOptions | None = None,
    api_keys: Sequence[str] = (),
    limits: CallLimits | None = None,
    resume: ResumeLimits | None = None,
    admission: AdmissionLimits | None = None,
    capabilities: Capabilities | None = None,
    token_s: float = 0.0,
    chunk_s: float = 0.0,
    sleep: Callable[[float], None] = time.sleep,
) -> AsyncIterator[Front]:
    """A front that answers by `plays`, then with PLAIN_TEXT. Ends with nothing checked: that is `Front.check`. `sleep`
    lets `token_s` and `chunk_s` pass, on the engine's thread: one that waits for something else holds the engine up."""
    if sentencepiece:
        write_sentencepiece(directory, chat_template=template)
    else:
        write_byte_level(directory, chat_template=template, special=special)
    tokenizer = TextTokenizer.from_directory(directory)
    plain = {"tokens": tokenizer.encode(PLAIN_TEXT, add_special_tokens=False)}
    script = {"plays": [*plays, plain], "token_s": token_s, "chunk_s": chunk_s}
    spec = ModelSpec(
        name=_NAME,
        path=str(directory),
        architecture="ScriptedForCausalLM",
        config={"script": script, "eos_token_id": tokenizer.eos_token_ids[0]},
        max_model_len=max_model_len,
        vocab_size=_VOCAB_SIZE,
    )
    batches: list[Batch] = []
    able = Capabilities(ahead=True) if capabilities is None else capabilities
    bounds = Limits(
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_batch_tokens=max_batch_tokens,
        block_tokens=block_tokens,
    )
    runner = ScriptedRunner(Script.of(spec), sleep=sleep, batches=batches)
    grammars = MatcherCompiler(_VOCAB_SIZE, lambda: model_vocabulary(directory, _VOCAB_SIZE, {}))
    loop, plan, _ = paged_loop(runner, bounds, able, num_blocks=num_blocks, policy=policy, grammars=grammars)
    engine = PagedEngine(loop, plan)
    await engine.start()
    checks = CheckThreads()
    readiness = Readiness(time.monotonic)
    models = Models(readiness)
    chat_template = ChatTemplate.from_directory(directory)
    model = ServedModel(
        name=_NAME,
        engine=engine,
        tokenizer=tokenizer,
        template=chat_template,
        output=OutputFormat.of(
            built_in_parsers(), chat_template, tokenizer, reasoning=reasoning_parser, tools=tool_parser
        ),
        max_model_len=max_model_len,
        vocab_size=_VOCAB_SIZE,
        created=1_700_000_000,
        capabilities=able,
        priorities=policy == "priority",
        grammars=MatcherChecker(checks, tokenizer, _VOCAB_SIZE),
        fingerprint="fp_scripted",
    )
    models.add(model)
    readiness.set_state("ready")
    metrics = Metrics(lambda: {each.name: each.engine.stats() for each in models.list()})
    renders = RenderPool(max_waiting=4096)  # what waits is for the admission to bound
    service = Service(
        models,
        Admission(admission),
        readiness,
        metrics,
        time.monotonic,
        PromptEncoder(renders, isolated),
        limits,
        resume,
    )
    headers = {"content-type": "application/json"}
    if api_keys:
        headers["authorization"] = f"Bearer {api_keys[0]}"
    app = build_app(service, models, readiness, metrics, options=options, keys=Keys(api_keys))
    try:
        yield Front(
            app=app,
            client=AsgiClient(app),
            service=service,
            models=models,
            model=model,
            engine=engine,
            readiness=readiness,
            metrics=metrics,
            tokenizer=tokenizer,
            batches=batches,
            headers=headers,
        )
    finally:
        await service.kept.close()
        await engine.stop(0.0)
        renders.close()
        checks.close()
