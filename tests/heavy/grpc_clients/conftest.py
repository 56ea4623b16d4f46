"""Where the server of run.py is, and stubs made of its .proto files alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest


@pytest.fixture(scope="session")
def address() -> str:
    return os.environ["TICKERTAPE_GRPC"]


@pytest.fixture(scope="session")
def key() -> tuple[tuple[str, str], ...]:
    """Metadata."""
    return (("authorization", f"Bearer {os.environ['TICKERTAPE_KEY']}"),)


@pytest.fixture(scope="session")
def protos() -> Path:
    """The directory of the public .proto files."""
    return Path(__file__).parents[3] / "api" / "proto"


@pytest.fixture(scope="session")
def stubs(protos: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The generated modules, by their names."""
    import grpc_tools
    from grpc_tools import protoc

    assert "tickertape" not in sys.modules, "this environment is to know nothing but the .proto files"
    made = tmp_path_factory.mktemp("stubs")
    files = sorted(str(path.relative_to(protos)) for path in (protos / "tickertape").rglob("*.proto"))
    arguments = [f"-I{protos}", f"-I{Path(grpc_tools.__file__).parent / '_proto'}"]
    outputs = [f"--python_out={made}", f"--grpc_python_out={made}"]
    assert protoc.main(["protoc", *arguments, *outputs, *files]) == 0
    sys.path.insert(0, str(made))
    from tickertape.v1 import chat_pb2, generate_pb2, sampling_pb2, token_stream_pb2, token_stream_pb2_grpc

    assert Path(chat_pb2.__file__).is_relative_to(made)
    return SimpleNamespace(
        chat=chat_pb2, generate=generate_pb2, sampling=sampling_pb2, service=token_stream_pb2,
        stub=token_stream_pb2_grpc.TokenStreamStub,
    )  # fmt: skip


@pytest.fixture
def channel(address: str) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(address) as channel:
        yield channel
