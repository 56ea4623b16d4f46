"""Clients of a server, asynchronous and typed, over gRPC or HTTP: the same methods, records and errors either way. See
docs/clients.md."""

from tickertape.client.errors import ServerError
from tickertape.client.grpc_client import GrpcClient
from tickertape.client.http_client import HttpClient
from tickertape.client.records import (
    Answer,
    Delta,
    Finish,
    Message,
    Sampling,
    TokenLogprob,
    Tool,
    ToolCall,
    ToolChoice,
    Usage,
)

__all__ = [
    "Answer",
    "Delta",
    "Finish",
    "GrpcClient",
    "HttpClient",
    "Message",
    "Sampling",
    "ServerError",
    "TokenLogprob",
    "Tool",
    "ToolCall",
    "ToolChoice",
    "Usage",
]
