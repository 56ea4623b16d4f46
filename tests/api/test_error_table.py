"""The one table from errors to wires."""

from __future__ import annotations

import pytest

from tickertape.api.edge import error_response
from tickertape.api.error_table import OUTCOMES, TABLE, public_error, retry_headers, spelling
from tickertape.core import errors
from tickertape.core.errors import (
    DeadlineExceeded,
    EngineDead,
    EngineFault,
    InvalidRequest,
    Overloaded,
    RequestAborted,
    RequestError,
    TickertapeError,
    Unavailable,
)

EXPECTED = {
    "InvalidRequest": (400, "invalid_request_error", "invalid_value", "INVALID_ARGUMENT"),
    "ContextLengthExceeded": (400, "invalid_request_error", "context_length_exceeded", "INVALID_ARGUMENT"),
    "InvalidApiKey": (401, "invalid_request_error", "invalid_api_key", "UNAUTHENTICATED"),
    "ModelNotFound": (404, "invalid_request_error", "model_not_found", "NOT_FOUND"),
    "RouteNotFound": (404, "invalid_request_error", "not_found", "UNIMPLEMENTED"),
    "StreamNotFound": (404, "invalid_request_error", "stream_not_found", "NOT_FOUND"),
    "RequestAborted": (409, "invalid_request_error", "aborted", "ABORTED"),
    "RequestTooLarge": (413, "invalid_request_error", "request_too_large", "RESOURCE_EXHAUSTED"),
    "UnsupportedMediaType": (415, "invalid_request_error", "unsupported_media_type", "INVALID_ARGUMENT"),
    "Overloaded": (429, "rate_limit_exceeded", "queue_full", "RESOURCE_EXHAUSTED"),
    "DeadlineExceeded": (408, "timeout", "timeout", "DEADLINE_EXCEEDED"),
    "Unavailable": (503, "server_error", "loading", "UNAVAILABLE"),
    "EngineFault": (500, "server_error", "engine_error", "INTERNAL"),
    "RunnerError": (500, "server_error", "runner_error", "INTERNAL"),
    "RowError": (500, "server_error", "row_error", "INTERNAL"),
    "EngineDead": (500, "server_error", "engine_dead", "INTERNAL"),
    "StartupError": (500, "server_error", "StartupFailed", "INTERNAL"),
    "OriginError": (500, "server_error", "FetchFailed", "INTERNAL"),
    "OriginBusy": (500, "server_error", "TooManyRequests", "INTERNAL"),
    "PeerFault": (500, "server_error", "PeerFailed", "INTERNAL"),
    "SlotLost": (500, "server_error", "SlotLost", "INTERNAL"),
    "OriginChanged": (500, "server_error", "RevisionMoved", "INTERNAL"),
    "PluginError": (500, "server_error", "plugin_error", "INTERNAL"),
}


@pytest.mark.parametrize("name", [name for name in errors.__all__ if name[0].isupper()])
def test_every_error_has_its_spelling(name: str) -> None:
    if name in ("TickertapeError", "RequestError"):
        return
    error: TickertapeError = getattr(errors, name)("a message", param="field")
    line = spelling(error)
    assert (line.status, line.type, error.code, line.grpc) == EXPECTED[name]
    response = error_response(error)
    assert response.status_code == line.status
    assert response.headers["content-type"] == "application/json"
    wanted = '{"error":{"message":"a message","type":"TYPE","param":"field","code":"CODE"}}'
    assert bytes(response.body).decode() == wanted.replace("TYPE", line.type).replace("CODE", error.code)
    assert line.outcome in OUTCOMES


def test_a_new_class_is_spelled_like_its_parent() -> None:
    class Novel(EngineDead):
        pass

    class NovelRequest(RequestError):
        pass

    assert spelling(Novel("x")) == TABLE[EngineFault]
    assert spelling(NovelRequest("x")).status == 400


def test_advice_on_retrying() -> None:
    assert retry_headers(InvalidRequest("x")) == {}
    assert retry_headers(EngineFault("x")) == {}
    assert retry_headers(DeadlineExceeded("x")) == retry_headers(RequestAborted("x")) == {"x-should-retry": "false"}
    assert retry_headers(Overloaded("x")) == {"retry-after": "1", "retry-after-ms": "1000"}
    assert retry_headers(Unavailable("x", retry_after_s=0.25)) == {"retry-after": "1", "retry-after-ms": "250"}
    assert retry_headers(Overloaded("x", retry_after_s=7.5)) == {"retry-after": "8", "retry-after-ms": "7500"}


def test_what_is_not_of_the_tree_shows_nothing() -> None:
    public = public_error(ValueError("the password is hunter2"))
    assert (public.code, spelling(public).status) == ("internal_error", 500)
    assert "hunter2" not in public.message
    dead = public_error(EngineDead("the engine stopped: OSError: /root/secret.bin"))
    assert (dead.code, spelling(dead).status, "secret" in dead.message) == ("engine_dead", 500, False)


def test_messages_are_one_line() -> None:
    found = public_error(InvalidRequest("first\nTraceback: ...", param="p", code="invalid_type"))
    assert (type(found), found.message, found.param, found.code) == (InvalidRequest, "first", "p", "invalid_type")
    assert len(public_error(InvalidRequest("x" * 10_000)).message) == 2000
    error = InvalidRequest("plain")
    assert public_error(error) is error
