"""Server reflection, v1 and v1alpha: what grpcurl and the like ask for before they call."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from typing import Any, Final

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc import StatusCode
from grpc_reflection.v1alpha import reflection_pb2 as alpha

from tickertape.api.grpc.rpc import Call, Method

__all__ = ["REFLECTION", "REFLECTION_ALPHA", "Reflection"]

REFLECTION_ALPHA: Final = "grpc.reflection.v1alpha.ServerReflection"
REFLECTION: Final = "grpc.reflection.v1.ServerReflection"
"""The same messages under another name."""


class Reflection:
    """`files` describe the services; a file may come more than once, and after those that it imports or before."""

    def __init__(self, services: Sequence[str], files: Iterable[FileDescriptorProto]) -> None:
        self._services = sorted((*services, REFLECTION, REFLECTION_ALPHA))
        own = FileDescriptorProto()
        alpha.DESCRIPTOR.CopyToProto(own)
        self._pool = DescriptorPool()
        for file in {file.name: file for file in (*files, own, _renamed(own))}.values():
            self._pool.Add(file)

    def methods(self) -> dict[str, Method]:
        info = Method(
            self.info, alpha.ServerReflectionRequest, alpha.ServerReflectionResponse, stream=True, stream_in=True
        )
        return {"ServerReflectionInfo": info}

    async def info(self, requests: AsyncIterator[Any], _: Call) -> AsyncGenerator[Any, None]:
        async for request in requests:
            answer = alpha.ServerReflectionResponse(valid_host=request.host, original_request=request)
            try:
                self._fill(answer, request)
            except KeyError:
                answer.error_response.error_code = StatusCode.NOT_FOUND.value[0]
                answer.error_response.error_message = "There is no such symbol or file"
            yield answer

    def _fill(self, answer: Any, request: Any) -> None:
        """Raises KeyError."""
        kind, pool = request.WhichOneof("message_request"), self._pool
        if kind == "list_services":
            for name in self._services:
                answer.list_services_response.service.add(name=name)
        elif kind == "file_by_filename":
            _add_files(answer, pool.FindFileByName(request.file_by_filename))
        elif kind == "file_containing_symbol":
            _add_files(answer, pool.FindFileContainingSymbol(request.file_containing_symbol))
        elif kind == "all_extension_numbers_of_type":
            name = request.all_extension_numbers_of_type
            pool.FindMessageTypeByName(name)
            answer.all_extension_numbers_response.base_type_name = name  # proto3 has no extensions
        elif kind == "file_containing_extension":
            raise KeyError(kind)
        else:
            answer.error_response.error_code = StatusCode.INVALID_ARGUMENT.value[0]
            answer.error_response.error_message = "The request asks for nothing"


def _add_files(answer: Any, file: FileDescriptor) -> None:
    """The file, then all that it imports, each before its own imports."""
    order: dict[str, bytes] = {}

    def visit(each: FileDescriptor) -> None:
        if each.name not in order:
            for imported in each.dependencies:
                visit(imported)
            order[each.name] = each.serialized_pb

    visit(file)
    answer.file_descriptor_response.file_descriptor_proto.extend(reversed(order.values()))


def _renamed(file: FileDescriptorProto) -> FileDescriptorProto:
    """v1 of the reflection service, from v1alpha."""
    found = FileDescriptorProto()
    found.CopyFrom(file)
    found.name = file.name.replace("v1alpha", "v1")
    found.package = file.package.replace("v1alpha", "v1")
    for message in found.message_type:
        for field in message.field:
            if field.type_name:
                field.type_name = field.type_name.replace("v1alpha", "v1")
    for service in found.service:
        for method in service.method:
            method.input_type = method.input_type.replace("v1alpha", "v1")
            method.output_type = method.output_type.replace("v1alpha", "v1")
    return found
