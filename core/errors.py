"""The one error tree. What an error *is* stands here; how a wire spells it stands in `api/error_table.py`.

    TickertapeError
    ├── RequestError                 the client's fault: names the field, never ends anything but its request
    │   ├── InvalidRequest           malformed, out of range, unknown field, unsupported value
    │   ├── ContextLengthExceeded    prompt, or prompt + max_tokens, over the context or over the KV pool
    │   ├── ModelNotFound
    │   ├── InvalidApiKey
    │   ├── RequestTooLarge          the body, before it is parsed
    │   ├── UnsupportedMediaType
    │   ├── RouteNotFound
    │   ├── StreamNotFound           nothing of the caller's that can be resumed
    │   └── RequestAborted           its owner ended it from outside
    ├── Overloaded                   rate_limit_exceeded, queue_full, deadline_unreachable: try again later
    ├── DeadlineExceeded             the deadline passed while the request waited
    ├── Unavailable                  loading, draining, worker restarting: try again later
    ├── EngineFault                  ours; the request failed
    │   ├── RunnerError              a step failed: its rows fail, the engine goes on (raised by runners)
    │   ├── RowError                 one row failed (reported in StepOutput.errors)
    │   └── EngineDead               the engine is gone; the supervisor restarts it
    ├── StartupError                 what keeps a server from starting: one line, a reason, a non-zero exit
    │   ├── OriginError              where weights come from failed in passing: trying again makes sense
    │   │   ├── OriginBusy           it asked for patience (429, 503): retry_after_s is its word, None without one
    │   │   ├── PeerFault            a peer could not give what it offered: another may, or the origin
    │   │   └── SlotLost             the right to read from the origin is not certain any more
    │   └── OriginChanged            the bytes there are not the manifest's any more: plan anew
    └── PluginError                  a plugin could not be loaded, or broke its contract while loading

Messages are one line, made for the person who reads them: no path of the server, no stack trace.
Everything here is plain data, so an error crosses the worker's socket as (class name, code, message, param).
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "ContextLengthExceeded",
    "DeadlineExceeded",
    "EngineDead",
    "EngineFault",
    "InvalidApiKey",
    "InvalidRequest",
    "ModelNotFound",
    "OriginBusy",
    "OriginChanged",
    "OriginError",
    "Overloaded",
    "PeerFault",
    "PluginError",
    "RequestAborted",
    "RequestError",
    "RequestTooLarge",
    "RouteNotFound",
    "RowError",
    "RunnerError",
    "SlotLost",
    "StartupError",
    "StreamNotFound",
    "TickertapeError",
    "Unavailable",
    "UnsupportedMediaType",
    "from_wire",
]


class TickertapeError(Exception):
    """Root of the tree.

    `code` is the machine-readable name of the fault, `param` the field of the request it is about (None when it is
    about no field), `retry_after_s` when trying again makes sense (None: no advice).
    """

    default_code: ClassVar[str] = "server_error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.param = param
        self.retry_after_s = retry_after_s


class RequestError(TickertapeError):
    """The client's fault."""

    default_code = "invalid_request"


class InvalidRequest(RequestError):
    """Codes: invalid_type, invalid_value, missing_required_parameter, unknown_parameter,
    unsupported_value, invalid_json."""

    default_code = "invalid_value"


class ContextLengthExceeded(RequestError):
    """The message carries both numbers: what was asked and what there is."""

    default_code = "context_length_exceeded"


class ModelNotFound(RequestError):
    default_code = "model_not_found"


class InvalidApiKey(RequestError):
    default_code = "invalid_api_key"


class RequestTooLarge(RequestError):
    default_code = "request_too_large"


class UnsupportedMediaType(RequestError):
    default_code = "unsupported_media_type"


class RouteNotFound(RequestError):
    default_code = "not_found"


class StreamNotFound(RequestError):
    """A resume token that is unknown, another caller's, or too old; or what follows is not kept any more."""

    default_code = "stream_not_found"


class RequestAborted(RequestError):
    default_code = "aborted"


class Overloaded(TickertapeError):
    """Codes: rate_limit_exceeded, queue_full, deadline_unreachable, too_many_resumable."""

    default_code = "queue_full"


class DeadlineExceeded(TickertapeError):
    default_code = "timeout"


class Unavailable(TickertapeError):
    """Codes: loading, draining, restarting."""

    default_code = "loading"


class EngineFault(TickertapeError):
    default_code = "engine_error"


class RunnerError(EngineFault):
    """Raised by a runner's forward or sample: every row of the batch fails, the engine goes on."""

    default_code = "runner_error"


class RowError(EngineFault):
    """One row failed; the others of its batch are served."""

    default_code = "row_error"


class EngineDead(EngineFault):
    default_code = "engine_dead"


class StartupError(TickertapeError):
    """`code` is the reason shown on /readyz, in CamelCase: PathNotFound, MissingShard, TruncatedFile, ...

    The message is one line whatever it quotes: names of files and answers of origins may hold line ends and worse.
    """

    default_code = "StartupFailed"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in message)
        super().__init__(shown, code=code, param=param, retry_after_s=retry_after_s)


class OriginError(StartupError):
    """A passing fault of an origin of weights, or of the way there: a broken connection, a 5xx, silence."""

    default_code = "FetchFailed"


class OriginBusy(OriginError):
    default_code = "TooManyRequests"


class PeerFault(OriginError):
    """No peer could give what was asked, or not whole. With `retry_after_s` they have it and are merely busy: ask them
    again then, for the origin would be asked for what the cluster has. Without, the origin is the way."""

    default_code = "PeerFailed"


class SlotLost(OriginError):
    """It is not certain any more that the slot is ours: whoever reads under it closes its connections at once."""

    default_code = "SlotLost"


class OriginChanged(StartupError):
    """Codes: RevisionMoved, UnexpectedAnswer (something else came than was asked for; the files may be the same)."""

    default_code = "RevisionMoved"


class PluginError(TickertapeError):
    default_code = "plugin_error"


def _tree(root: type[TickertapeError]) -> dict[str, type[TickertapeError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found.update(_tree(child))
    return found


def from_wire(name: str, message: str, code: str, param: str | None) -> TickertapeError:
    """Rebuilds an error that crossed a process boundary; a name we do not know becomes an EngineFault."""
    return _tree(TickertapeError).get(name, EngineFault)(message, code=code, param=param)
