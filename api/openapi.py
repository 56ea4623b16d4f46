"""The OpenAPI document, put together from the models of the bodies, the structs of the answers and the error table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tickertape.api.error_table import TABLE
from tickertape.api.models import Models
from tickertape.api.openai.schemas import REF, answer_schemas, request_schemas, struct_schemas
from tickertape.plugins.listing import PluginList

__all__ = ["document", "openapi_route"]

_JSON: Final = "application/json"
_RETRIED: Final = (429, 503)


class _Operation(NamedTuple):
    """`answer` and `body` name schemas, or are ones; `errors` lists the statuses that are not 200."""

    method: str
    path: str
    summary: str
    answer: str | Mapping[str, Any]
    errors: tuple[int, ...] = ()
    body: str | None = None
    media_type: str = _JSON
    is_open: bool = False


_GENERATING: Final = tuple(sorted({line.status for line in TABLE.values()}))
_PROBE: Final = {"type": "object"}
_OPERATIONS: Final = (
    _Operation("post", "/v1/chat/completions", "Answers a chat", "ChatAnswer", _GENERATING, "ChatRequest"),
    _Operation("post", "/v1/completions", "Continues texts", "CompletionAnswer", _GENERATING, "CompletionRequest"),
    _Operation("get", "/v1/models", "The models served", "ModelListBody", (401,)),
    _Operation("get", "/v1/models/{model}", "One of them", "ModelBody", (401, 404, 503)),
    _Operation("get", "/v1/plugins", "How each plugin fared", "PluginList", (401,)),
    _Operation("get", "/metrics", "Prometheus text", {"type": "string"}, (401,), media_type="text/plain"),
    _Operation("get", "/openapi.json", "This document", {"type": "object"}, (401,)),
    _Operation("get", "/livez", "Whether the process lives", _PROBE, (503,), is_open=True),
    _Operation("get", "/readyz", "Whether requests are served", _PROBE, (503,), is_open=True),
    _Operation("get", "/health", "As /readyz", _PROBE, (503,), is_open=True),
    _Operation("get", "/startupz", "How far the start has come", _PROBE, is_open=True),
)


def openapi_route(version: str, models: Models) -> Route:
    """GET /openapi.json, with the names of the models served at the time."""

    async def serve(_: Request) -> Response:
        names = [model.name for model in models.list()]
        return Response(msgspec.json.encode(document(version, names)), media_type=_JSON)

    return Route("/openapi.json", serve, methods=["GET"])


def document(version: str, models: Sequence[str]) -> dict[str, Any]:
    """OpenAPI 3.1. What plugins add under /plugins is theirs to describe."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in _OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _describe(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "tickertape", "version": version, "summary": "A token-streaming server for language models"},
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": {**request_schemas(models), **answer_schemas(), **struct_schemas(PluginList)},
        },
    }


def _describe(operation: _Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": f"{operation.method}_{operation.path.strip('/').replace('/', '_').strip('{}')}",
        "parameters": list(_parameters(operation)),
        "responses": {
            "200": _response("The answer", _answer(operation)),
            **{str(status): _error(status, operation.is_open) for status in operation.errors},
        },
    }
    if operation.is_open:
        described["security"] = []
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": {_JSON: {"schema": {"$ref": REF + operation.body}}}}
    return described


def _answer(operation: _Operation) -> dict[str, Any]:
    schema = {"$ref": REF + operation.answer} if isinstance(operation.answer, str) else operation.answer
    content: dict[str, Any] = {operation.media_type: {"schema": schema}}
    if operation.body is not None:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return content


def _parameters(operation: _Operation) -> Iterable[dict[str, Any]]:
    if "{model}" in operation.path:
        yield {"name": "model", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    if operation.body is not None:
        milliseconds = {"type": "string", "pattern": "^[0-9]{1,9}$"}
        yield {"name": "x-request-timeout-ms", "in": "header", "schema": milliseconds}


def _error(status: int, probe: bool) -> dict[str, Any]:
    if probe:
        return _response("Not now", {_JSON: {"schema": _PROBE}})
    codes = dict.fromkeys(kind.default_code for kind, line in TABLE.items() if line.status == status)
    described = _response(f"As {', '.join(codes)}", {_JSON: {"schema": {"$ref": REF + "ErrorBody"}}})
    if status in _RETRIED:
        described["headers"]["retry-after"] = {"schema": {"type": "string", "pattern": "^[0-9]+$"}, "required": True}
        described["headers"]["retry-after-ms"] = described["headers"]["retry-after"]
    return described


def _response(description: str, content: Mapping[str, Any]) -> dict[str, Any]:
    identified = {"schema": {"type": "string"}, "required": True}
    return {"description": description, "headers": {"x-request-id": identified}, "content": dict(content)}
