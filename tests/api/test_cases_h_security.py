"""Topic h of the case list, as far as the HTTP side goes: hostile requests are refused, cheaply, and nothing leaks."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tickertape.api.app import build_app
from tickertape.api.keys import Keys
from tickertape.api.limits import CallLimits
from tickertape.api.options import WireOptions
from tickertape.core.errors import InvalidApiKey
from tickertape.testing.asgi import AsgiClient
from tickertape.testing.front import Front

Make = Callable[..., Awaitable[Front]]

KEY = "sk-a-key-that-is-right"


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        f"Basic {KEY}",
        KEY,
        "Bearer sk-é\xff",
        "Bearer " + "x" * 1_000_000,
        f"Bearer {KEY}x",
    ],
)
async def test_case_130_wrong_keys(make_front: Make, authorization: str | None) -> None:
    front = await make_front(api_keys=(KEY, "sk-another"))
    headers = {"content-type": "application/json"}
    if authorization is not None:
        headers["authorization"] = authorization
    for path in ("/v1/chat/completions", "/v1/completions"):
        answer = await front.client.post(path, front.chat_body(), headers=headers)
        assert answer.status == 401
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
        assert KEY not in error["message"]
    for path in ("/v1/models", "/metrics", "/v1/models/scripted", "/livez/", "/livez%2f..", "//livez", "/nowhere"):
        assert (await front.client.get(path, headers)).status == 401
    for path in ("/livez", "/readyz", "/startupz", "/health"):
        assert (await front.client.get(path, headers)).status == 200


async def test_no_route_but_the_probes_is_open(make_front: Make) -> None:
    front = await make_front(api_keys=(KEY,))
    edge: Any = build_app(front.service, front.models, front.readiness, front.metrics, keys=Keys([KEY]))
    client = AsgiClient(edge)
    paths = {re.sub(r"\{[^}]*\}", "x", route.path) for route in edge._app.routes}
    assert {"/metrics", "/openapi.json", "/v1/plugins", "/v1/models/x", "/v1/chat/completions"} <= paths
    for path in paths:
        expected = 200 if path in ("/livez", "/readyz", "/startupz", "/health") else 401
        assert (await client.get(path)).status == expected, path
        if expected == 401:
            assert (await client.post(path, {})).status == expected, path


def test_digests_stand_for_keys() -> None:
    keys = Keys(["sha256:" + hashlib.sha256(KEY.encode()).hexdigest().upper()])
    sent = [(b"authorization", b"Bearer " + KEY.encode())]
    assert keys.check(sent) == Keys([KEY]).check(sent)
    for wrong in ("", "sha256:", "sha256:12", "sha256:" + "g" * 64):
        with pytest.raises(ValueError):  # noqa: PT011 - the words differ
            keys.replace(["good", wrong])
        assert keys.check(sent)  # nothing has changed
    keys.replace(["another"])
    with pytest.raises(InvalidApiKey):
        keys.check(sent)


async def test_case_130_right_keys(make_front: Make) -> None:
    front = await make_front(api_keys=("sk-another", KEY))
    for authorization in (f"Bearer {KEY}", f"bearer {KEY}", f"BEARER  {KEY}"):
        assert (await front.client.get("/v1/models", {"authorization": authorization})).status == 200


def test_case_130_two_headers_are_ambiguous() -> None:
    right = (b"authorization", b"Bearer " + KEY.encode())
    keys = Keys([KEY])
    assert keys.check([right]) != ""
    with pytest.raises(InvalidApiKey, match="More than one"):
        keys.check([right, right])
    assert keys.check([right]) != Keys([KEY, "b"]).check([(b"authorization", b"Bearer b")])
    assert Keys([]).check([]) == ""


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 999999},
        {"top_p": -1},
        {"repetition_penalty": 0},
        {"repetition_penalty": -1},
        {"repetition_penalty": 1e-30},
        {"repetition_penalty": 1e30},
        {"presence_penalty": 1e9},
        {"frequency_penalty": -1e9},
        {"logit_bias": {"5": 1e9}},
        {"min_tokens": 2**63},
        {"seed": 10**400},
    ],
)
async def test_case_133_extreme_sampling_values(make_front: Make, fields: dict[str, Any]) -> None:
    front = await make_front()
    for ask in (front.chat, front.complete):
        answer = await ask(**fields)
        assert answer.status == 400
        assert answer.json()["error"]["param"] == next(iter(fields))


async def test_case_134_log_probabilities_have_a_product_limit(make_front: Make) -> None:
    front = await make_front(limits=CallLimits(max_logprob_values=1000, max_prompt_logprob_values=1000))
    for top in (-1, 512, 21):
        assert (await front.complete("x" * 400, prompt_logprobs=top)).json()["error"]["param"] == "prompt_logprobs"
    product = (await front.complete("x" * 400, prompt_logprobs=2)).json()["error"]
    assert (product["param"], "1200" in product["message"], "1000" in product["message"]) == (
        "prompt_logprobs",
        True,
        True,
    )
    assert (await front.complete("x" * 400, prompt_logprobs=1)).status == 200
    assert (await front.complete("x", n=10, max_tokens=100, logprobs=1)).json()["error"]["param"] == "logprobs"
    assert (await front.complete("x" * 400, n=3, echo=True, logprobs=1)).json()["error"]["param"] == "logprobs"
    assert (await front.complete("x", n=5, max_tokens=100, logprobs=1)).status == 200


async def test_case_135_choices_have_a_limit(make_front: Make) -> None:
    front = await make_front(limits=CallLimits(max_choices=10))
    for fields, param in (
        ({"n": 100_000}, "n"),
        ({"n": 11}, "n"),
        ({"best_of": 11}, "best_of"),
        ({"prompt": ["a"] * 100_000}, "prompt"),
        ({"prompt": ["a"] * 4, "n": 3}, "prompt"),
        ({"prompt": ["a"] * 3, "n": 4}, "n"),
    ):
        answer = await front.complete(**fields)
        assert answer.status == 400, fields
        error = answer.json()["error"]
        assert error["param"] == param
        assert "10" in error["message"]
    assert (await front.chat(n=11)).json()["error"]["param"] == "n"
    assert len((await front.complete(["a"] * 5, n=2)).json()["choices"]) == 10


async def test_case_135_nothing_is_allocated_before_the_check(make_front: Make) -> None:
    front = await make_front()
    tracemalloc.start()
    try:
        assert (await front.chat(n=2**31 - 1)).status == 400
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/a.png",
        "http://0x7f000001:{port}/a.png",
        "http://[::1]:{port}/a.png",
        "http://169.254.169.254/latest",
        "file:///etc/passwd",
        "data:image/png;base64," + "A" * 1_000_000,
    ],
)
async def test_case_131_no_url_of_a_client_is_fetched(make_front: Make, url: str) -> None:
    front = await make_front()
    visits: list[object] = []
    listener = await asyncio.start_server(lambda *streams: visits.append(streams), "127.0.0.1", 0)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        for kind, part in (
            ("image_url", {"image_url": {"url": url.format(port=port)}}),
            ("input_audio", {"input_audio": {"data": url.format(port=port), "format": "wav"}}),
            ("file", {"file": {"file_data": url.format(port=port)}}),
            ("video_url", {"video_url": {"url": url.format(port=port)}}),
        ):
            answer = await front.chat(
                [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": kind, **part}]}]
            )
            error = answer.json()["error"]
            assert (answer.status, error["param"]) == (400, "messages[0].content[1]")
            assert kind in error["message"]
            assert len(answer.body) < 1000
        await asyncio.sleep(0.02)
    assert visits == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v2/repository/models/../../etc/load"),
        ("POST", "/v2/repository/models/%2e%2e%2fetc/load"),
        ("POST", "/v2/repository/models/a/load"),
        ("POST", "/v2/systemsharedmemory/region/a/register"),
        ("POST", "/v2/cudasharedmemory/region/a/register"),
        ("POST", "/v1/load_lora_adapter"),
        ("POST", "/v1/models"),
        ("GET", "/v1/models/../../etc/passwd"),
        ("GET", "/v1/models/%2e%2e%2f%2e%2e%2fetc%2fpasswd"),
        ("GET", "/v1/models//etc/passwd"),
    ],
)
async def test_case_137_there_are_no_admin_routes(make_front: Make, method: str, path: str) -> None:
    front = await make_front()
    body = {"parameters": {"config": "{}", "file:1/model.py": "aW1wb3J0IG9z"}}
    ask = front.client.get(path) if method == "GET" else front.client.post(path, body, headers=front.headers)
    answer = await ask
    assert answer.status in (404, 405)
    assert "root:" not in answer.body.decode()
    assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_case_138_large_bodies(make_front: Make) -> None:
    front = await make_front(options=WireOptions(max_body_bytes=8 << 20))
    begun = time.monotonic()
    answer = await front.complete("word " * (1 << 20))
    assert (answer.status, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert time.monotonic() - begun < 2
    tracemalloc.start()
    try:
        body = b'{"model":"scripted","prompt":"' + b"x" * (50 << 20) + b'"}'
        before = tracemalloc.get_traced_memory()[0]
        answer = await front.client.post("/v1/completions", body=body)
        assert (answer.status, answer.json()["error"]["code"]) == (413, "request_too_large")
        # The test's own client hands the body over in one piece; the server may add no more than its limit.
        assert tracemalloc.get_traced_memory()[1] - before < (51 << 20) + (8 << 20)
    finally:
        tracemalloc.stop()
    declared = {**front.headers, "content-length": str(50 << 20)}
    answer = await front.client.post("/v1/completions", body=b"{}", headers=declared)
    assert answer.status == 413


async def test_lists_of_a_body_are_bounded(make_front: Make) -> None:
    front = await make_front()
    many = 100_000
    for fields, param in (
        ({"content": [{"role": "user", "content": "a"}] * many}, "messages"),
        ({"content": [{"role": "user", "content": [{"type": "text", "text": ""}] * many}]}, "messages"),
        ({"logit_bias": {str(n): 1 for n in range(many)}}, "logit_bias"),
    ):
        begun = time.thread_time()
        answer = await front.chat(**fields)
        assert time.thread_time() - begun < 1  # of this thread: the loop is held up no longer
        assert (answer.status, answer.json()["error"]["param"]) == (400, param)


async def test_a_long_prompt_does_not_hold_up_the_others(make_front: Make) -> None:
    front = await make_front()
    # A million characters take some 0.4 s; on the event loop hardly a probe would be answered meanwhile.
    for prompt in ("a" * 1_000_000, ["a" * 20_000] * 50):
        asked = asyncio.ensure_future(front.complete(prompt, truncate_prompt_tokens=10, max_tokens=1))
        num_answered = 0
        while not asked.done():
            assert (await front.client.get("/health")).status == 200
            num_answered += 1
        assert asked.result().status == 200
        assert num_answered > 40


async def test_names_of_models_are_only_looked_up(make_front: Make) -> None:
    front = await make_front()
    for name in ("../../etc/passwd", "%2e%2e%2f", "a" * 10_000, "", "\u202e", "scripted/"):
        answer = await front.chat(model=name)
        assert (answer.status, answer.json()["error"]["code"]) == (404, "model_not_found")
        assert len(answer.body) < 1000


async def test_request_ids_are_validated(make_front: Make) -> None:
    front = await make_front()
    assert (await front.client.get("/v1/models", {"x-request-id": "abc-1.2:3"})).headers["x-request-id"] == "abc-1.2:3"
    for hostile in ("a b", "a\r\nset-cookie: x", "x" * 200, "", "é"):
        answered = (await front.client.get("/v1/models", {"x-request-id": hostile})).headers["x-request-id"]
        assert answered.startswith("req-")
        assert len(answered) == 36
