"""Message classes of protocols that are not ours, in a pool of descriptors of their own: other libraries in the process
(tritonclient is one) register the same names in the default pool, and that takes a name once."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

__all__ = ["Foreign"]

_FOLDER: Final = Path(__file__).parent.parent / "proto" / "foreign"


class Foreign:
    """A protocol by the name of its .proto file. Messages are attributes: `Foreign("fmaas").GenerationRequest`."""

    def __init__(self, name: str) -> None:
        self.files = FileDescriptorSet.FromString((_FOLDER / f"{name}.binpb").read_bytes())
        self._package = self.files.file[-1].package
        self._pool = DescriptorPool()
        for file in self.files.file:
            self._pool.Add(file)
        self._classes = cache(self._message)
        self._enums = cache(self._enum)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._classes(name)

    def enum(self, name: str) -> dict[str, int]:
        """The numbers of an enum's names."""
        return self._enums(name)

    def _message(self, name: str) -> Any:
        return GetMessageClass(self._pool.FindMessageTypeByName(f"{self._package}.{name}"))

    def _enum(self, name: str) -> dict[str, int]:
        values = self._pool.FindEnumTypeByName(f"{self._package}.{name}").values
        return {value.name: value.number for value in values}
