"""The settings of this backend: `--backend-option KEY=VALUE`."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from tickertape.plugins import BackendOptions, ModelSpec, StartupError

__all__ = ["RemoteOptions", "read_options"]


class RemoteOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`url`: the server, without /v1; or a table of them by the name under which a model is served here.
    `model`: what the server calls the model; None: as it is called here, or the only one it has.
    `api_key` is sent as a bearer token. `dialect`: tickertape, vllm or sglang; None: the server is asked.
    `silence_s`: how long it may send nothing at all, keep-alive comments included, before a stream counts as lost.
    `max_connections`: streams at once; more wait, as long as `connect_s`.
    """

    url: str | dict[str, str] = ""
    model: str | None = None
    api_key: str | None = None
    dialect: str | None = None
    connect_s: float = 5.0
    silence_s: float = 300.0
    health_s: float = 2.0
    max_connections: int = 1024
    max_event_bytes: int = 64 << 20


def read_options(spec: ModelSpec, options: BackendOptions) -> tuple[str, RemoteOptions]:
    """The URL that is this model's, and the rest. Raises StartupError."""
    try:
        found = msgspec.convert(dict(options.extra), RemoteOptions)
    except msgspec.ValidationError as error:
        raise _wrong(str(error)) from error
    url = found.url if isinstance(found.url, str) else found.url.get(spec.name, "")
    if not url.startswith(("http://", "https://")):
        raise _wrong(f"it needs the URL of a server for {spec.name}: --backend-option url=http://HOST:PORT")
    if min(found.connect_s, found.silence_s, found.health_s, found.max_connections, found.max_event_bytes) <= 0:
        raise _wrong("times and bounds must be above 0")
    return url.rstrip("/").removesuffix("/v1"), found


def _wrong(reason: str) -> StartupError:
    return StartupError(f"backend 'remote': {reason}", code="UnsupportedOption")
