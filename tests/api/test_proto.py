"""The .proto files and what was made of them."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
import tritonclient.grpc.service_pb2 as tritons
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from tickertape.api.grpc.foreign import Foreign
from tickertape.api.grpc.native.bodies import chat_field
from tickertape.api.openai.requests import ChatRequest, CompletionRequest
from tickertape.api.proto.generate import HERE, generate
from tickertape.api.proto.tickertape.v1 import sampling_pb2

OWN = sorted((HERE / "tickertape" / "v1").glob("*.proto"))


def test_what_is_checked_in_is_what_make_proto_makes(tmp_path: Path) -> None:
    for path in generate(tmp_path):
        assert (tmp_path / path).read_bytes() == (HERE / path).read_bytes(), f"{path}: make proto"


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.stem)
def test_everything_is_documented_and_named_by_the_rules(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert "package tickertape.v1;" in lines
    for before, line in pairwise(lines):
        said = line.strip()
        if re.match(r"(message|enum|service|rpc|oneof) ", said) or re.search(r" = \d+;$", said):
            assert before.strip().startswith("// "), f"{path.name}: {said}"
        if found := re.match(r"(message|enum|service|rpc) (\w+)", said):
            assert re.fullmatch(r"[A-Z][A-Za-z0-9]+", found[2])
        elif found := re.search(r"(\w+) = \d+;$", said):
            upper = found[1].isupper()
            assert re.fullmatch(r"FINISH_REASON_[A-Z_]+" if upper else r"[a-z][a-z0-9_]*", found[1])
        if found := re.match(r"rpc (\w+)\((\w+)\) returns \((stream )?(\w+)\)", said):
            assert found[2] == f"{found[1].removesuffix('Stream')}Request"  # both ways of asking share their request
            assert found[4] == f"{found[1]}Response"


def test_every_sampling_field_of_the_http_side_is_there() -> None:
    """By the names of the shared fields of both bodies, but for spellings of others that mean the same."""
    shared = set(ChatRequest.model_fields) & set(CompletionRequest.model_fields)
    elsewhere = {
        "model", "stream", "stream_options", "user", "metadata", "echo", "add_special_tokens",  # not of sampling
        "guided_choice", "guided_grammar", "guided_json", "guided_regex", "response_format", "structural_tag",
        "guided_decoding_backend", "guided_whitespace_pattern", "service_tier", "store",  # so are these
        "return_tokens_as_token_ids",  # ids and texts are both there
    }  # fmt: skip
    here = {field.name for field in sampling_pb2.Sampling.DESCRIPTOR.fields}
    assert shared - elsewhere - here == set()
    assert here - shared == {"best_of"}


def test_fields_have_the_names_that_clients_of_this_wire_know() -> None:
    assert chat_field("top_logprobs") == "sampling.logprobs"
    assert chat_field("stop") == "sampling.stop"
    assert chat_field("messages[0].role") == "messages[0].role"
    assert chat_field("tools[1].function.parameters") == "tools[1].parameters_json"


def test_the_protocol_of_triton_is_compatible() -> None:
    """Each field that we declare has the number, type and label that tritonclient's has, in every message."""
    theirs = FileDescriptorProto()
    tritons.DESCRIPTOR.CopyToProto(theirs)
    known = {message.name: message for message in theirs.message_type}
    methods = {method.name: method for method in theirs.service[0].method}
    (ours,) = Foreign("inference").files.file
    compared = 0
    for message in ours.message_type:
        if message.name not in known:  # of the model's configuration
            continue
        fields = {field.name: field for field in known[message.name].field}
        for field in message.field:
            other = fields[field.name]
            assert (field.number, field.type, field.label, field.type_name) == (
                other.number, other.type, other.label, other.type_name,
            ), f"{message.name}.{field.name}"  # fmt: skip
            compared += 1
    assert compared > 60
    for method in ours.service[0].method:
        other_method = methods[method.name]
        assert (method.input_type, method.output_type) == (other_method.input_type, other_method.output_type)
        assert (method.client_streaming, method.server_streaming) == (
            other_method.client_streaming, other_method.server_streaming,
        )  # fmt: skip
