"""All gRPC services on one server, over the same rooms as the HTTP app."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import grpc
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2

from tickertape.api.door import Door
from tickertape.api.grpc.fmaas.protocol import FMAAS
from tickertape.api.grpc.fmaas.service import FmaasService
from tickertape.api.grpc.health import HEALTH, Health
from tickertape.api.grpc.kserve.protocol import KSERVE
from tickertape.api.grpc.kserve.service import KServeService
from tickertape.api.grpc.native.service import NATIVE, NativeService
from tickertape.api.grpc.options import GrpcOptions, channel_arguments
from tickertape.api.grpc.reflection import REFLECTION, REFLECTION_ALPHA, Reflection
from tickertape.api.grpc.rpc import Method, Rpcs
from tickertape.api.health import Readiness
from tickertape.api.keys import Keys
from tickertape.api.metrics import Metrics
from tickertape.api.options import WireOptions
from tickertape.api.proto.tickertape.v1 import (
    answer_pb2,
    chat_pb2,
    generate_pb2,
    sampling_pb2,
    token_stream_pb2,
)
from tickertape.api.service import Service
from tickertape.plugins.manager import Plugins

__all__ = ["GrpcServer"]

_OWN: Final = (sampling_pb2, answer_pb2, generate_pb2, chat_pb2, token_stream_pb2, health_pb2)


class GrpcServer:
    """Created and used on one event loop. It serves from `start` to `stop`. `version` is what it says of itself."""

    def __init__(
        self,
        service: Service,
        readiness: Readiness,
        metrics: Metrics,
        *,
        options: GrpcOptions | None = None,
        wire: WireOptions | None = None,
        keys: Keys | None = None,
        plugins: Plugins | None = None,
        version: str = "0",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        chosen = GrpcOptions() if options is None else options
        shared = WireOptions() if wire is None else wire
        loaded = Plugins.none() if plugins is None else plugins
        rpcs = Rpcs(
            door=Door(Keys() if keys is None else keys, loaded.authenticators),
            metrics=metrics,
            observers=loaded.observers,
            running=service.running,
            options=chosen,
            clock=clock,
        )
        kserve = KServeService(service, readiness, version)
        fmaas = FmaasService(service)
        services: dict[str, Mapping[str, Method]] = {
            NATIVE: NativeService(service, shared).methods(),
            KSERVE: kserve.methods(),
            FMAAS: fmaas.methods(),
        }
        files = [_file(module.DESCRIPTOR) for module in _OWN]
        files += [*kserve.protocol.files.file, *fmaas.protocol.files.file]
        names = (*services, HEALTH)
        services[HEALTH] = Health(readiness, service.models, names).methods()
        reflection = Reflection(names, files).methods()
        services |= {REFLECTION: reflection, REFLECTION_ALPHA: reflection}
        self._server = grpc.aio.server(options=channel_arguments(chosen))
        self._server.add_generic_rpc_handlers([rpcs.service(name, methods) for name, methods in services.items()])

    async def start(self, address: str, credentials: grpc.ServerCredentials | None = None) -> int:
        """Listens on `address` (`host:port`, port 0: any) and returns the port. None: without TLS. Raises OSError when
        it cannot be had."""
        try:
            if credentials is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise OSError(f"gRPC cannot listen on {address}") from error
        await self._server.start()
        return int(port)

    async def stop(self, grace_s: float) -> None:
        """Takes no more calls; those under way have `grace_s` to end."""
        await self._server.stop(grace_s)


def _file(descriptor: Any) -> FileDescriptorProto:
    found = FileDescriptorProto()
    descriptor.CopyToProto(found)
    return found
