"""What turns a model's text into its tokens and back, read from its directory."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tickertape.api.generation_defaults import GenerationDefaults
from tickertape.api.model_tokenizer import ModelTokenizer
from tickertape.api.output_format import OutputFormat
from tickertape.api.templates import ChatTemplate
from tickertape.api.tokenizer import read_tokenizer
from tickertape.pieces import generation_defaults
from tickertape.plugins.manager import Plugins
from tickertape.settings import Settings

__all__ = ["ModelText", "read_text"]


class ModelText(NamedTuple):
    tokenizer: ModelTokenizer
    template: ChatTemplate | None
    output: OutputFormat
    defaults: GenerationDefaults


def read_text(directory: Path, plugins: Plugins, settings: Settings) -> ModelText:
    """Raises StartupError. Takes a moment: call it off the loop."""
    tokenizer = read_tokenizer(directory, plugins.tokenizers)
    if settings.chat_template is None:
        template = ChatTemplate.from_directory(directory)
    else:
        template = ChatTemplate.from_file(settings.chat_template, model_directory=directory)
    output = OutputFormat.of(
        plugins.parsers.values(),
        template,
        tokenizer,
        reasoning=settings.reasoning_parser,
        tools=settings.tool_parser,
    )
    return ModelText(tokenizer, template, output, generation_defaults(settings, directory))
