"""What the operator chose for the HTTP wires."""

from __future__ import annotations

from msgspec import Struct

__all__ = ["WireOptions"]


class WireOptions(Struct, frozen=True, kw_only=True):
    """`keep_alive_s`: silence of a stream before a comment is sent. `head_delay_s`: how long a stream's status waits
    for the first token, during which a fault is still an HTTP status. `send_timeout_s`: how long a client may take
    nothing before it counts as gone. `request_timeout_s`: longest wait for the first token (None: no bound; a client
    may ask for less). `lenient`: what cannot be honoured is left out and listed in a header instead of refused.
    `trust_chat_templates`: requests may bring a chat template of their own.
    `cors_origins`: the origins whose pages may read answers, `*` for all. `trusted_proxies`: the networks whose word
    on the client's address and scheme is taken."""

    keep_alive_s: float = 15.0
    head_delay_s: float = 0.5
    send_timeout_s: float = 30.0
    request_timeout_s: float | None = None
    lenient: bool = False
    trust_chat_templates: bool = False
    max_body_bytes: int = 8 << 20
    max_json_depth: int = 64
    cors_origins: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
