"""The edge of the gRPC side, around every method: keys, request ids, errors of every kind, metrics, the access line."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Final, NamedTuple

import grpc

from tickertape.api.door import Door
from tickertape.api.error_table import public_error, spelling
from tickertape.api.events import Usage
from tickertape.api.exchange import Exchange, request_id_from
from tickertape.api.generation import Generation
from tickertape.api.grpc.options import GrpcOptions
from tickertape.api.grpc.stall_guard import StallGuard
from tickertape.api.grpc.statuses import Naming, as_status, same_name
from tickertape.api.logs import log_access
from tickertape.api.metrics import Metrics
from tickertape.api.running import Abortable, Entry, Running
from tickertape.core.errors import TickertapeError
from tickertape.plugins.observers import Observers

__all__ = ["Call", "Method", "Rpcs"]

_MAX_TEXT_CHARS: Final = 200
_log = logging.getLogger("tickertape.grpc")

Context = Any  # grpc.aio.ServicerContext, which has no types


class Stalled(Exception):
    """The client takes nothing any more."""


class Method(NamedTuple):
    """One rpc. `run(request, call)` returns the answer; of a `stream` it is an async iterator of answers, and of a
    `stream_in` its request is one of requests. `request` and `answer` are message classes. `open`: answered without a
    key, and counted nowhere. `naming` tells what this wire calls a field."""

    run: Callable[[Any, Call], Any]
    request: Any
    answer: Any
    stream: bool = False
    stream_in: bool = False
    open: bool = False
    naming: Naming = same_name


class Call:
    """What a method may know of its caller, and what it tells about the call."""

    __slots__ = ("_context", "_entry", "_options", "exchange", "metadata")

    def __init__(
        self, exchange: Exchange, entry: Entry, metadata: Mapping[str, str], context: Context, options: GrpcOptions
    ) -> None:
        self.exchange = exchange
        self.metadata = metadata
        self._entry = entry
        self._context = context
        self._options = options

    @property
    def tenant(self) -> str:
        return self.exchange.tenant

    def named(self, model: str) -> None:
        """The model that is asked for."""
        self.exchange.model = model[:_MAX_TEXT_CHARS]

    @property
    def timeout_s(self) -> float | None:
        """How long the request may wait for its first token: what the caller's deadline leaves, or the server's bound
        when that is shorter."""
        bounds = [each for each in (self.deadline_s, self._options.request_timeout_s) if each is not None]
        return min(bounds, default=None)

    @property
    def deadline_s(self) -> float | None:
        """What the caller's deadline leaves."""
        left = self._context.time_remaining()
        return None if left is None else max(float(left), 0.0)

    def called(self, name: str) -> None:
        """Another id that `Abort` takes for it: the answer's."""
        self._entry.called(name)

    def started(self, work: Abortable) -> None:
        """What `Abort` ends. A call may have several."""
        self._entry.started(work)

    def ended(self, generation: Generation) -> None:
        """The counterpart of `started`, for the log and the observers too."""
        self._entry.ended(generation)
        self.cost(generation.usage, generation.ttft_s)

    def cost(self, usage: Usage, ttft_s: float | None) -> None:
        """For the log and the observers: more of what the call has cost."""
        exchange = self.exchange
        exchange.usage = usage if exchange.usage is None else exchange.usage.plus(usage)
        if exchange.ttft_s is None:
            exchange.ttft_s = ttft_s


