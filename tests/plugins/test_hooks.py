"""Each hook does what its documentation says; a plugin that breaks in one costs itself, and nobody else anything."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tickertape.core.errors import StartupError
from tickertape.plugins import (
    Backend,
    Caller,
    ContentPart,
    Event,
    InvalidApiKey,
    LogitsContext,
    LogitsProcessorSpec,
    ModelSpec,
    OutputParserSpec,
    ParserContext,
    PluginRoute,
    Progress,
    ReasoningPart,
    RequestEvent,
    StepEvent,
    TokenizerSpec,
    hookimpl,
    hookspecs,
)
from tickertape.plugins.faults import MAX_FAULTS
from tickertape.plugins.manager import Plugins
from tickertape.testing.local_server import MakeServer
from tickertape.testing.models import write_scripted

KNOWN = "A known text."


def plugin(**hooks: Callable[..., object]) -> SimpleNamespace:
    """A plugin with these hooks, by name."""
    return SimpleNamespace(API=(1, 0), **{name: hookimpl(hook) for name, hook in hooks.items()})


def text(answer: Any) -> str:
    assert answer.status == 200, answer.body
    found: str = answer.json()["choices"][0]["text"]
    return found


# -- each hook that is called while a plugin loads -------------------------------------------------------------------

AT_LOAD = [*sorted(name for name in hookspecs.__all__ if name.startswith("register_")), "startup"]


@pytest.mark.parametrize("hook", AT_LOAD)
def test_a_plugin_that_raises_in_a_hook_costs_itself(server: MakeServer, hook: str) -> None:
    def register_logits_processors(register: Callable[[LogitsProcessorSpec], None]) -> None:
        register(LogitsProcessorSpec(name="half", make=make_ban))

    def fail() -> None:
        raise RuntimeError(f"{hook}\nis broken")

    hooks: dict[str, Callable[..., object]] = {"register_logits_processors": register_logits_processors, hook: fail}
    broken = plugin(**hooks)
    served = server({"broken": broken, "good": processing(BAN)}, routes=["broken"])
    [failed] = [each for each in served.plugins.records if each.name == "broken"]
    assert (failed.state, failed.stage, failed.error) == ("failed", hook, f"RuntimeError: {hook} is broken")
    assert set(served.plugins.processors) == {"ban"}, "half of a broken plugin is there"
    assert text(served.complete()) == KNOWN


# -- authenticate ----------------------------------------------------------------------------------------------------


def by_user(caller: Caller) -> str | None:
    return caller.headers.get("x-user")


def test_authenticate_decides_who_gets_in(server: MakeServer) -> None:
    seen: list[Event] = []
    served = server({"auth": plugin(authenticate=by_user, observe=lambda event: seen.append(event))})
    assert text(served.complete(headers={"X-User": "ada"})) == KNOWN
    refused = served.complete()
    assert (refused.status, refused.json()["error"]["code"]) == (401, "invalid_api_key")
    assert served.get("/livez").status == 200
    assert served.get("/metrics").status == 401
    assert [event.tenant for event in seen if isinstance(event, RequestEvent)] == ["ada", ""]


def test_authenticators_are_asked_in_turn_and_may_be_coroutines(server: MakeServer) -> None:
    async def slowly(caller: Caller) -> str | None:
        await asyncio.sleep(0)
        if caller.headers.get("x-user") == "mallory":
            raise InvalidApiKey("Mallory is not welcome")
        return "grace" if caller.headers.get("authorization") == "Token grace" else None

    served = server({"a": plugin(authenticate=slowly), "b": plugin(authenticate=by_user)})
    assert served.complete(headers={"authorization": "Token grace"}).status == 200
    assert served.complete(headers={"x-user": "ada"}).status == 200
    refused = served.complete(headers={"x-user": "mallory"})
    assert (refused.status, refused.json()["error"]["message"]) == (401, "Mallory is not welcome")


def test_the_servers_own_keys_are_good_too(server: MakeServer) -> None:
    served = server({"auth": plugin(authenticate=by_user)}, api_keys=["secret"])
    assert served.complete(headers={"authorization": "Bearer secret"}).status == 200
    assert served.complete(headers={"x-user": "ada"}).status == 200
    assert served.complete(headers={"authorization": "Bearer wrong"}).status == 401


def raises(caller: Caller) -> str | None:
    raise RuntimeError("the directory\nis down")


async def hangs(caller: Caller) -> str | None:
    raise TimeoutError


@pytest.mark.parametrize("broken", [raises, hangs, lambda caller: 7, lambda caller: "", lambda caller: "x" * 200])
def test_authenticate_fails_closed(
    server: MakeServer, broken: Callable[[Caller], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Also when another plugin, asked later, would have let the caller in."""
    served = server({"auth": plugin(authenticate=broken), "kind": plugin(authenticate=by_user)})
    for _ in range(MAX_FAULTS + 2):  # it is never given up
        refused = served.complete(headers={"x-user": "ada"})
        assert (refused.status, refused.json()["error"]["code"]) == (503, "auth_unavailable")
    [first] = [r for r in caplog.messages if "failed in authenticate" in r][:1]
    assert first.startswith("plugin 'auth' failed in authenticate: ")
    assert "\n" not in first
    assert served.get("/livez").status == 200


