"""Who may come in over gRPC, and what everybody may ask: keys, TLS, health, reflection."""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse

from tickertape.api.proto.tickertape.v1.generate_pb2 import GenerateRequest, Prompt
from tickertape.api.proto.tickertape.v1.token_stream_pb2 import ListModelsRequest
from tickertape.api.proto.tickertape.v1.token_stream_pb2_grpc import TokenStreamStub
from tickertape.grpc_tls import credentials
from tickertape.testing.front import PLAIN_TEXT, Front
from tickertape.testing.grpc_front import grpc_served
from tickertape.tls import TlsFiles

Make = Callable[..., Awaitable[Front]]

SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING
PLAIN = GenerateRequest(model="scripted", prompts=[Prompt(text="plain")], sampling={"max_tokens": 40})
SERVICES = {
    "fmaas.GenerationService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
    "inference.GRPCInferenceService",
    "tickertape.v1.TokenStream",
}


async def refused(work: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await work
    return raised.value


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", "Bearer wrong"),),
        (("authorization", "Basic right"),),
        (("authorization", "Bearer right"), ("authorization", "Bearer right")),
    ],
)
async def test_no_key_or_a_wrong_one(make_front: Make, metadata: Any) -> None:
    front = await make_front()
    async with grpc_served(front, api_keys=("right",)) as address, grpc.aio.insecure_channel(address) as channel:
        stub = TokenStreamStub(channel)
        error = await refused(stub.ListModels(ListModelsRequest(), metadata=metadata))
        assert error.code() == grpc.StatusCode.UNAUTHENTICATED
        stream = stub.GenerateStream(PLAIN, metadata=metadata)
        assert (await refused(stream.read())).code() == grpc.StatusCode.UNAUTHENTICATED
        reflect = channel.stream_stream(
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            request_serializer=ServerReflectionRequest.SerializeToString,
            response_deserializer=ServerReflectionResponse.FromString,
        )
        walk = reflect(iter([ServerReflectionRequest(list_services="")]), metadata=metadata)
        assert (await refused(walk.read())).code() == grpc.StatusCode.UNAUTHENTICATED
        good = (("authorization", "Bearer right"),)
        assert (await stub.Generate(PLAIN, metadata=good)).choices[0].text.strip() == PLAIN_TEXT
        assert (await HealthStub(channel).Check(HealthCheckRequest())).status == SERVING


class Pki:
    """Files of an authority's server certificate, and credentials of clients."""

    def __init__(self, directory: Path) -> None:
        self.ca = trustme.CA()
        self.directory = directory
        self.files = TlsFiles(directory / "cert.pem", directory / "key.pem", directory / "ca.pem")
        self.renew(self.ca)

    def renew(self, ca: trustme.CA) -> None:
        """The files of another authority."""
        self.ca = ca
        ca.cert_pem.write_to_path(self.directory / "ca.pem")
        cert = self.ca.issue_cert("localhost")
        cert.private_key_pem.write_to_path(self.files.key)
        self.files.cert.write_bytes(b"".join(blob.bytes() for blob in cert.cert_chain_pems))

    def client(self, authority: trustme.CA | None = None, **more: Any) -> grpc.ChannelCredentials:
        own = (self.ca if authority is None else authority).issue_cert("client@localhost", **more)
        chain = b"".join(blob.bytes() for blob in own.cert_chain_pems)
        return grpc.ssl_channel_credentials(self.ca.cert_pem.bytes(), own.private_key_pem.bytes(), chain)


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path)


async def test_mutual_tls(make_front: Make, pki: Pki) -> None:
    front = await make_front()
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    bare = grpc.ssl_channel_credentials(pki.ca.cert_pem.bytes())
    async with grpc_served(front, credentials=credentials(pki.files)) as address:

        async def code(channel: grpc.aio.Channel) -> grpc.StatusCode:
            async with channel:
                return (await refused(TokenStreamStub(channel).ListModels(ListModelsRequest(), timeout=5))).code()

        for wrong in (bare, pki.client(not_after=yesterday), pki.client(trustme.CA())):
            assert await code(grpc.aio.secure_channel(address, wrong)) == grpc.StatusCode.UNAVAILABLE
        assert await code(grpc.aio.insecure_channel(address)) == grpc.StatusCode.UNAVAILABLE
        async with grpc.aio.secure_channel(address, pki.client()) as channel:
            assert (await TokenStreamStub(channel).Generate(PLAIN)).choices[0].text.strip() == PLAIN_TEXT


