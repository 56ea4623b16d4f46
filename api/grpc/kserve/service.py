"""`inference.GRPCInferenceService`, method by method."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from tickertape.api.events import Event
from tickertape.api.generation import Generation
from tickertape.api.grpc.kserve.answers import InferAnswer
from tickertape.api.grpc.kserve.interleaved import interleaved
from tickertape.api.grpc.kserve.protocol import INPUTS, OUTPUTS, TYPES, messages
from tickertape.api.grpc.kserve.requests import InferRequest, read_request
from tickertape.api.grpc.kserve.statistics import Statistics
from tickertape.api.grpc.rpc import Call, Method
from tickertape.api.health import Readiness
from tickertape.api.models import ServedModel
from tickertape.api.openai.routes import Completion
from tickertape.api.service import Service
from tickertape.core.errors import ModelNotFound, TickertapeError, Unavailable

__all__ = ["KServeService"]

_VERSION = "1"
_PLATFORM = "tickertape_llm"


class KServeService:
    """Used on the front's loop only."""

    def __init__(self, service: Service, readiness: Readiness, version: str) -> None:
        self.protocol = messages()
        self._models = service.models
        self._readiness = readiness
        self._version = version
        self._kind = Completion(service)
        self._statistics = Statistics()

    def methods(self) -> dict[str, Method]:
        of = self.protocol

        def method(run: Any, name: str, *, open: bool = False) -> Method:
            return Method(run, getattr(of, f"{name}Request"), getattr(of, f"{name}Response"), open=open)

        return {
            "ServerLive": method(self.server_live, "ServerLive", open=True),
            "ServerReady": method(self.server_ready, "ServerReady", open=True),
            "ModelReady": method(self.model_ready, "ModelReady"),
            "ServerMetadata": method(self.server_metadata, "ServerMetadata"),
            "ModelMetadata": method(self.model_metadata, "ModelMetadata"),
            "ModelConfig": method(self.model_config, "ModelConfig"),
            "ModelStatistics": method(self.model_statistics, "ModelStatistics"),
            "ModelInfer": method(self.infer, "ModelInfer"),
            "ModelStreamInfer": Method(
                self.stream_infer, of.ModelInferRequest, of.ModelStreamInferResponse, stream=True, stream_in=True
            ),
        }

    async def server_live(self, _: Any, __: Call) -> Any:
        return self.protocol.ServerLiveResponse(live=self._readiness.alive)

    async def server_ready(self, _: Any, __: Call) -> Any:
        return self.protocol.ServerReadyResponse(ready=self._readiness.ready)

    async def model_ready(self, request: Any, call: Call) -> Any:
        try:
            self._model(request.name, request.version, call)
        except (Unavailable, ModelNotFound):
            return self.protocol.ModelReadyResponse(ready=False)
        return self.protocol.ModelReadyResponse(ready=True)

    async def server_metadata(self, _: Any, __: Call) -> Any:
        return self.protocol.ServerMetadataResponse(
            name="tickertape", version=self._version, extensions=["model_configuration", "statistics"]
        )

    async def model_metadata(self, request: Any, call: Call) -> Any:
        model = self._model(request.name, request.version, call)
        found = self.protocol.ModelMetadataResponse(name=model.name, versions=[_VERSION], platform=_PLATFORM)
        for specs, tensors in ((INPUTS, found.inputs), (OUTPUTS, found.outputs)):
            for spec in specs:
                tensors.add(name=spec.name, datatype=spec.datatype, shape=[1 if specs is INPUTS else -1])
        return found

    async def model_config(self, request: Any, call: Call) -> Any:
        model = self._model(request.name, request.version, call)
        types = self.protocol.enum("DataType")
        found = self.protocol.ModelConfigResponse()
        config = found.config
        config.name, config.platform, config.backend = model.name, _PLATFORM, "tickertape"
        config.model_transaction_policy.decoupled = True
        for spec in INPUTS:
            config.input.add(name=spec.name, data_type=types[TYPES[spec.datatype]], dims=[1], optional=spec.optional)
        for spec in OUTPUTS:
            config.output.add(name=spec.name, data_type=types[TYPES[spec.datatype]], dims=[-1])
        return found

    async def model_statistics(self, request: Any, call: Call) -> Any:
        models = [self._model(request.name, request.version, call)] if request.name else self._models.list()
        found = self.protocol.ModelStatisticsResponse()
        for model in models:
            self._statistics.fill(found.model_stats.add(name=model.name, version=_VERSION), model.name)
        return found

    async def infer(self, request: Any, call: Call) -> Any:
        """All of the answer at once, whatever `stream` says. Several may wait in one call's stream."""
        parsed = read_request(request)
        self._model(request.model_name, request.model_version, call)
        events: list[Event] = []
        generation = await self._start(parsed, call)
        begun, ok = time.monotonic(), False
        try:
            async for more in generation:
                events += more
            ok = True
            return InferAnswer(self.protocol, parsed, request.id, generation).response(events, final=True)
        finally:
            await self._end(generation, call, begun, ok=ok)

    async def stream_infer(self, requests: AsyncIterator[Any], call: Call) -> AsyncGenerator[Any, None]:
        """Requests of one stream run side by side; what is wrong with one ends that one alone."""
        async for answer in interleaved(requests, lambda request: self._answers(request, call), self._fault):
            yield answer

    async def _answers(self, request: Any, call: Call) -> AsyncGenerator[Any, None]:
        wrapped = self.protocol.ModelStreamInferResponse
        parsed = read_request(request)
        if not parsed.stream:
            yield wrapped(infer_response=await self.infer(request, call))
            return
        self._model(request.model_name, request.model_version, call)
        generation = await self._start(parsed, call)
        answer = InferAnswer(self.protocol, parsed, request.id, generation)
        begun, ok, num_ended = time.monotonic(), False, 0
        try:
            async for events in generation:
                num_ended += sum(getattr(event, "finish", None) is not None for event in events)
                final = num_ended == generation.num_choices and not parsed.empty_final
                yield wrapped(infer_response=answer.response(events, final=final))
            if parsed.empty_final:
                yield wrapped(infer_response=answer.empty(final=True))
            ok = True
        finally:
            await self._end(generation, call, begun, ok=ok)

    def _fault(self, request: Any, error: TickertapeError) -> Any:
        answer = self.protocol.ModelStreamInferResponse(error_message=error.message)
        answer.infer_response.id = request.id
        answer.infer_response.model_name = request.model_name
        answer.infer_response.parameters["triton_final_response"].bool_param = True
        return answer

    async def _start(self, parsed: InferRequest, call: Call) -> Generation:
        body = self._kind.parse(parsed.body, lenient=False)
        bounds = [each for each in (call.timeout_s, parsed.timeout_s) if each is not None]
        generation = await self._kind.start(body.request, tenant=call.tenant, timeout_s=min(bounds, default=None))  # type: ignore[arg-type]
        call.started(generation)
        return generation

    async def _end(self, generation: Generation, call: Call, begun: float, *, ok: bool) -> None:
        await generation.aclose()
        call.ended(generation)
        self._statistics.asked(generation.model.name, ok=ok, duration_s=time.monotonic() - begun)

    def _model(self, name: str, version: str, call: Call) -> ServedModel:
        call.named(name)
        model = self._models.get(name)
        if version not in ("", _VERSION):
            raise ModelNotFound(f"The model {name[:200]!r} has no version {version[:20]!r}", param="model_version")
        return model