def test_without_a_plugin_that_must_authenticate_nothing_starts() -> None:
    with pytest.raises(StartupError, match=r"plugin 'auth' must authenticate, and does not; it is not installed"):
        Plugins.load(required=["auth"])
    with pytest.raises(StartupError, match=r"'auth' must authenticate, and does not; plugin 'auth' failed startup"):
        Plugins.load(
            given={"auth": plugin(authenticate=by_user, startup=lambda: 1 / 0)}, process="front", required=["auth"]
        )
    with pytest.raises(StartupError, match=r"must authenticate, and does not; plugin 'reference' loaded"):
        Plugins.load(required=["reference"])
    assert Plugins.load(given={"auth": plugin(authenticate=by_user)}, required=["auth"]).authenticators


# -- observe ---------------------------------------------------------------------------------------------------------


def test_observers_are_told_of_requests_and_steps(server: MakeServer) -> None:
    events: list[Event] = []
    served = server({"watch": plugin(observe=lambda event: events.append(event))})
    served.complete(max_tokens=5)
    served.complete(temperature=9)
    served.get("/readyz")
    good, bad = [event for event in events if isinstance(event, RequestEvent)]
    assert (good.outcome, good.status, good.model, good.path) == ("ok", 200, "scripted", "/v1/completions")
    assert (good.num_prompt_tokens, good.num_generated_tokens) == (5, 5)
    assert good.ttft_s is not None
    assert 0 < good.ttft_s <= good.duration_s
    assert (bad.outcome, bad.status, bad.num_generated_tokens) == ("invalid", 400, 0)
    steps = [event for event in events if isinstance(event, StepEvent)]
    assert len(steps) >= 5
    assert all(event.model == "scripted" and event.duration_s >= 0 for event in steps)
    assert steps[-1].stats.num_running == 0


