"""What goes wrong upstream, as errors of our tree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from tickertape.plugins import (
    ContextLengthExceeded,
    InvalidRequest,
    Overloaded,
    RowError,
    TickertapeError,
    Unavailable,
)

__all__ = ["fault_of", "refusal_of"]

_MAX_CHARS: Final = 1000
_CODES: Final = {
    "invalid_type", "invalid_value", "missing_required_parameter", "unknown_parameter", "unsupported_value",
    "invalid_json",
}  # fmt: skip
_BY_TYPE: Final = {"invalid_request_error": 400, "rate_limit_exceeded": 429, "BadRequestError": 400}
_BY_CODE: Final = {"loading": 503, "draining": 503, "restarting": 503, "queue_full": 429}


def refusal_of(status: int, headers: Mapping[str, str], body: bytes) -> TickertapeError:
    """Of an answer that is none. What is the client's fault stays that; who is asked and with which key is the
    operator's, so a wrong key or an unknown model is a fault of ours."""
    try:
        parsed = msgspec.json.decode(body)
    except msgspec.DecodeError:
        parsed = {}
    told: dict[str, Any] = parsed if isinstance(parsed, dict) else {}
    return _error(status, told.get("error", told), _retry_s(headers))


def fault_of(error: dict[str, object] | str) -> TickertapeError:
    """Of an error event in a stream, which has no status: the code or the type says what it was."""
    told = error if isinstance(error, dict) else {"message": error}
    code = told.get("code")
    status = code if isinstance(code, int) else _BY_CODE.get(str(code), _BY_TYPE.get(str(told.get("type")), 500))
    return _error(status, told, None)


def _error(status: int, told: Any, retry_s: float | None) -> TickertapeError:
    told = told if isinstance(told, dict) else {"message": told}
    message = " ".join(str(told.get("message") or f"status {status}").split())[:_MAX_CHARS]
    code, param = told.get("code"), told.get("param")
    code = code if isinstance(code, str) else None
    param = param if isinstance(param, str) else None
    if code == "context_length_exceeded" or (status == 400 and "maximum context length" in message):
        return ContextLengthExceeded(message, param=param or "prompt")
    if status in (400, 413, 422):
        return InvalidRequest(message, code=code if code in _CODES else None, param=param)
    if status in (408, 429):
        return Overloaded(message, code=code, retry_after_s=retry_s)
    if status in (502, 503, 504):
        return Unavailable(message, code=code, retry_after_s=retry_s)
    return RowError(f"the server behind this model failed with {status}: {message}")


def _retry_s(headers: Mapping[str, str]) -> float | None:
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers[name]) * unit_s)
        except (KeyError, ValueError):
            continue  # absent, or a date
    return None
