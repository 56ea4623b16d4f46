"""What plugin authors test with, shipped in the wheel. Everything promised is a name of this module.

    kits        RunnerConformance  EngineConformance  TokenizerConformance  OutputParserConformance
                RangedSourceConformance  WeightSourceConformance  LogitsProcessorConformance: override the fixture
                `subject` with a
    subject     Subject  EngineSubject  TokenizerSubject  ParserSubject  RangedSubject  SourceSubject
                ProcessorSubject
    models      write_llama  write_scripted  write_byte_level  plain_model  model_spec  model_weights
    parts       paged_engine (our engine over a runner)  LocalServer (the whole server, without a socket)

Fixtures `server`, `tiny_model` and `fake_clock` come with the wheel too. Nothing is imported before it is used, since
this package is imported in every run of pytest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tickertape.testing.engine import EngineConformance
    from tickertape.testing.engines import paged_engine
    from tickertape.testing.local_server import LocalServer
    from tickertape.testing.logits_processor import LogitsProcessorConformance, ProcessorSubject
    from tickertape.testing.models import model_spec, model_weights, plain_model, write_llama, write_scripted
    from tickertape.testing.output_parser import OutputParserConformance, ParserSubject
    from tickertape.testing.ranged_source import RangedSourceConformance, RangedSubject
    from tickertape.testing.rig import EngineSubject
    from tickertape.testing.runner import RunnerConformance
    from tickertape.testing.subject import Subject
    from tickertape.testing.tokenizer import TokenizerConformance, TokenizerSubject
    from tickertape.testing.tokenizers import write_byte_level
    from tickertape.testing.weight_source import SourceSubject, WeightSourceConformance

__all__ = [
    "EngineConformance",
    "EngineSubject",
    "LocalServer",
    "LogitsProcessorConformance",
    "OutputParserConformance",
    "ParserSubject",
    "ProcessorSubject",
    "RangedSourceConformance",
    "RangedSubject",
    "RunnerConformance",
    "SourceSubject",
    "Subject",
    "TokenizerConformance",
    "TokenizerSubject",
    "WeightSourceConformance",
    "model_spec",
    "model_weights",
    "paged_engine",
    "plain_model",
    "write_byte_level",
    "write_llama",
    "write_scripted",
]

_HOMES = {
    "engine": ("EngineConformance",),
    "engines": ("paged_engine",),
    "local_server": ("LocalServer",),
    "logits_processor": ("LogitsProcessorConformance", "ProcessorSubject"),
    "models": ("model_spec", "model_weights", "plain_model", "write_llama", "write_scripted"),
    "output_parser": ("OutputParserConformance", "ParserSubject"),
    "ranged_source": ("RangedSourceConformance", "RangedSubject"),
    "rig": ("EngineSubject",),
    "runner": ("RunnerConformance",),
    "subject": ("Subject",),
    "tokenizer": ("TokenizerConformance", "TokenizerSubject"),
    "tokenizers": ("write_byte_level",),
    "weight_source": ("SourceSubject", "WeightSourceConformance"),
}


def __getattr__(name: str) -> object:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
