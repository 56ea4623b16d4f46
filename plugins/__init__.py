"""All that a plugin author imports: the markers, the records and the ports. Nothing else of tickertape is promised.

    from tickertape.plugins import Backend, hookimpl

    API = (1, 0)

    @hookimpl
    def register_backends(register):
        register(Backend(name="mine", kind="runner", factory="mine.runner:make"))

and in the plugin's pyproject.toml:

    [project.entry-points.tickertape]
    mine = "mine"
"""

if __name__ != "tickertape.plugins":
    raise ModuleNotFoundError("this room is imported as tickertape.plugins", name=__name__)

from tickertape.core.backend import Backend, BackendKind, BackendOptions, Capabilities, ModelSpec
from tickertape.core.batch import LAST, Array, Batch, Logprobs, Masks, Opened, Row, StepOutput
from tickertape.core.errors import (
    ContextLengthExceeded,
    EngineDead,
    InvalidApiKey,
    InvalidRequest,
    OriginBusy,
    OriginChanged,
    OriginError,
    Overloaded,
    PluginError,
    RowError,
    RunnerError,
    StartupError,
    TickertapeError,
    Unavailable,
)
from tickertape.core.logits_processor import LogitsContext, LogitsProcessor, LogitsProcessorSpec
from tickertape.core.memory import CacheGroup, Limits, MemoryPlan
from tickertape.core.output_parser import (
    CallFormat,
    ContentPart,
    ModelSigns,
    OutputParser,
    OutputParserKind,
    OutputParserSpec,
    OutputPart,
    ParserContext,
    ReasoningPart,
    ToolCallPart,
    new_call_id,
)
from tickertape.core.ports import (
    Answer,
    Engine,
    EngineStats,
    Item,
    ModelRunner,
    Predictor,
    Progress,
    Signature,
    TensorSpec,
    WeightSet,
)
from tickertape.core.quantization import SCALE_SUFFIX, becomes_int8, is_int8, quantize_rows
from tickertape.core.request import (
    Finish,
    Grammar,
    LogitsProcessorCall,
    Request,
    SamplingParams,
    Thinking,
    TokenDelta,
    TokenLogprobs,
    pack_tokens,
    unpack_tokens,
)
from tickertape.core.sampling import Sampler
from tickertape.core.sources import (
    CHUNK_BYTES,
    AnySource,
    FileEntry,
    FileSink,
    Manifest,
    Origin,
    RangedSource,
    WeightSource,
)
from tickertape.core.tokenizer import Tokenizer, TokenizerSpec
from tickertape.plugins.caller import Caller
from tickertape.plugins.events import Event, RequestEvent, StepEvent
from tickertape.plugins.hookspecs import API, Process, hookimpl
from tickertape.plugins.routes import PluginRoute

__all__ = [
    "API",
    "CHUNK_BYTES",
    "LAST",
    "SCALE_SUFFIX",
    "Answer",
    "AnySource",
    "Array",
    "Backend",
    "BackendKind",
    "BackendOptions",
    "Batch",
    "CacheGroup",
    "CallFormat",
    "Caller",
    "Capabilities",
    "ContentPart",
    "ContextLengthExceeded",
    "Engine",
    "EngineDead",
    "EngineStats",
    "Event",
    "FileEntry",
    "FileSink",
    "Finish",
    "Grammar",
    "InvalidApiKey",
    "InvalidRequest",
    "Item",
    "Limits",
    "LogitsContext",
    "LogitsProcessor",
    "LogitsProcessorCall",
    "LogitsProcessorSpec",
    "Logprobs",
    "Manifest",
    "Masks",
    "MemoryPlan",
    "ModelRunner",
    "ModelSigns",
    "ModelSpec",
    "Opened",
    "Origin",
    "OriginBusy",
    "OriginChanged",
    "OriginError",
    "OutputParser",
    "OutputParserKind",
    "OutputParserSpec",
    "OutputPart",
    "Overloaded",
    "ParserContext",
    "PluginError",
    "PluginRoute",
    "Predictor",
    "Process",
    "Progress",
    "RangedSource",
    "ReasoningPart",
    "Request",
    "RequestEvent",
    "Row",
    "RowError",
    "RunnerError",
    "Sampler",
    "SamplingParams",
    "Signature",
    "StartupError",
    "StepEvent",
    "StepOutput",
    "TensorSpec",
    "Thinking",
    "TickertapeError",
    "TokenDelta",
    "TokenLogprobs",
    "Tokenizer",
    "TokenizerSpec",
    "ToolCallPart",
    "Unavailable",
    "WeightSet",
    "WeightSource",
    "becomes_int8",
    "hookimpl",
    "is_int8",
    "new_call_id",
    "pack_tokens",
    "quantize_rows",
    "unpack_tokens",
]
