"""What every converted tokenizer ends with: its added tokens, and the ones around a text."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, processors

from tickertape.core.errors import StartupError
from tickertape.weights.vocabularies.files import TokenizerFiles

__all__ = ["add_tokens", "enclose"]


def add_tokens(tokenizer: Tokenizer, files: TokenizerFiles, more: Sequence[AddedToken] = ()) -> None:
    """Adds `more`, which are in the vocabulary; the tokens that the files give ids beyond it; and those that they give
    a role. Raises StartupError (BadTokenizer) when an id does not come out as the files have it."""
    added = files.added()
    known = {token.content for token in added.values()}
    tokenizer.add_tokens([token for token in more if token.content not in known])
    tokenizer.add_tokens([token for _, token in sorted(added.items())])
    for token_id, token in added.items():
        if (found := tokenizer.token_to_id(token.content)) != token_id:
            raise StartupError(
                f"the tokenizer's files give {token.content!r} the id {token_id}, its vocabulary {found}",
                code="BadTokenizer",
            )
    tokenizer.add_tokens([token for token in files.special() if token.content not in known])


def enclose(tokenizer: Tokenizer, before: AddedToken | None, after: AddedToken | None) -> None:
    """Has encoding put these around a text; None: nothing."""
    first = [before.content] if before is not None else []
    last = [after.content] if after is not None else []
    if ends := [*first, *last]:
        single = [*first, "$A", *last]
        ids = [(text, tokenizer.token_to_id(text)) for text in dict.fromkeys(ends)]
        if absent := [text for text, token_id in ids if token_id is None]:
            raise StartupError(f"the tokenizer's vocabulary has no {absent[0]!r}", code="BadTokenizer")
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single,
            pair=[*single, *(f"{text}:1" for text in first), "$B:1", *(f"{text}:1" for text in last)],
            special_tokens=ids,
        )