class Rpcs:
    """Makes handlers of methods. Everything runs on one event loop. `clock` is monotonic, in seconds."""

    def __init__(
        self,
        *,
        door: Door,
        metrics: Metrics,
        observers: Observers,
        running: Running,
        options: GrpcOptions,
        clock: Callable[[], float],
    ) -> None:
        self._door = door
        self._metrics = metrics
        self._observers = observers
        self._running = running
        self._options = options
        self._clock = clock

    def service(self, name: str, methods: Mapping[str, Method]) -> grpc.GenericRpcHandler:
        """What a server takes: the full name of a service, and its methods by theirs."""
        handlers = {each: self._handler(f"/{name}/{each}", method) for each, method in methods.items()}
        return grpc.method_handlers_generic_handler(name, handlers)

    def _handler(self, path: str, method: Method) -> grpc.RpcMethodHandler:
        async def handle(request: Any, context: Context) -> Any:
            return await self._handle(path, method, request, context)

        make = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }[method.stream_in, method.stream]
        return make(
            handle,
            request_deserializer=method.request.FromString,
            response_serializer=_ready if method.stream else method.answer.SerializeToString,
        )

    async def _handle(self, path: str, method: Method, request: Any, context: Context) -> Any:
        metadata = _texts(context.invocation_metadata())
        exchange = Exchange(
            request_id=request_id_from(metadata.get("x-request-id")),
            method="GRPC",
            path=path[:_MAX_TEXT_CHARS],
            client=_peer(context.peer()),
            started=self._clock(),
        )
        exchange.traceparent = metadata.get("traceparent", "")[:_MAX_TEXT_CHARS] or None
        answer = None  # of a stream there is none left to return
        try:
            if not method.open:
                exchange.tenant = await self._door.admit(_scope(path, context))
            await context.send_initial_metadata((("x-request-id", exchange.request_id),))
            with self._running.entered(exchange.tenant, exchange.request_id) as entry:
                call = Call(exchange, entry, metadata, context, self._options)
                if method.stream:
                    await self._stream(method.run(request, call), context)
                else:
                    answer = await method.run(request, call)
            exchange.status = grpc.StatusCode.OK.value[0]
        except asyncio.CancelledError:
            # The client hung up, or its deadline passed: either way nobody listens any more.
            exchange.outcome = "cancelled"
            exchange.status = grpc.StatusCode.CANCELLED.value[0]
            raise
        except Stalled:
            exchange.outcome = "cancelled"
            exchange.status = grpc.StatusCode.CANCELLED.value[0]
            await context.abort(grpc.StatusCode.CANCELLED, "The client took nothing for too long")
        except Exception as error:
            await self._fail(error, method, exchange, context)
        finally:
            self._finish(exchange, quiet=method.open)
        return answer

    async def _stream(self, answers: AsyncGenerator[Any, None], context: Context) -> None:
        """Each message waits until the transport has room for it, so that a slow reader stops its own stream. Raises
        Stalled when one waited too long: what it costs the engine ends in time, the call when the message is out, as
        nothing can be sent behind it."""
        guard = StallGuard(answers, self._options.send_timeout_s)
        try:
            async for answer in answers:
                guard.begin()
                await context.write(answer)
                guard.end()
                if guard.stalled:
                    raise Stalled
        finally:
            await guard.close()
            await answers.aclose()

    async def _fail(self, error: Exception, method: Method, exchange: Exchange, context: Context) -> None:
        if not isinstance(error, TickertapeError):
            _log.error("request failed", exc_info=error, extra={"fields": {"request_id": exchange.request_id}})
        public = public_error(error)
        exchange.outcome = spelling(public).outcome
        status = as_status(public, method.naming)
        exchange.status = status.code.value[0]
        await context.abort(*status)

    def _finish(self, exchange: Exchange, *, quiet: bool) -> None:
        duration_s = self._clock() - exchange.started
        log_access(exchange, duration_s, quiet=quiet)
        if quiet:
            return
        self._metrics.request(exchange.model, exchange.outcome)
        if self._observers:
            self._observers(exchange.event(duration_s))


def _ready(answer: Any) -> bytes:
    """Streams of which copies are kept hand over bytes."""
    return answer if isinstance(answer, bytes) else answer.SerializeToString()


def _texts(metadata: Any) -> dict[str, str]:
    return {key: value for key, value in metadata or () if isinstance(value, str)}


def _scope(path: str, context: Context) -> dict[str, Any]:
    """The call as HTTP/2 carries it, which is how the door knows callers."""
    headers = [
        (key.encode(), value.encode("latin-1", "replace") if isinstance(value, str) else value)
        for key, value in context.invocation_metadata() or ()
    ]
    return {"headers": headers, "method": "POST", "path": path, "client": (_peer(context.peer()), 0)}


def _peer(peer: str) -> str:
    """`ipv4:127.0.0.1:5000`, `ipv6:%5B::1%5D:5000`: the address alone."""
    _, _, rest = peer.partition(":")
    return rest.rpartition(":")[0].replace("%5B", "").replace("%5D", "")
