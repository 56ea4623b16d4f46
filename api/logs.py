"""Logs as JSON, one object a line, through `logging`. No prompt text, no keys."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final

from tickertape.api.exchange import Exchange

__all__ = ["JsonFormatter", "log_access"]

_access = logging.getLogger("tickertape.access")
_FIELDS: Final = "fields"


class JsonFormatter(logging.Formatter):
    """`time`, `level`, `logger`, `message`, then the record's `fields`, then `trace` of an exception."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, _FIELDS, {}),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def log_access(exchange: Exchange, duration_s: float, *, quiet: bool) -> None:
    """The one line of a request. Probes and scrapes (`quiet`) come at level debug."""
    usage = exchange.usage
    fields = {
        "request_id": exchange.request_id,
        "client": exchange.client,
        "method": exchange.method,
        "path": exchange.path,
        "status": exchange.status,
        "outcome": exchange.outcome,
        "model": exchange.model,
        "prompt_tokens": None if usage is None else usage.prompt_tokens,
        "completion_tokens": None if usage is None else usage.completion_tokens,
        "cached_tokens": None if usage is None else usage.cached_tokens,
        "ttft_s": None if exchange.ttft_s is None else round(exchange.ttft_s, 6),
        "duration_s": round(duration_s, 6),
    }
    if exchange.traceparent is not None:
        fields["traceparent"] = exchange.traceparent
    level = logging.DEBUG if quiet else logging.INFO
    _access.log(level, "%s %s", exchange.method, exchange.path, extra={_FIELDS: fields})
