"""What the operator chose for the gRPC wires."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

__all__ = ["GrpcOptions", "channel_arguments"]


class GrpcOptions(Struct, frozen=True, kw_only=True):
    """`max_message_bytes`: the largest request. `send_timeout_s`: how long a client may take nothing of a stream before
    it counts as gone. `request_timeout_s`: longest wait for the first token (None: the client's deadline alone)."""

    max_message_bytes: int = 8 << 20
    send_timeout_s: float = 30.0
    request_timeout_s: float | None = None


def channel_arguments(options: GrpcOptions) -> list[tuple[str, Any]]:
    """Of the server. Clients may ping as they like, also on a channel without calls: a ping is no attack, and the
    connection of a client that waits in the queue must not be dropped for it."""
    return [
        ("grpc.max_receive_message_length", options.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # The port was found free, and is held for us, by whoever says so: see `GrpcServer.start`.
        ("grpc.so_reuseport", 1),
    ]
