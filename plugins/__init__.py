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

from tickertape.core.backend import Backend, BackendKind, BackendOptions, Capabilities, ModelSpec
from tickertape.core.batch import LAST, Array, Batch, Logprobs, Masks, Opened, Row, StepOutput
from tickertape.core.errors import (
    EngineDead,
    InvalidRequest,
    PluginError,
    RunnerError,
    StartupError,
    TickertapeError,
    Unavailable,
)
from tickertape.core.memory import CacheGroup, Limits, MemoryPlan
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
from tickertape.core.request import (
    Finish,
    Grammar,
    Request,
    SamplingParams,
    TokenDelta,
    TokenLogprobs,
    pack_tokens,
    unpack_tokens,
)
from tickertape.core.sampling import Sampler
from tickertape.core.sources import FileEntry, FileSink, Manifest, WeightSource
from tickertape.plugins.hookspecs import API, hookimpl

__all__ = [
    "API",
    "LAST",
    "Answer",
    "Array",
    "Backend",
    "BackendKind",
    "BackendOptions",
    "Batch",
    "CacheGroup",
    "Capabilities",
    "Engine",
    "EngineDead",
    "EngineStats",
    "FileEntry",
    "FileSink",
    "Finish",
    "Grammar",
    "InvalidRequest",
    "Item",
    "Limits",
    "Logprobs",
    "Manifest",
    "Masks",
    "MemoryPlan",
    "ModelRunner",
    "ModelSpec",
    "Opened",
    "PluginError",
    "Predictor",
    "Progress",
    "Request",
    "Row",
    "RunnerError",
    "Sampler",
    "SamplingParams",
    "Signature",
    "StartupError",
    "StepOutput",
    "TensorSpec",
    "TickertapeError",
    "TokenDelta",
    "TokenLogprobs",
    "Unavailable",
    "WeightSet",
    "WeightSource",
    "hookimpl",
    "pack_tokens",
    "unpack_tokens",
]
