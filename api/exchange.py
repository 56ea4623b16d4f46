"""What is known of one request, from its arrival to its access line."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any, Final

from tickertape.api.events import Usage
from tickertape.plugins.events import RequestEvent

__all__ = ["Exchange", "exchange_of", "request_id_from"]

_STATE: Final = "tickertape.exchange"
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class Exchange:
    """Filled in on the way; `outcome` is a label of `error_table.OUTCOMES`, `tenant` a digest of the key. A gRPC call
    has the method "GRPC" and, as `status`, the number of its gRPC status."""

    __slots__ = (
        "client", "method", "model", "outcome", "path", "request_id", "started", "status", "tenant", "traceparent",
        "ttft_s", "usage",
    )  # fmt: skip

    def __init__(self, *, request_id: str, method: str, path: str, client: str, started: float) -> None:
        self.request_id = request_id
        self.method = method
        self.path = path
        self.client = client
        self.started = started
        self.status: int | None = None
        self.outcome = "ok"
        self.model: str | None = None
        self.tenant = ""
        self.usage: Usage | None = None
        self.ttft_s: float | None = None
        self.traceparent: str | None = None

    def attach(self, scope: Any) -> None:
        scope[_STATE] = self

    def event(self, duration_s: float) -> RequestEvent:
        """For the plugins that observe."""
        usage = self.usage
        return RequestEvent(
            request_id=self.request_id,
            method=self.method,
            path=self.path,
            status=self.status,
            outcome=self.outcome,
            model=self.model,
            tenant=self.tenant,
            duration_s=duration_s,
            ttft_s=self.ttft_s,
            num_prompt_tokens=0 if usage is None else usage.prompt_tokens,
            num_generated_tokens=0 if usage is None else usage.completion_tokens,
        )


def exchange_of(scope: Mapping[str, Any]) -> Exchange:
    found: Exchange = scope[_STATE]
    return found


def request_id_from(header: str | None) -> str:
    """The client's id when it is harmless to log and to send back, else one of ours."""
    if header is not None and _REQUEST_ID.fullmatch(header):
        return header
    return f"req-{secrets.token_hex(16)}"
