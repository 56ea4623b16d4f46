"""The protocol's messages, and the tensors that a language model takes and gives."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from tickertape.api.grpc.foreign import Foreign

__all__ = ["INPUTS", "KSERVE", "OUTPUTS", "TYPES", "TensorSpec", "messages"]

KSERVE: Final = "inference.GRPCInferenceService"


class TensorSpec(NamedTuple):
    """`datatype` in the protocol's words. Every shape is [1] in a request, and [choices] in an answer."""

    name: str
    datatype: str
    optional: bool = True


INPUTS: Final = (
    TensorSpec("text_input", "BYTES", optional=False),
    TensorSpec("stream", "BOOL"),
    TensorSpec("sampling_parameters", "BYTES"),
    TensorSpec("exclude_input_in_output", "BOOL"),
    TensorSpec("return_finish_reason", "BOOL"),
    TensorSpec("return_num_input_tokens", "BOOL"),
    TensorSpec("return_num_output_tokens", "BOOL"),
    TensorSpec("return_logprobs", "BOOL"),
)
OUTPUTS: Final = (
    TensorSpec("text_output", "BYTES", optional=False),
    TensorSpec("finish_reason", "BYTES"),
    TensorSpec("num_input_tokens", "UINT32"),
    TensorSpec("num_output_tokens", "UINT32"),
    TensorSpec("logprobs", "BYTES"),
)
TYPES: Final = {"BYTES": "TYPE_STRING", "BOOL": "TYPE_BOOL", "UINT32": "TYPE_UINT32"}
"""What a model's configuration calls the datatypes."""


def messages() -> Any:
    """The message classes by their names."""
    return Foreign("inference")
