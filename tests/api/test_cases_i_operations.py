"""Topic i of the case list, as far as the HTTP side goes: metrics that hold, probes that tell the truth."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from prometheus_client import Counter, Histogram
from prometheus_client.parser import text_string_to_metric_families
from starlette.routing import Router

from tickertape.api.admission import Admission, AdmissionLimits
from tickertape.api.error_table import OUTCOMES
from tickertape.api.health import Readiness
from tickertape.api.logs import JsonFormatter
from tickertape.api.metrics import NAMES
from tickertape.api.options import WireOptions
from tickertape.api.probes import probe_routes
from tickertape.api.watchdog import Watchdog
from tickertape.testing.asgi import AsgiClient
from tickertape.testing.front import Front, spoken, until
from tickertape.testing.openai_stream import told

Make = Callable[..., Awaitable[Front]]

FOREVER = {"when": spoken("long"), "tokens": spoken("x"), "then": "repeat"}


async def scrape(front: Front) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    answer = await front.client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
    }


async def value(front: Front, name: str, **labels: str) -> float:
    return (await scrape(front))[name, frozenset({"model": "scripted", **labels}.items())]


async def test_case_140_a_failing_metric_breaks_no_request(
    make_front: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    front = await make_front()

    def broken(*_: Any) -> None:
        raise ValueError("Counters can only be incremented by non-negative amounts")

    monkeypatch.setattr(Counter, "inc", broken)
    monkeypatch.setattr(Histogram, "observe", broken)
    for _ in range(3):
        assert told(await front.chat(stream=True))[0].finish == "stop"
        assert (await front.chat(temperature=9)).status == 400
    logged = [record for record in caplog.records if record.name == "tickertape.metrics"]
    assert logged
    assert len(logged) == len({record.getMessage() for record in logged})


async def test_case_141_every_name_is_scraped(make_front: Make) -> None:
    front = await make_front()
    await front.chat()
    text = (await front.client.get("/metrics")).body.decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    declared = {name.removesuffix("_total") for name in NAMES}
    assert {name for name in families if not name.endswith("_created")} == declared
    for name, family in families.items():
        assert (family.type == "counter") == (f"{name}_total" in NAMES)
        assert family.documentation


async def test_case_142_every_outcome_is_counted_and_labels_are_bounded(make_front: Make) -> None:
    front = await make_front(
        FOREVER,
        {"when": spoken("bad"), "tokens": spoken("a"), "fail": {"at": 0}},
        token_s=0.005,
        max_num_seqs=1,
        options=WireOptions(max_body_bytes=10_000, request_timeout_s=0.5),
        api_keys=("k",),
        admission=AdmissionLimits(max_waiting_requests=2),
    )
    await front.chat()
    await front.chat(temperature=9)
    await front.client.post("/v1/completions", {}, headers={"content-type": "application/json"})  # no key
    await front.chat(model="other")
    await front.complete("a" * 10_000)
    await front.chat("bad")
    async with front.streaming("long", max_tokens=400) as first:
        await first.head()
        assert (await front.chat()).status == 408
        waiting = [asyncio.ensure_future(front.chat()) for _ in range(4)]
        assert sorted(answer.status for answer in await asyncio.gather(*waiting)) == [408, 408, 429, 429]
        await first.disconnect()
    front.readiness.set_state("draining")
    assert (await front.chat()).status == 503
    front.readiness.set_state("ready")
    counted: dict[str, float] = {}
    for (name, labels), count in (await scrape_with_key(front)).items():
        if name == "tickertape_requests_total":
            outcome = dict(labels)["outcome"]
            counted[outcome] = counted.get(outcome, 0) + count
    assert counted == {
        "ok": 1,
        "cancelled": 1,
        "invalid": 1,
        "unauthorized": 1,
        "not_found": 1,
        "too_large": 1,
        "overloaded": 2,
        "timeout": 3,
        "unavailable": 1,
        "failed": 1,
    }
    assert set(counted) == set(OUTCOMES)
    before = len(await scrape_with_key(front))
    for n in range(1000):
        await front.chat(model=f"model-{n}")
        await front.client.get(f"/path-{n}", front.headers)
    assert len(await scrape_with_key(front)) == before


async def scrape_with_key(front: Front) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = (await front.client.get("/metrics", front.headers)).body.decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_tokens_and_latencies_are_measured(make_front: Make) -> None:
    front = await make_front({"when": spoken("go"), "tokens": spoken("abcd")}, token_s=0.02)
    for stream in (False, True):
        assert told(await front.complete("go" + "p" * 62, stream=stream, n=2))[0].text == "abcd"
    assert await value(front, "tickertape_prompt_tokens_total") == 128
    assert await value(front, "tickertape_generated_tokens_total") == 2 * 2 * 5
    assert await value(front, "tickertape_prefix_cache_hit_tokens_total") == 48
    assert await value(front, "tickertape_time_to_first_token_seconds_count") == 2
    assert await value(front, "tickertape_request_duration_seconds_count") == 2
    assert 0.02 <= await value(front, "tickertape_time_to_first_token_seconds_sum") / 2 < 2
    assert await value(front, "tickertape_inter_token_latency_seconds_count") >= 8
    assert 0.01 < await value(front, "tickertape_inter_token_latency_seconds_sum") / 8 < 0.5
    assert await value(front, "tickertape_requests_total", outcome="ok") == 2


async def test_gauges_follow_the_engine(make_front: Make) -> None:
    front = await make_front(FOREVER, max_num_seqs=1, token_s=0.01)
    async with front.streaming("long", max_tokens=400) as first:
        await first.head()
        waiting = asyncio.ensure_future(front.chat())
        await asyncio.sleep(0.1)
        assert await value(front, "tickertape_requests_running") == 1
        assert await value(front, "tickertape_requests_waiting") == 1
        assert 0 < await value(front, "tickertape_kv_blocks_used_ratio") < 1
        await first.disconnect()
    await waiting
    await front.idle()
    assert await value(front, "tickertape_requests_running") == 0


async def test_case_144_while_loading_requests_are_refused_at_once(make_front: Make) -> None:
    front = await make_front()
    front.readiness.set_state("loading", "DownloadingOrigin", {"done_bytes": 1, "total_bytes": 4, "eta_s": 12.5})
    for stream in (False, True):
        answer = await asyncio.wait_for(front.chat(stream=stream), 5)  # it has no time to load
        assert answer.status == 503
        assert answer.json()["error"] | {"message": ""} == {
            "message": "",
            "type": "server_error",
            "param": None,
            "code": "loading",
        }
        assert (answer.headers["retry-after"], answer.headers["retry-after-ms"]) == ("13", "12500")
    assert front.service.admission.num_waiting_requests == 0
    ready = await front.client.get("/readyz")
    assert (ready.status, ready.json()) == (503, {"reason": "DownloadingOrigin", "eta_s": 12.5})
    assert ready.headers["retry-after"] == "13"
    assert (await front.client.get("/health")).status == 503
    assert (await front.client.get("/livez")).status == 200
    started = await front.client.get("/startupz")
    assert (started.status, started.json()["state"], started.json()["done_bytes"]) == (200, "loading", 1)
    assert (await front.client.get("/v1/models")).status == 200
    front.readiness.set_state("draining")
    assert (await front.client.get("/readyz")).json()["reason"] == "Draining"
    assert (await front.chat()).json()["error"]["code"] == "draining"
    front.readiness.set_state("ready")
    assert (await front.client.get("/readyz")).status == 200


async def test_a_worker_that_comes_back_is_told_from_one_that_loads(make_front: Make) -> None:
    front = await make_front()
    front.readiness.set_state("loading", "WorkerRestarting")
    answer = await front.chat()
    assert (answer.status, answer.json()["error"]["code"]) == (503, "restarting")
    assert (answer.headers["retry-after"], answer.headers["retry-after-ms"]) == ("1", "1000")
    front.readiness.set_state("ready")


async def test_case_145_a_stalled_engine_is_not_alive(make_front: Make, fake_clock: Any) -> None:
    front = await make_front({"when": spoken("stuck"), "tokens": spoken("ab")}, chunk_s=0.5)
    watchdog = Watchdog(front.models, front.service.admission, fake_clock, stall_s=60)
    assert watchdog.stalled() is None
    fake_clock.advance(1000)
    assert watchdog.stalled() is None  # idle engines make no steps
    asked = asyncio.ensure_future(front.chat("stuck"))
    await asyncio.sleep(0.05)
    assert watchdog.stalled() is None
    fake_clock.advance(59)
    assert watchdog.stalled() is None
    fake_clock.advance(2)
    assert watchdog.stalled() == "scripted"
    probes = AsgiClient(Router(probe_routes(front.readiness, watchdog)))
    ready, alive = await probes.get("/readyz"), await probes.get("/livez")
    assert (ready.status, ready.json()["reason"], ready.json()["model"]) == (503, "EngineStalled", "scripted")
    assert (alive.status, alive.json()["reason"]) == (503, "EngineStalled")
    await asked
    assert (await probes.get("/readyz")).status == 200
    assert watchdog.stalled() is None


async def test_case_145_the_watchdog_looks_by_itself(make_front: Make, fake_clock: Any) -> None:
    front = await make_front({"when": spoken("stuck"), "tokens": spoken("ab")}, chunk_s=0.5)
    watchdog = Watchdog(front.models, front.service.admission, fake_clock, stall_s=60)
    asked = asyncio.ensure_future(front.chat("stuck"))
    await until(lambda: front.service.admission.in_flight("scripted") == 1)
    running = asyncio.ensure_future(watchdog.run())
    await asyncio.sleep(0)
    fake_clock.advance(61)
    assert watchdog.stalled() == "scripted"  # the first probe knows
    watchdog.forget("scripted")
    assert watchdog.stalled() is None
    running.cancel()
    await asked


async def test_case_145_an_engine_that_steps_is_alive(make_front: Make, fake_clock: Any) -> None:
    front = await make_front(FOREVER, token_s=0.005)
    watchdog = Watchdog(front.models, front.service.admission, fake_clock, stall_s=60)
    async with front.streaming("long", max_tokens=400) as connection:
        await connection.head()
        for _ in range(5):
            assert watchdog.stalled() is None
            fake_clock.advance(1000)
            steps = front.engine.stats().num_steps
            await until(lambda before=steps: front.engine.stats().num_steps > before)  # type: ignore[misc]
        assert front.service.admission.in_flight("scripted") == 1


def test_case_145_a_load_that_stands_still_is_not_alive(fake_clock: Any) -> None:
    readiness = Readiness(fake_clock, patience_s=60)
    for _ in range(10):
        fake_clock.advance(50)
        assert readiness.alive
        readiness.beat()
    fake_clock.advance(61)
    assert not readiness.alive
    readiness.set_state("ready")
    fake_clock.advance(1000)
    assert readiness.alive


async def test_case_145_the_liveness_probe_says_what_stands_still(make_front: Make, fake_clock: Any) -> None:
    front = await make_front(FOREVER, chunk_s=0.5)
    readiness = Readiness(fake_clock, patience_s=60)
    watchdog = Watchdog(front.models, front.service.admission, fake_clock, stall_s=60)
    client = AsgiClient(Router(probe_routes(readiness, watchdog)))
    assert (await client.get("/livez")).status == 200
    fake_clock.advance(61)
    load = await client.get("/livez")
    assert (load.status, load.json()) == (503, {"status": "stalled", "reason": "Loading"})
    readiness.set_state("ready")
    async with front.streaming("long", max_tokens=2) as connection:
        await until(lambda: front.service.admission.in_flight("scripted") == 1)
        assert (await client.get("/livez")).status == 200
        fake_clock.advance(61)
        engine = await client.get("/livez")
        assert (engine.status, engine.json()["reason"], engine.json()["model"]) == (503, "EngineStalled", "scripted")
        await connection.disconnect()
    assert (await client.get("/livez")).status == 200


async def test_case_148_gauges_are_there_from_the_first_scrape(make_front: Make) -> None:
    front = await make_front()
    first = await scrape(front)
    for name in ("tickertape_requests_running", "tickertape_requests_waiting", "tickertape_kv_blocks_used_ratio"):
        assert first[name, frozenset({("model", "scripted")})] == 0
    front.models.remove("scripted")
    empty = await scrape(front)
    assert empty["tickertape_requests_waiting", frozenset({("model", "")})] == 0
    front.models.add(front.model)


async def test_the_queue_is_bounded_by_requests_and_by_tokens(make_front: Make) -> None:
    for limits in (
        AdmissionLimits(max_waiting_requests=2, retry_after_s=2.5),
        AdmissionLimits(max_waiting_tokens=50, retry_after_s=2.5),
    ):
        front = await make_front(FOREVER, max_num_seqs=1, token_s=0.01, admission=limits)
        async with front.streaming("long", max_tokens=300) as first:
            await first.head()
            waiting = [asyncio.ensure_future(front.chat("p")) for _ in range(2)]
            await asyncio.sleep(0.1)
            answer = await front.chat("p" * 20)
            assert answer.status == 429
            assert answer.json()["error"]["code"] == "queue_full"
            assert (answer.headers["retry-after"], answer.headers["retry-after-ms"]) == ("3", "2500")
            await first.disconnect()
        assert {answer.status for answer in await asyncio.gather(*waiting)} == {200}


def test_an_empty_queue_takes_any_call() -> None:
    admission = Admission(AdmissionLimits(max_waiting_requests=1, max_waiting_tokens=10))
    ticket = admission.admit("m", 50, 1000)
    assert admission.in_flight("m") == 50
    ticket.started()
    ticket.started()
    assert (admission.num_waiting_requests, admission.num_waiting_tokens, admission.in_flight("m")) == (0, 0, 50)
    ticket.ended()
    ticket.ended()
    assert admission.in_flight("m") == 0


async def test_one_access_line_per_request(make_front: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    front = await make_front({"when": spoken("secret"), "tokens": spoken("hidden")}, api_keys=("k",))
    await front.chat("secret", stream=True)
    await front.chat("secret", temperature=9)
    await front.client.get("/livez")
    records = [record for record in caplog.records if record.name == "tickertape.access"]
    lines = [JsonFormatter().format(record) for record in records]
    first, second = (json.loads(line) for line in lines)
    assert {key: first[key] for key in ("status", "outcome", "model", "completion_tokens", "method", "path")} == {
        "status": 200,
        "outcome": "ok",
        "model": "scripted",
        "completion_tokens": 7,
        "method": "POST",
        "path": "/v1/chat/completions",
    }
    assert first["prompt_tokens"] > 0
    assert 0 < first["ttft_s"] <= first["duration_s"]
    assert first["request_id"].startswith("req-")
    assert (second["status"], second["outcome"], second["completion_tokens"]) == (400, "invalid", None)
    assert not any("secret" in line or "hidden" in line or "Bearer" in line for line in lines)
