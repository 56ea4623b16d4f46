"""What a server refuses with, whatever the wire."""

from __future__ import annotations

__all__ = ["ServerError"]


class ServerError(Exception):
    """`code` is the server's word for it (docs/http-api.md lists them), `param` the field, `status` the wire's
    own (an HTTP status, the name of a gRPC one), `retry_after_s` when trying again makes sense."""

    def __init__(
        self,
        message: str,
        *,
        code: str,
        status: int | str,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status
        self.param = param
        self.retry_after_s = retry_after_s
