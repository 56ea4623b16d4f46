"""Prompts: from what a call carries to token ids, off the event loop when there is much to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from msgspec import Struct

from tickertape.api.calls import ChatCall, CompletionCall, Decoding, PromptInput
from tickertape.api.detokenizer import Detokenizer
from tickertape.api.isolated_renders import IsolatedRenders
from tickertape.api.model_tokenizer import ModelTokenizer
from tickertape.api.models import ServedModel
from tickertape.api.render_pool import RenderPool
from tickertape.api.sampling import check_tokens
from tickertape.api.template_variables import template_variables
from tickertape.api.told_tools import with_tools_told
from tickertape.core.errors import ContextLengthExceeded, InvalidRequest

__all__ = ["Prompt", "PromptEcho", "PromptEncoder"]

T = TypeVar("T")

_INLINE_SIZE: Final = 2048  # characters or ids: encoding these takes less than handing them to a thread
_PROBE_CHARS_PER_TOKEN: Final = 16
_END_CHARS: Final = 400


class PromptEcho(Struct, frozen=True):
    """A prompt as it is shown before the new text. `tokens`, and where each one's text starts in characters, when their
    log probabilities are shown too; else empty."""

    text: str
    tokens: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()


class Prompt(Struct, frozen=True):
    """`end`: the last of its text, where that was rendered. `continues`: the new text goes on from the prompt's (a
    completion), else it stands alone (a chat's answer) and a first word loses its space as decoding has it."""

    tokens: Sequence[int]
    echo: PromptEcho | None
    continues: bool
    end: str = ""


class PromptEncoder:
    """Renders and tokenizes. Models' templates run in `renders`, and so does the tokenizing of much; templates that a
    call brings along run in `isolated` (None: such calls are refused)."""

    def __init__(self, renders: RenderPool, isolated: IsolatedRenders | None = None) -> None:
        self._renders = renders
        self._isolated = isolated

    async def chat(self, model: ServedModel, call: ChatCall, limit: int) -> Prompt:
        """Raises InvalidRequest (no template, or what the template raises), ContextLengthExceeded."""
        text = await self._render(model, call)
        # The template writes BOS and the like itself.
        encoding = partial(_encode, model, text, call.decoding, limit, add_special_tokens=False, param="messages")
        tokens = await self._run(encoding, len(text))
        echo = PromptEcho(_content(call.messages[-1].get("content"))) if call.echo else None
        fitting = _fitting(tokens, call.decoding, limit, "messages")
        return Prompt(fitting, echo, call.continue_final_message, text[-_END_CHARS:])

    async def _render(self, model: ServedModel, call: ChatCall) -> str:
        template = model.template
        tools = [tool.definition for tool in call.tools.tools]
        if call.template is not None:
            if self._isolated is None:
                raise InvalidRequest(
                    "'chat_template' is not taken from requests by this server",
                    code="unsupported_value",
                    param="chat_template",
                )
            tokens = {} if template is None else template.special_tokens
            return await self._isolated.render(call.template, tokens, call, tools)
        if template is None:
            raise InvalidRequest(
                f"The model {model.name!r} has no chat template", code="unsupported_value", param="messages"
            )
        return await self._renders.render(
            template,
            with_tools_told(call.messages, call.tools, template),
            add_generation_prompt=call.add_generation_prompt,
            continue_final_message=call.continue_final_message,
            tools=tools if tools and template.takes_tools else None,
            kwargs=template_variables(template, call.template_kwargs, call.reasoning.effort),
        )

    async def completion(self, model: ServedModel, call: CompletionCall, limit: int) -> tuple[Prompt, ...]:
        """Raises InvalidRequest, ContextLengthExceeded."""
        encoding = partial(_completions, model, call, limit)
        return await self._run(encoding, sum(len(prompt) for prompt in call.prompts))

    async def tokens(self, model: ServedModel, text: str, *, add_special_tokens: bool) -> list[int]:
        """Of a text that is no prompt yet, however long."""
        return await self._run(partial(model.tokenizer.encode, text, add_special_tokens=add_special_tokens), len(text))

    async def _run(self, work: Callable[[], T], size: int) -> T:
        return work() if size <= _INLINE_SIZE else await self._renders.run(work)


def _completions(model: ServedModel, call: CompletionCall, limit: int) -> tuple[Prompt, ...]:
    return tuple([_completion(model, call, given, limit) for given in call.prompts])


def _completion(model: ServedModel, call: CompletionCall, given: PromptInput, limit: int) -> Prompt:
    decoding = call.decoding
    tokens: Sequence[int] = given if not isinstance(given, str) else _encode(
        model, given, decoding, limit, add_special_tokens=call.add_special_tokens, param="prompt"
    )  # fmt: skip
    kept = _fitting(tokens, decoding, limit, "prompt")
    if not isinstance(given, str):
        check_tokens(model, kept, "prompt")
    echo = None
    if call.echo:
        text = given if isinstance(given, str) and len(kept) == len(tokens) else None
        echo = _echo(
            model.tokenizer, kept, text, skip_special_tokens=decoding.skip_special_tokens, scored=call.scores_echo
        )
    return Prompt(kept, echo, True)


def _encode(
    model: ServedModel, text: str, decoding: Decoding, limit: int, *, add_special_tokens: bool, param: str
) -> Sequence[int]:
    tokenizer = model.tokenizer
    # A text far beyond the context is refused by its beginning, so that megabytes are not tokenized for it.
    probe = limit * _PROBE_CHARS_PER_TOKEN
    if decoding.truncate_prompt_tokens is None and len(text) > 2 * probe:
        found = len(tokenizer.encode(text[:probe], add_special_tokens=False))
        if found > limit:
            raise _too_long(f"more than {found}", limit, param)
    tokens = tokenizer.encode(text, add_special_tokens=add_special_tokens)
    bos = tokenizer.bos_token_id
    # A text that writes BOS out does not get a second one from the tokenizer.
    return tokens[1:] if bos is not None and tokens[:2] == [bos, bos] else tokens


def _fitting(tokens: Sequence[int], decoding: Decoding, limit: int, param: str) -> Sequence[int]:
    """Truncated as asked. Raises InvalidRequest for no tokens, ContextLengthExceeded for too many."""
    keep = decoding.truncate_prompt_tokens
    if keep is not None:
        if keep == -1:
            keep = max(limit - (1 if decoding.max_tokens is None else decoding.max_tokens), 1)
        tokens = tokens[-keep:]
    if not tokens:
        raise InvalidRequest("The prompt holds no tokens", param=param)
    if len(tokens) > limit:  # whether the answer fits too is seen when its length is known
        raise _too_long(str(len(tokens)), limit, param)
    return tokens


def _echo(
    tokenizer: ModelTokenizer, tokens: Sequence[int], text: str | None, *, skip_special_tokens: bool, scored: bool
) -> PromptEcho:
    """`text` None: what the tokens decode to. A character that they leave open comes whole with the new text."""
    if text is not None and not scored:
        return PromptEcho(text)
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
    offsets: list[int] = []
    made: list[str] = []
    length = 0
    for token in tokens:
        offsets.append(length)
        made.append(detokenizer.push(token))
        length += len(made[-1])
    shown = "".join(made) if text is None else text
    if not scored:
        return PromptEcho(shown)
    return PromptEcho(shown, tuple(tokens), tuple([min(start, len(shown)) for start in offsets]))


def _content(content: Any) -> str:
    """The text of a message."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part["text"] for part in content)


def _too_long(found: str, limit: int, param: str) -> ContextLengthExceeded:
    return ContextLengthExceeded(
        f"This model's maximum context length is {limit} tokens, prompt and answer together, but the prompt has "
        f"{found} tokens",
        param=param,
    )
