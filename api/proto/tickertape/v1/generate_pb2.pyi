from tickertape.api.proto.tickertape.v1 import answer_pb2 as _answer_pb2
from tickertape.api.proto.tickertape.v1 import sampling_pb2 as _sampling_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GenerateRequest(_message.Message):
    __slots__ = ("model", "prompts", "sampling", "echo", "add_special_tokens", "resumable", "resume_token", "received")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    ECHO_FIELD_NUMBER: _ClassVar[int]
    ADD_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RESUMABLE_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    model: str
    prompts: _containers.RepeatedCompositeFieldContainer[Prompt]
    sampling: _sampling_pb2.Sampling
    echo: bool
    add_special_tokens: bool
    resumable: bool
    resume_token: str
    received: int
    def __init__(self, model: _Optional[str] = ..., prompts: _Optional[_Iterable[_Union[Prompt, _Mapping]]] = ..., sampling: _Optional[_Union[_sampling_pb2.Sampling, _Mapping]] = ..., echo: _Optional[bool] = ..., add_special_tokens: _Optional[bool] = ..., resumable: _Optional[bool] = ..., resume_token: _Optional[str] = ..., received: _Optional[int] = ...) -> None: ...

class Prompt(_message.Message):
    __slots__ = ("text", "tokens")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    text: str
    tokens: TokenIds
    def __init__(self, text: _Optional[str] = ..., tokens: _Optional[_Union[TokenIds, _Mapping]] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class GenerateChoice(_message.Message):
    __slots__ = ("index", "text", "token_ids", "logprobs", "finish")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    index: int
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[_answer_pb2.TokenLogprob]
    finish: _answer_pb2.Finish
    def __init__(self, index: _Optional[int] = ..., text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[_answer_pb2.TokenLogprob, _Mapping]]] = ..., finish: _Optional[_Union[_answer_pb2.Finish, _Mapping]] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("choices", "usage", "prompt_logprobs")
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    choices: _containers.RepeatedCompositeFieldContainer[GenerateChoice]
    usage: _answer_pb2.Usage
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[_answer_pb2.PromptLogprobs]
    def __init__(self, choices: _Optional[_Iterable[_Union[GenerateChoice, _Mapping]]] = ..., usage: _Optional[_Union[_answer_pb2.Usage, _Mapping]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[_answer_pb2.PromptLogprobs, _Mapping]]] = ...) -> None: ...

class GenerateStreamResponse(_message.Message):
    __slots__ = ("choices", "usage", "prompt_logprobs", "sequence", "resume_token")
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    choices: _containers.RepeatedCompositeFieldContainer[GenerateChoice]
    usage: _answer_pb2.Usage
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[_answer_pb2.PromptLogprobs]
    sequence: int
    resume_token: str
    def __init__(self, choices: _Optional[_Iterable[_Union[GenerateChoice, _Mapping]]] = ..., usage: _Optional[_Union[_answer_pb2.Usage, _Mapping]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[_answer_pb2.PromptLogprobs, _Mapping]]] = ..., sequence: _Optional[int] = ..., resume_token: _Optional[str] = ...) -> None: ...