async def test_certificates_are_read_again(make_front: Make, pki: Pki, caplog: pytest.LogCaptureFixture) -> None:
    front = await make_front()
    async with grpc_served(front, credentials=credentials(pki.files)) as address:

        async def works(credentials: grpc.ChannelCredentials) -> bool:
            options = [("grpc.use_local_subchannel_pool", 1)]
            async with grpc.aio.secure_channel(address, credentials, options) as channel:
                try:
                    await TokenStreamStub(channel).ListModels(ListModelsRequest(), timeout=5)
                except grpc.aio.AioRpcError:
                    return False
                return True

        before = pki.client()
        assert await works(before)
        pki.files.cert.write_text("nonsense")
        assert await works(before)
        assert "stays in force" in caplog.text
        pki.renew(trustme.CA())
        assert await works(pki.client())
        assert not await works(before)


async def test_health_says_what_readyz_says(make_front: Make) -> None:
    front = await make_front()
    async with grpc_served(front) as address, grpc.aio.insecure_channel(address) as channel:
        health = HealthStub(channel)
        for name in ("", "scripted", "tickertape.v1.TokenStream", "inference.GRPCInferenceService"):
            assert (await health.Check(HealthCheckRequest(service=name))).status == SERVING
        error = await refused(health.Check(HealthCheckRequest(service="nope")))
        assert error.code() == grpc.StatusCode.NOT_FOUND
        unknown = health.Watch(HealthCheckRequest(service="nope"))
        assert (await unknown.read()).status == HealthCheckResponse.SERVICE_UNKNOWN
        watch = health.Watch(HealthCheckRequest(service="scripted"))
        assert (await watch.read()).status == SERVING
        front.readiness.set_state("ready")
        front.readiness.set_state("loading", "WorkerRestarting")
        assert (await watch.read()).status == NOT_SERVING
        assert (await health.Check(HealthCheckRequest())).status == NOT_SERVING
        assert (await refused(TokenStreamStub(channel).Generate(PLAIN))).code() == grpc.StatusCode.UNAVAILABLE
        front.readiness.set_state("ready")
        assert (await watch.read()).status == SERVING
        unknown.cancel()
        watch.cancel()


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_a_walk_by_reflection(make_front: Make, version: str) -> None:
    """As grpcurl does it: the services, their files, everything that these import."""
    front = await make_front()
    async with grpc_served(front) as address, grpc.aio.insecure_channel(address) as channel:
        call = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=ServerReflectionRequest.SerializeToString,
            response_deserializer=ServerReflectionResponse.FromString,
        )()

        async def ask(**what: str) -> ServerReflectionResponse:
            await call.write(ServerReflectionRequest(**what))
            answer: ServerReflectionResponse = await call.read()
            return answer

        listed = await ask(list_services="")
        names = {service.name for service in listed.list_services_response.service}
        assert names == SERVICES
        for name in names:
            answer = await ask(file_containing_symbol=name)
            files = [
                FileDescriptorProto.FromString(each) for each in answer.file_descriptor_response.file_descriptor_proto
            ]
            pool = DescriptorPool()
            for file in reversed(files):
                pool.Add(file)
            assert pool.FindServiceByName(name).methods
            byname = await ask(file_by_filename=files[0].name)
            assert byname.file_descriptor_response.file_descriptor_proto[0] == files[0].SerializeToString()
        assert (await ask(file_containing_symbol="no.such")).error_response.error_code == 5
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF


async def test_the_access_line(make_front: Make, caplog: pytest.LogCaptureFixture) -> None:
    front = await make_front()
    caplog.set_level(logging.INFO, "tickertape.access")
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    async with grpc_served(front) as address, grpc.aio.insecure_channel(address) as channel:
        metadata = (("traceparent", trace), ("x-request-id", "r1"))
        await TokenStreamStub(channel).Generate(PLAIN, metadata=metadata)
        await asyncio.sleep(0)
    fields = next(record.fields for record in caplog.records if record.name == "tickertape.access")  # type: ignore[attr-defined]
    assert fields["traceparent"] == trace
    assert (fields["request_id"], fields["method"], fields["status"], fields["client"]) == (
        "r1",
        "GRPC",
        0,
        "127.0.0.1",
    )
    assert (fields["model"], fields["completion_tokens"], fields["outcome"]) == ("scripted", 13, "ok")
