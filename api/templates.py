"""Chat templates: a conversation to the one text that a model reads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

from jinja2 import Template, TemplateSyntaxError, meta

from tickertape.api.model_files import read_json, special_tokens
from tickertape.api.template_environment import Refused, TemplateSandbox, TooLong
from tickertape.api.template_messages import mark_end, messages_for
from tickertape.api.template_traits import TemplateTraits, read_traits
from tickertape.core.errors import InvalidRequest, StartupError

__all__ = ["ChatTemplate"]

_log = logging.getLogger(__name__)

_MAX_MESSAGE_CHARS: Final = 500
_OURS: Final = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template"})


@dataclass(frozen=True, slots=True)
class _Compiled:
    template: Template
    traits: TemplateTraits
    variables: frozenset[str]


class ChatTemplate:
    """A model's chat template, or its several named ones. Immutable and thread-safe; `render` is plain work that may
    take up to `time_limit_s`, so it belongs on a thread (`RenderPool`)."""

    def __init__(
        self,
        sources: Mapping[str, tuple[str, str]],
        *,
        special_tokens: Mapping[str, str],
        time_limit_s: float = 10.0,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """`sources`: by name ("default", "tool_use"), where the template comes from and its text. Raises StartupError
        (BadChatTemplate) naming place and line of what does not compile."""
        if not sources:
            raise ValueError("a chat template needs a source")
        self._sandbox = TemplateSandbox(now=now)
        self._special_tokens = dict(special_tokens)
        self._time_limit_s = time_limit_s
        self._compiled = {name: self._compile(*source) for name, source in sources.items()}
        self.source = "\n".join(source for _, source in sources.values())
        """All of them, to be searched."""
        self.special_tokens = dict(special_tokens)
        self.variables = frozenset[str]().union(*(each.variables for each in self._compiled.values()))
        """What a template of these reads besides what it sets itself."""

    @classmethod
    def from_directory(cls, directory: Path) -> ChatTemplate | None:
        """The template in chat_template.jinja (and additional_chat_templates/), else in tokenizer_config.json, else in
        chat_template.json; None for a model without one. Raises StartupError: BadChatTemplate, BadTokenizer."""
        sources = _sources(directory)
        return cls(sources, special_tokens=special_tokens(directory)) if sources else None

    @classmethod
    def from_file(cls, file: Path, *, model_directory: Path | None = None) -> ChatTemplate:
        """A template of the operator's choice, with the special tokens of a model. Raises StartupError."""
        tokens = {} if model_directory is None else special_tokens(model_directory)
        return cls({"default": (file.name, _read(file))}, special_tokens=tokens)

    @property
    def takes_tools(self) -> bool:
        """Whether it shows the model the tools it is given."""
        return "tools" in self.variables

    @property
    def traits(self) -> TemplateTraits:
        """Of the one that is used when there are tools."""
        return self._choose([{}]).traits

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt. With `continue_final_message` it ends right behind the last message's content. `kwargs` are
        further variables for the template. Raises InvalidRequest: with the template's own words where it refuses the
        messages, else without a word of the template; the log has the trace."""
        if taken := sorted(_OURS.intersection(kwargs or ())):
            raise InvalidRequest(f"chat_template_kwargs must not set {taken[0]!r}", param="chat_template_kwargs")
        if continue_final_message and add_generation_prompt:
            raise InvalidRequest(
                "continue_final_message and add_generation_prompt exclude each other", param="continue_final_message"
            )
        if continue_final_message and not messages:
            raise InvalidRequest("there is no message to continue", param="continue_final_message")
        compiled = self._choose(tools)
        made = messages_for(messages, compiled.traits)
        mark = f"continues-{token_hex(16)}" if continue_final_message else ""  # nobody can have written this
        if mark:
            mark_end(made[-1], mark)
        variables = {
            **self.special_tokens,
            "documents": None,
            **(kwargs or {}),
            "messages": made,
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        text = self._run(compiled.template, variables)
        return _before_mark(text, mark) if mark else text

    def _compile(self, origin: str, source: str) -> _Compiled:
        try:
            tree = self._sandbox.parse(source)
            traits = read_traits(tree)  # compiling changes the tree
            variables = frozenset(meta.find_undeclared_variables(tree))
            return _Compiled(self._sandbox.compile(tree, origin), traits, variables)
        except TemplateSyntaxError as error:
            raise StartupError(
                f"{origin}, line {error.lineno}: {_one_line(error.message)}", code="BadChatTemplate"
            ) from error
        except (RecursionError, SyntaxError) as error:  # from Python's own compiler, far down in a nested template
            raise StartupError(f"{origin}: too deeply nested", code="BadChatTemplate") from error

    def _choose(self, tools: Sequence[Mapping[str, Any]] | None) -> _Compiled:
        names = ("tool_use", "default") if tools else ("default",)
        chosen = [self._compiled[name] for name in names if name in self._compiled]
        return chosen[0] if chosen else next(iter(self._compiled.values()))

    def _run(self, template: Template, variables: dict[str, Any]) -> str:
        try:
            return self._sandbox.render(template, variables, time_limit_s=self._time_limit_s)
        except Refused as error:
            _log.info("the chat template refused the messages", exc_info=error)
            message = _one_line(str(error)) or "the chat template refused the messages"
            raise InvalidRequest(message, param="messages") from error
        except TooLong as error:
            _log.warning("the chat template ran past its limit of %g s", self._time_limit_s, exc_info=error)
            raise InvalidRequest("the chat template took too long over these messages", param="messages") from error
        except Exception as error:
            _log.warning("the chat template failed", exc_info=error)
            raise InvalidRequest("the chat template cannot render these messages", param="messages") from error


def _before_mark(text: str, mark: str) -> str:
    before, found, _ = text.rpartition(mark)
    if not found:
        raise InvalidRequest(
            "the chat template does not show the final message, so it cannot be continued",
            param="continue_final_message",
        )
    return before.replace(mark, "")


def _sources(directory: Path) -> dict[str, tuple[str, str]]:
    files = {file.stem: file for file in sorted((directory / "additional_chat_templates").glob("*.jinja"))}
    if (file := directory / "chat_template.jinja").is_file():
        files = {"default": file, **files}
    if files:
        return {name: (file.name, _read(file)) for name, file in files.items()}
    for name in ("tokenizer_config.json", "chat_template.json"):
        entry = read_json(directory, name).get("chat_template")
        if isinstance(entry, str):
            return {"default": (f"{name} (chat_template)", entry)}
        if entry:
            return _named(name, entry)
    return {}


def _named(file: str, entry: object) -> dict[str, tuple[str, str]]:
    pairs = entry.items() if isinstance(entry, Mapping) else [_pair(file, item) for item in _listed(file, entry)]
    return {name: (f"{file} (chat_template {name!r})", source) for name, source in pairs}


def _listed(file: str, entry: object) -> list[object]:
    if isinstance(entry, list):
        return entry
    raise StartupError(f"{file}: chat_template is neither a text nor a list of named ones", code="BadChatTemplate")


def _pair(file: str, item: object) -> tuple[str, str]:
    match item:
        case {"name": str(name), "template": str(source)}:
            return name, source
    raise StartupError(f"{file}: chat_template holds an entry without name and template", code="BadChatTemplate")


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise StartupError(f"{file.name}: there is no such chat template file", code="BadChatTemplate") from error
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise StartupError(f"{file.name}: cannot be read: {reason}", code="BadChatTemplate") from error


def _one_line(message: str | None) -> str:
    line = " ".join((message or "").split())
    return line if len(line) <= _MAX_MESSAGE_CHARS else line[: _MAX_MESSAGE_CHARS - 1] + "…"
