"""Prompts: from what a call carries to token ids, off the event loop when there is much to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from tickertape.api.calls import ChatCall, CompletionCall, Decoding, PromptInput
from tickertape.api.models import ServedModel
from tickertape.api.render_pool import RenderPool
from tickertape.api.sampling import check_tokens
from tickertape.core.errors import ContextLengthExceeded, InvalidRequest

__all__ = ["Prompt", "PromptEncoder"]

_INLINE_CHARS: Final = 2048  # encoding this many takes less than handing them to a thread
_PROBE_CHARS_PER_TOKEN: Final = 16


class Prompt(Struct, frozen=True):
    """`text` is what an echo shows; None: what the ids decode to. `continues`: the new text goes on from the prompt's
    (a completion), else it stands alone (a chat's answer) and a first word loses its space as decoding has it."""

    tokens: Sequence[int]
    text: str | None
    continues: bool


class PromptEncoder:
    """Renders and tokenizes. Templates run in `renders`, long texts are encoded on a thread."""

    def __init__(self, renders: RenderPool) -> None:
        self._renders = renders

    async def chat(self, model: ServedModel, call: ChatCall, limit: int) -> Prompt:
        """Raises InvalidRequest (no template, or what the template raises), ContextLengthExceeded."""
        if model.template is None:
            raise InvalidRequest(f"The model {model.name!r} has no chat template", code="unsupported_value",
                                 param="messages")  # fmt: skip
        text = await self._renders.render(
            model.template,
            call.messages,
            add_generation_prompt=call.add_generation_prompt,
            continue_final_message=call.continue_final_message,
            kwargs=call.template_kwargs,
        )
        # The template writes BOS and the like itself.
        tokens = await self._encode(model, text, call.decoding, limit, add_special_tokens=False, param="messages")
        shown = _shown(call.messages[-1].get("content")) if call.echo else None
        return Prompt(_checked(model, tokens, call.decoding, limit, "messages"), shown, call.continue_final_message)

    async def completion(self, model: ServedModel, call: CompletionCall, limit: int) -> tuple[Prompt, ...]:
        return tuple([await self._completion(model, call, prompt, limit) for prompt in call.prompts])

    async def _completion(self, model: ServedModel, call: CompletionCall, prompt: PromptInput, limit: int) -> Prompt:
        if isinstance(prompt, str):
            special = call.add_special_tokens
            tokens = await self._encode(model, prompt, call.decoding, limit, add_special_tokens=special, param="prompt")
        else:
            check_tokens(model, prompt, "prompt")
            tokens = prompt
        kept = _checked(model, tokens, call.decoding, limit, "prompt")
        whole = isinstance(prompt, str) and len(kept) == len(tokens)
        return Prompt(kept, prompt if whole and isinstance(prompt, str) else None, True)

    async def _encode(
        self, model: ServedModel, text: str, decoding: Decoding, limit: int, *, add_special_tokens: bool, param: str
    ) -> Sequence[int]:
        tokenizer = model.tokenizer
        if len(text) <= _INLINE_CHARS:
            return _one_bos(tokenizer.encode(text, add_special_tokens=add_special_tokens), tokenizer.bos_token_id)

        def encode() -> list[int]:
            # A text far beyond the context is refused by its beginning, so that megabytes are not tokenized for it.
            probe = limit * _PROBE_CHARS_PER_TOKEN
            if decoding.truncate_prompt_tokens is None and len(text) > 2 * probe:
                found = len(tokenizer.encode(text[:probe], add_special_tokens=False))
                if found > limit:
                    raise _too_long(f"more than {found}", limit, param)
            return tokenizer.encode(text, add_special_tokens=add_special_tokens)

        return _one_bos(await self._renders.run(encode), tokenizer.bos_token_id)


def _shown(content: Any) -> str:
    """The text of a message."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part["text"] for part in content)


def _one_bos(tokens: list[int], bos: int | None) -> Sequence[int]:
    """A text that writes BOS out does not get a second one from the tokenizer."""
    return tokens[1:] if bos is not None and tokens[:2] == [bos, bos] else tokens


def _checked(model: ServedModel, tokens: Sequence[int], decoding: Decoding, limit: int, param: str) -> Sequence[int]:
    """Truncated as asked. Raises InvalidRequest for no tokens, ContextLengthExceeded for too many."""
    keep = decoding.truncate_prompt_tokens
    if keep is not None:
        if keep == -1:
            keep = max(limit - (1 if decoding.max_tokens is None else decoding.max_tokens), 1)
        tokens = tokens[-keep:]
    if not tokens:
        raise InvalidRequest("The prompt holds no tokens", param=param)
    # With room for one new token, unless none is wanted.
    if len(tokens) > limit - (0 if decoding.max_tokens == 0 else 1):
        raise _too_long(str(len(tokens)), limit, param)
    return tokens


def _too_long(found: str, limit: int, param: str) -> ContextLengthExceeded:
    return ContextLengthExceeded(
        f"This model's maximum context length is {limit} tokens, prompt and answer together, but the prompt has "
        f"{found} tokens",
        param=param,
    )
