"""grpc.health.v1, saying what /readyz says."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from typing import Final

from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from tickertape.api.grpc.rpc import Call, Method
from tickertape.api.health import Readiness
from tickertape.api.models import Models
from tickertape.core.errors import ModelNotFound

__all__ = ["HEALTH", "Health"]

HEALTH: Final = "grpc.health.v1.Health"

_SERVING = HealthCheckResponse.SERVING
_NOT_SERVING = HealthCheckResponse.NOT_SERVING
_UNKNOWN = HealthCheckResponse.SERVICE_UNKNOWN


class Health:
    """The server as a whole is the empty name; each gRPC service stands with it, each model for itself. `services` are
    the names of the former. Never asks for a key."""

    def __init__(self, readiness: Readiness, models: Models, services: Collection[str]) -> None:
        self._readiness = readiness
        self._models = models
        self._services = frozenset(("", *services))

    def methods(self) -> dict[str, Method]:
        return {
            "Check": Method(self.check, HealthCheckRequest, HealthCheckResponse, open=True),
            "Watch": Method(self.watch, HealthCheckRequest, HealthCheckResponse, stream=True, open=True),
        }

    async def check(self, request: HealthCheckRequest, _: Call) -> HealthCheckResponse:
        """Raises ModelNotFound for a name that is none."""
        status = self._status(request.service)
        if status == _UNKNOWN:
            raise ModelNotFound("There is no such service", param="service")
        return HealthCheckResponse(status=status)

    async def watch(self, request: HealthCheckRequest, _: Call) -> AsyncGenerator[HealthCheckResponse, None]:
        """The status now, and each time it changes."""
        told = None
        while True:
            changed = self._readiness.changed()
            status = self._status(request.service)
            if status != told:
                told = status
                yield HealthCheckResponse(status=status)
            await changed

    def _status(self, service: str) -> HealthCheckResponse.ServingStatus:
        if service in self._services:
            return _SERVING if self._readiness.ready else _NOT_SERVING
        if self._models.known(service):
            return _SERVING if self._readiness.ready else _NOT_SERVING
        return _UNKNOWN
