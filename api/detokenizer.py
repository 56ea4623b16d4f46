"""Tokens of one stream to text, as they come."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tickertape.api.model_tokenizer import ModelTokenizer

__all__ = ["Detokenizer"]


class Detokenizer:
    """Gives the text of a stream token by token: all pushes and `finish` joined equal
    `tokenizer.decode(all ids, skip_special_tokens=...)` to the byte, in constant time per token.

    What goes out is never taken back, so a text is held exactly as long as a later token could still change it: the
    bytes of an unfinished character; with SentencePiece byte fallback, a run of `<0xNN>` tokens, which decode turns
    into U+FFFD as a whole when any part of it is not UTF-8. Bytes that cannot become a character go out as U+FFFD at
    once, as decode gives them.

    With `prefix`, ids that came before, the result is the text that follows the decoded prefix: a first word keeps
    its space. A character that the prefix left unfinished comes out whole.
    `shown`: special tokens that are not skipped all the same. For one stream and one thread; not to be used after
    `finish`.
    """

    def __init__(
        self,
        tokenizer: ModelTokenizer,
        *,
        skip_special_tokens: bool,
        prefix: Sequence[int] = (),
        shown: Collection[int] = (),
    ) -> None:
        self._piece = tokenizer.piece
        self._skipped = tokenizer.special_ids.difference(shown) if skip_special_tokens else frozenset[int]()
        self._decoder = tokenizer.decoder
        self._pipeline = self._decoder.pipeline()
        if prefix:
            self._follow(prefix)

    def push(self, token: int) -> str:
        """The text settled by this token; "" while it is held, skipped, or an id without a token."""
        if token in self._skipped or (piece := self._piece(token)) is None:
            return ""
        return self._pipeline.push(piece)

    def finish(self) -> str:
        """The text still held, as decode gives it: unfinished characters become U+FFFD."""
        return self._pipeline.finish()

    def _follow(self, prefix: Sequence[int]) -> None:
        # Only the beginning of a prefix (is the first piece past?) and its end (is a character open?) leave a trace,
        # so a long prompt costs no more than a short one.
        head = 0
        while head < len(prefix) and not self._pipeline.settled:
            self.push(prefix[head])
            head += 1
        tail = len(prefix)
        while tail > head:
            tail -= 1
            if self._is_whole(prefix[tail]):
                break
        for token in prefix[tail:]:
            self.push(token)
        self._pipeline.seal()

    def _is_whole(self, token: int) -> bool:
        """Whether nothing before this token matters to what comes after it."""
        if token in self._skipped or (piece := self._piece(token)) is None:
            return False
        return self._decoder.closes(piece)