def test_an_observer_that_fails_is_told_no_more_after_a_while(
    server: MakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[Event] = []
    others: list[Event] = []

    def fail(event: Event) -> None:
        calls.append(event)
        raise ValueError("no room")

    served = server({"bad": plugin(observe=fail), "good": plugin(observe=lambda event: others.append(event))})
    for _ in range(4):
        assert text(served.complete()) == KNOWN
    assert len(calls) == MAX_FAULTS
    assert len(others) > MAX_FAULTS
    assert "plugin 'bad' failed in observe: ValueError: no room" in caplog.messages
    assert sum("not called any more" in message for message in caplog.messages) == 1
    metrics = served.get("/metrics").body.decode()
    assert f'tickertape_plugin_faults_total{{plugin="bad"}} {MAX_FAULTS}.0' in metrics
    [listed] = [each for each in served.get("/v1/plugins").json()["data"] if each["name"] == "bad"]
    assert (listed["state"], listed["num_faults"]) == ("loaded", MAX_FAULTS)


def test_without_observers_the_loop_is_not_watched(server: MakeServer) -> None:
    served = server()
    assert served.engine._loop._on_step is None  # type: ignore[attr-defined]


# -- routes ----------------------------------------------------------------------------------------------------------


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": scope["path"].encode()})


async def boom(scope: Any, receive: Any, send: Any) -> None:
    raise RuntimeError("a secret of the plugin")


def routing(*routes: PluginRoute) -> SimpleNamespace:
    def register_routes(register: Callable[[PluginRoute], None]) -> None:
        for route in routes:
            register(route)

    return plugin(register_routes=register_routes)


def test_routes_are_served_for_plugins_that_are_named(server: MakeServer) -> None:
    mine = routing(PluginRoute(path="/hello", app=hello), PluginRoute(path="/boom", app=boom, methods=("POST",)))
    served = server({"mine": mine, "other": routing(PluginRoute(path="/hello", app=hello))}, routes=["mine"])
    assert served.get("/plugins/mine/hello").body == b"/plugins/mine/hello"
    assert served.get("/plugins/other/hello").status == 404
    assert served.get("/plugins/mine/boom").status == 405
    failed = served.post("/plugins/mine/boom", {})
    assert (failed.status, failed.json()["error"]["code"]) == (500, "internal_error")
    assert b"secret" not in failed.body
    assert text(served.complete()) == KNOWN


def test_routes_are_behind_the_keys(server: MakeServer) -> None:
    served = server({"mine": routing(PluginRoute(path="/hello", app=hello))}, routes=["mine"], api_keys=["secret"])
    assert served.get("/plugins/mine/hello").status == served.get("/v1/plugins").status == 401
    assert served.get("/plugins/mine/hello", {"authorization": "Bearer secret"}).status == 200


@pytest.mark.parametrize(
    ("route", "message"),
    [
        (PluginRoute(path="hello", app=hello), "a path begins with '/'"),
        (PluginRoute(path="/a", app=hello, methods=()), "at least one method"),
        ("/a", "register_routes takes PluginRoute records, not str"),
    ],
)
def test_a_malformed_route_is_refused(route: Any, message: str) -> None:
    plugins = Plugins.load(given={"mine": routing(route)}, routes=["mine"])
    assert message in record(plugins, "mine").error


# -- logits processors -----------------------------------------------------------------------------------------------


class Ban:
    def __init__(self, token: int) -> None:
        self._token = token

    def apply(self, tokens: Sequence[int], logits: Any) -> None:
        logits[self._token] = -np.inf


def make_ban(arguments: Mapping[str, Any], context: LogitsContext) -> Ban:
    return Ban(arguments["token"])


def check_ban(arguments: Mapping[str, Any]) -> str | None:
    if set(arguments) != {"token"} or not isinstance(arguments["token"], int):
        return "'token', an id, is wanted"
    return None


class Fails:
    def apply(self, tokens: Sequence[int], logits: Any) -> None:
        raise RuntimeError("a secret of the plugin")


def processing(*specs: LogitsProcessorSpec) -> SimpleNamespace:
    def register_logits_processors(register: Callable[[LogitsProcessorSpec], None]) -> None:
        for spec in specs:
            register(spec)

    return plugin(register_logits_processors=register_logits_processors)


BAN = LogitsProcessorSpec(name="ban", make=make_ban, check=check_ban)
FAILS = LogitsProcessorSpec(name="fails", make=lambda arguments, context: Fails())


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_names_a_logits_processor(server: MakeServer, stream: bool) -> None:
    served = server({"mine": processing(BAN)})
    asked: dict[str, Any] = {"logits_processors": [{"name": "ban", "arguments": {"token": ord("k")}}], "max_tokens": 13}
    for ask in (served.complete, served.chat):
        answer = ask(**asked, stream=stream)
        assert answer.status == 200, answer.body
        said = answer.body.decode() if not stream else "".join(str(chunk) for chunk in answer.chunks)
        assert "known" not in said
    assert text(served.complete()) == KNOWN


@pytest.mark.parametrize(
    ("calls", "param", "message"),
    [
        (
            [{"name": "bun"}],
            "logits_processors[0].name",
            "'bun' is not a logits processor of this server; there are: ban",
        ),
        ([{"name": "ban", "arguments": {"token": "k"}}], "logits_processors[0].arguments", "'token', an id, is wanted"),
        ([{"name": "ban"}], "logits_processors[0].arguments", "'token', an id, is wanted"),
        ([{"arguments": {}}], "logits_processors[0].name", "Missing required parameter"),
        ([{"name": "ban", "code": "import os"}], "logits_processors[0].code", "Unknown parameter"),
        ("ban", "logits_processors", "Invalid type"),
        ([{"name": "ban", "arguments": {"token": 1}}] * 17, "logits_processors", "at most 16"),
    ],
)
def test_what_is_wrong_with_a_call_is_named(server: MakeServer, calls: Any, param: str, message: str) -> None:
    error = server({"mine": processing(BAN)}).complete(logits_processors=calls).json()["error"]
    assert error["param"] == param
    assert message in error["message"]


def test_a_processor_that_fails_costs_its_request_alone(server: MakeServer) -> None:
    def check(arguments: Mapping[str, Any]) -> str | None:
        raise KeyError("oh")

    unsure = LogitsProcessorSpec(name="unsure", make=make_ban, check=check)
    unmade = LogitsProcessorSpec(name="unmade", make=lambda arguments, context: 1 / 0)  # type: ignore[arg-type,return-value]
    served = server({"mine": processing(FAILS, unsure, unmade)})
    for name in ("fails", "unmade"):
        failed = served.complete(logits_processors=[{"name": name}])
        assert (failed.status, failed.json()["error"]["code"]) == (500, "row_error")
        assert f"logits processor '{name}' failed" in failed.json()["error"]["message"]
        assert b"secret" not in failed.body
    refused = served.complete(logits_processors=[{"name": "unsure"}])
    assert (refused.status, "failed to check" in refused.json()["error"]["message"]) == (400, True)
    assert text(served.complete()) == KNOWN


# -- tokenizers ------------------------------------------------------------------------------------------------------


class Bytes:
    """Every byte is a token; 256 ends a text."""

    vocab_size = 257
    bos_token_id = None
    eos_token_ids = (256,)
    special_ids = frozenset({256})

    def encode(self, text: str, *, add_special_tokens: bool) -> Sequence[int]:
        return tuple(text.encode())

    def token_bytes(self, id: int) -> bytes:
        return b"<end>" if id == 256 else bytes([id]) if id < 256 else b""


def tokenizing(spec: TokenizerSpec) -> SimpleNamespace:
    def register_tokenizers(register: Callable[[TokenizerSpec], None]) -> None:
        register(spec)

    return plugin(register_tokenizers=register_tokenizers)


@pytest.fixture
def without_tokenizer(tmp_path: Path) -> ModelSpec:
    """A model that says "héllo 👍" and has no tokenizer.json."""
    said = list("héllo 👍".encode())
    return write_scripted(tmp_path / "bytes", [{"tokens": said}], vocab_size=300, eos_token_id=256)


def test_a_plugins_tokenizer_serves_a_model_without_one(server: MakeServer, without_tokenizer: ModelSpec) -> None:
    spec = TokenizerSpec(name="bytes", supports=lambda directory: None, load=lambda directory: Bytes())
    served = server({"mine": tokenizing(spec)}, without_tokenizer)
    answer = served.complete("ü", logprobs=0)
    assert text(answer) == "héllo 👍"
    assert answer.json()["usage"]["prompt_tokens"] == 2
    assert answer.json()["choices"][0]["logprobs"]["tokens"][:3] == ["h", "bytes:\\xc3", "bytes:\\xa9"]
    streamed = served.complete("ü", stream=True)
    assert "".join(c["text"] for chunk in streamed.chunks for c in chunk["choices"]) == "héllo 👍"
    assert text(served.complete("ü", echo=True)) == "ühéllo 👍"


def test_a_model_that_no_tokenizer_takes_says_why(server: MakeServer, without_tokenizer: ModelSpec) -> None:
    picky = TokenizerSpec(
        name="picky", supports=lambda directory: "it has no vocab.txt", load=lambda directory: Bytes()
    )
    with pytest.raises(
        StartupError, match=r"no tokenizer.json, and no plugin reads what it has: picky: it has no vocab"
    ):
        server({"mine": tokenizing(picky)}, without_tokenizer)
    broken = TokenizerSpec(name="broken", supports=lambda directory: None, load=lambda directory: 1 / 0)  # type: ignore[arg-type,return-value]
    with pytest.raises(StartupError, match=r"tokenizer 'broken' failed: ZeroDivisionError"):
        server({"mine": tokenizing(broken)}, without_tokenizer)


# -- startup and shutdown --------------------------------------------------------------------------------------------


def test_startup_and_shutdown_know_their_process() -> None:
    told: list[tuple[str, str]] = []

    def living(name: str) -> SimpleNamespace:
        return plugin(
            startup=lambda process: told.append((name, f"start {process}")),
            shutdown=lambda process: told.append((name, f"stop {process}")),
        )

    Plugins.load(given={"a": living("a")}).shutdown()
    assert [entry for entry in told if "start" in entry[1]] == [], "listing the plugins started one"
    told.clear()
    plugins = Plugins.load(given={"a": living("a"), "b": living("b")}, process="worker")
    plugins.shutdown()
    assert told == [("a", "start worker"), ("b", "start worker"), ("b", "stop worker"), ("a", "stop worker")]


def test_a_plugin_that_does_not_start_up_is_taken_out() -> None:
    def register_backends(register: Callable[[Backend], None]) -> None:
        register(Backend(name="mine", kind="runner", factory="a:b"))

    half = plugin(register_backends=register_backends, startup=lambda: 1 / 0, shutdown=lambda: 1 / 0)
    plugins = Plugins.load(given={"half": half}, process="front")
    assert (record(plugins, "half").stage, record(plugins, "half").state) == ("startup", "failed")
    assert "mine" not in plugins.backends
    plugins.shutdown()


def test_a_failing_shutdown_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    stopped: list[str] = []
    plugins = Plugins.load(
        given={"a": plugin(shutdown=lambda: stopped.append("a")), "b": plugin(shutdown=lambda: 1 / 0)}, process="front"
    )
    plugins.shutdown()
    assert stopped == ["a"]
    assert caplog.messages == ["plugin 'b' failed in shutdown: ZeroDivisionError: division by zero"]


# -- output parsers --------------------------------------------------------------------------------------------------


class Upper:
    def feed(self, text: str, final: bool) -> Sequence[ContentPart]:
        if "!" in text:
            raise ValueError("no shouting")
        return (ContentPart(text.upper()),) if text else ()


def parsing(name: str, make: Callable[[ParserContext], Any]) -> SimpleNamespace:
    def register_output_parsers(register: Callable[[OutputParserSpec], None]) -> None:
        register(OutputParserSpec(name=name, kind="reasoning", make=make, detects=lambda signs: 1 // 0))

    return plugin(register_output_parsers=register_output_parsers)


def test_a_parser_that_raises_lets_the_text_through(caplog: pytest.LogCaptureFixture) -> None:
    plugins = Plugins.load(given={"loud": parsing("upper", lambda context: Upper())})
    spec = plugins.parsers["upper"]
    parser = spec.make(ParserContext())
    assert [*parser.feed("ab", False), *parser.feed("c!", False), *parser.feed("de", True)] == [
        ContentPart("AB"),
        ContentPart("c!"),
        ContentPart("de"),
    ]
    with pytest.raises(ValueError, match="after the last"):
        parser.feed("", True)
    assert caplog.messages == ["plugin 'loud' failed in parser 'upper': ValueError: no shouting"]
    caplog.set_level(logging.CRITICAL)
    for _ in range(MAX_FAULTS):
        spec.make(ParserContext()).feed("!", True)
    assert spec.make(ParserContext()).feed("ab", True) == (ContentPart("ab"),), "it is still asked"


def test_a_parser_that_cannot_be_made_or_asked_counts_as_none() -> None:
    plugins = Plugins.load(given={"loud": parsing("upper", lambda context: 1 / 0)})
    spec = plugins.parsers["upper"]
    assert spec.make(ParserContext()).feed("ab", True) == (ContentPart("ab"),)
    assert spec.detects(None) == 0  # type: ignore[arg-type]
    assert plugins.faults.counts == {"loud": 2}


class Thinks:
    """Everything before "known" is thought; then it breaks."""

    def feed(self, text: str, final: bool) -> Sequence[ReasoningPart]:
        if "k" in text:
            raise ValueError("no more thoughts")
        return (ReasoningPart(text),) if text else ()


@pytest.mark.parametrize("stream", [False, True])
def test_a_parser_that_raises_in_a_chat_costs_that_chat_its_parts(
    server: MakeServer, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def register_output_parsers(register: Callable[[OutputParserSpec], None]) -> None:
        spec = OutputParserSpec(name="thinks", kind="reasoning", make=lambda context: Thinks(), detects=lambda signs: 3)
        register(spec)

    served = server({"deep": plugin(register_output_parsers=register_output_parsers)})
    answer = served.chat(stream=stream)
    assert answer.status == 200, answer.body
    if stream:
        parts = [c["delta"] for chunk in answer.chunks for c in chunk["choices"]]
        thought = "".join(part.get("reasoning_content") or part.get("reasoning") or "" for part in parts)
        said = "".join(part.get("content") or "" for part in parts)
        assert (thought, said) == ("A ", "known text.")
        assert answer.events[-1] == "[DONE]"
    else:
        assert "known text." in answer.json()["choices"][0]["message"]["content"]
    assert "plugin 'deep' failed in parser 'thinks': ValueError: no more thoughts" in caplog.messages
    assert text(served.complete()) == KNOWN
    assert served.plugins.faults.counts == {"deep": 1}


# -- the list --------------------------------------------------------------------------------------------------------


def test_the_list_tells_how_each_plugin_fared(server: MakeServer) -> None:
    broken = plugin(register_backends=lambda register: 1 / 0)
    served = server({"mine": processing(BAN), "broken": broken})
    listed = served.get("/v1/plugins").json()
    assert (listed["object"], listed["api"]) == ("list", "1.0")
    by_name = {each["name"]: each for each in listed["data"]}
    assert by_name["mine"]["registered"] == {"processors": ["ban"]}
    assert by_name["broken"]["error"] == "ZeroDivisionError: division by zero"
    assert (by_name["broken"]["state"], by_name["broken"]["stage"]) == ("failed", "register_backends")
    assert by_name["reference"]["distribution"] == "tickertape"
    backends = {each["name"]: each for each in listed["backends"]}
    assert (backends["scripted"]["plugin"], backends["scripted"]["kind"]) == ("scripted", "runner")
    assert backends["scripted"]["capabilities"]["ahead"] is True
    metrics = served.get("/metrics").body.decode()
    assert 'tickertape_plugins{state="failed"} 1.0' in metrics
    assert 'tickertape_plugins{state="loaded"}' in metrics


def record(plugins: Plugins, name: str) -> Any:
    [found] = [each for each in plugins.records if each.name == name]
    return found


# -- weight sources --------------------------------------------------------------------------------------------------


class Source:
    name = "mine"
    schemes = ("mine",)

    def resolve(self, uri: str) -> Any:
        raise StartupError("nothing is here", code="PathNotFound")

    def fetch(self, manifest: Any, sink: Any) -> Iterator[Progress]:
        yield from ()


def test_a_weight_source_is_found_by_its_scheme() -> None:
    source = Source()

    def register_weight_sources(register: Callable[[Any], None]) -> None:
        register(source)

    plugins = Plugins.load(given={"mine": plugin(register_weight_sources=register_weight_sources)})
    found: object = plugins.sources["mine"]
    assert found is source


def test_wrappers_are_refused() -> None:
    """A plugin works on what it is handed, not on what others do."""

    def register_backends(register: Any) -> Iterator[None]:
        yield

    wrapping = SimpleNamespace(API=(1, 0), register_backends=hookimpl(wrapper=True)(register_backends))
    assert record(Plugins.load(given={"w": wrapping}), "w").error == "hooks of other plugins cannot be wrapped"
