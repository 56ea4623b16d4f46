"""A client over gRPC."""

from __future__ import annotations

import grpc

from tickertape.client.client import Client
from tickertape.client.grpc_wire import GrpcWire

__all__ = ["GrpcClient"]


class GrpcClient(Client):
    """`target`: `host:port`. `credentials`: of TLS; None: plain. `timeout_s` of a request is the deadline of all of it.

    With `max_resumes` streams survive broken connections: each is taken up where it broke, up to so many times in a
    row, as long as the server keeps it (`--resume-window-s`); what they give is the same."""

    def __init__(
        self,
        target: str,
        *,
        api_key: str | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        max_resumes: int = 0,
    ) -> None:
        wire = GrpcWire(target, api_key=api_key, credentials=credentials, max_resumes=max_resumes)
        super().__init__(wire)
        self._grpc = wire

    async def tokenize(self, model: str, text: str) -> tuple[int, ...]:
        """A text's token ids, with what the tokenizer adds."""
        return await self._grpc.tokenize(model, text)

    async def abort(self, request_id: str) -> bool:
        """Ends the requests of that id, whatever wire they came by: who waits for one gets ServerError, code aborted.
        False: there is none of this key's."""
        return await self._grpc.abort(request_id)
