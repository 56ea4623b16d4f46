"""Over HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import httpx
import msgspec
from msgspec import UNSET

from tickertape.client.errors import ServerError
from tickertape.client.records import Answer, Delta, Finish, Message, Sampling, TokenLogprob, Usage

__all__ = ["HttpClient"]


class HttpClient:
    """`url`: `http://host:port`. Close it, or use it as a context manager. Leaving a stream early, or cancelling the
    task that waits, cancels the request. Raises ServerError, and httpx.TransportError when no server answers."""

    def __init__(
        self, url: str, *, api_key: str | None = None, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        self._http = httpx.AsyncClient(base_url=url, headers=headers, timeout=None, transport=transport)

    async def __aenter__(self) -> HttpClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def generate(
        self,
        model: str,
        prompt: str | Sequence[int],
        sampling: Sampling | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Answer:
        """Continues a text or token ids. `timeout_s` bounds the wait for its first token."""
        return await self._whole("/v1/completions", _generate_body(model, prompt, sampling), timeout_s)

    async def stream(
        self,
        model: str,
        prompt: str | Sequence[int],
        sampling: Sampling | None = None,
        *,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[Delta, None]:
        """The same, as it is generated."""
        async for delta in self._deltas("/v1/completions", _generate_body(model, prompt, sampling), timeout_s):
            yield delta

    async def chat(
        self,
        model: str,
        messages: Sequence[Message],
        sampling: Sampling | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Answer:
        """Answers messages."""
        return await self._whole("/v1/chat/completions", _chat_body(model, messages, sampling), timeout_s)

    async def chat_stream(
        self,
        model: str,
        messages: Sequence[Message],
        sampling: Sampling | None = None,
        *,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[Delta, None]:
        """The same, as it is generated."""
        async for delta in self._deltas("/v1/chat/completions", _chat_body(model, messages, sampling), timeout_s):
            yield delta

    async def models(self) -> tuple[str, ...]:
        """The names of what is served."""
        answer = await self._http.get("/v1/models")
        _check(answer.status_code, answer.content, answer.headers)
        return tuple(model["id"] for model in answer.json()["data"])

    async def _whole(self, path: str, body: Mapping[str, Any], timeout_s: float | None) -> Answer:
        answer = await self._http.post(path, json=body, headers=_headers(timeout_s))
        _check(answer.status_code, answer.content, answer.headers)
        found = answer.json()
        return Answer(tuple(_delta(choice) for choice in found["choices"]), _usage(found["usage"]))

    async def _deltas(self, path: str, body: Mapping[str, Any], timeout_s: float | None) -> AsyncGenerator[Delta, None]:
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        async with self._http.stream("POST", path, json=body, headers=_headers(timeout_s)) as answer:
            if answer.status_code != 200:
                _check(answer.status_code, await answer.aread(), answer.headers)
            async for line in answer.aiter_lines():
                data = line.removeprefix("data: ")
                if data == line or data == "[DONE]":
                    continue
                event = msgspec.json.decode(data)
                if "error" in event:
                    raise _server_error(500, event["error"], {})
                for choice in event["choices"]:
                    yield _delta(choice)
                if event.get("usage"):
                    yield Delta(usage=_usage(event["usage"]))


def _generate_body(model: str, prompt: str | Sequence[int], sampling: Sampling | None) -> dict[str, Any]:
    given = prompt if isinstance(prompt, str) else list(prompt)
    return {"model": model, "prompt": given, **_sampling(sampling)}


def _chat_body(model: str, messages: Sequence[Message], sampling: Sampling | None) -> dict[str, Any]:
    body = _sampling(sampling)
    if (top := body.pop("logprobs", None)) is not None:
        body |= {"logprobs": True, "top_logprobs": top}
    return {"model": model, "messages": [{"role": m.role, "content": m.content} for m in messages], **body}


def _sampling(sampling: Sampling | None) -> dict[str, Any]:
    if sampling is None:
        return {}
    body: dict[str, Any] = msgspec.to_builtins(sampling.fields(), str_keys=True)
    if sampling.json_schema is not UNSET:
        body["structured_outputs"] = {"json": sampling.json_schema}
    return body


def _headers(timeout_s: float | None) -> dict[str, str]:
    return {} if timeout_s is None else {"x-request-timeout-ms": str(max(1, round(timeout_s * 1000)))}


def _delta(choice: Mapping[str, Any]) -> Delta:
    part = choice.get("message") or choice.get("delta") or {}
    finish = choice["finish_reason"]
    return Delta(
        index=choice["index"],
        text=choice.get("text") or part.get("content") or "",
        reasoning=part.get("reasoning") or "",
        token_ids=tuple(choice.get("token_ids") or ()),
        logprobs=_logprobs(choice.get("logprobs")),
        finish=None if finish is None else Finish(finish, choice.get("stop_reason")),
    )


def _logprobs(given: Mapping[str, Any] | None) -> tuple[TokenLogprob, ...]:
    if not given:
        return ()
    if "content" in given:
        return tuple(TokenLogprob(entry["token"], entry["logprob"]) for entry in given["content"])
    return tuple(map(TokenLogprob, given["tokens"], given["token_logprobs"]))


def _usage(usage: Mapping[str, Any]) -> Usage:
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return Usage(usage["prompt_tokens"], usage["completion_tokens"], cached)


def _check(status: int, body: bytes, headers: Mapping[str, str]) -> None:
    if status == 200:
        return
    try:
        fault = msgspec.json.decode(body)["error"]
    except (msgspec.DecodeError, KeyError, TypeError):
        fault = {"message": body[:200].decode(errors="replace"), "code": "unknown", "param": None}
    raise _server_error(status, fault, headers)


def _server_error(status: int, fault: Mapping[str, Any], headers: Mapping[str, str]) -> ServerError:
    after_ms = headers.get("retry-after-ms")
    return ServerError(
        fault["message"],
        code=fault["code"],
        status=status,
        param=fault["param"],
        retry_after_s=None if after_ms is None else int(after_ms) / 1000,
    )
