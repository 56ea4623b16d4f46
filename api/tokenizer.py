"""Text to token ids and back, over the `tokenizers` library alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer

from tickertape.api.decoder_stages import Piece
from tickertape.api.decoders import Decoder, UnsupportedDecoder, compile_decoder
from tickertape.api.model_files import read_json, special_tokens
from tickertape.api.model_tokenizer import ModelTokenizer, PluginTokenizer, shown
from tickertape.core.errors import InvalidRequest, StartupError
from tickertape.core.tokenizer import TokenizerSpec

__all__ = ["TextTokenizer", "configured_ends", "read_tokenizer"]

_SHORT_CHARS: Final = 2048


class TextTokenizer:
    """A model's tokenizer. Immutable but for its caches, and thread-safe.

    `vocab_size` counts the tokenizer's own tokens, added ones included; the model's vocabulary may be padded beyond
    it. `added_texts` are the texts of these, special or not. `eos_token_ids` end a text, in the order the model's
    files give them.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, bos_token_id: int | None = None, eos_token_ids: Sequence[int] = ()
    ) -> None:
        tokenizer.no_truncation()  # some tokenizer.json carry both from training; a server must not cut or pad
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._decoder = _decoder_of(tokenizer)
        added = tokenizer.get_added_tokens_decoder()
        self._added: Mapping[int, str] = {id: token.content for id, token in added.items()}
        self._pieces: dict[int, Piece | None] = {}  # filled as ids are met: most of a vocabulary never is
        self.special_ids = frozenset(id for id, token in added.items() if token.special)
        self.added_texts = frozenset(self._added.values())
        self.vocab_size: int = tokenizer.get_vocab_size(with_added_tokens=True)
        self.bos_token_id = bos_token_id
        self.eos_token_ids = tuple(eos_token_ids)

    @classmethod
    def from_directory(cls, directory: Path) -> TextTokenizer:
        """Reads tokenizer.json and the configs beside it. The end ids are generation_config.json's, else
        config.json's, else tokenizer_config.json's `eos_token`. Raises StartupError: MissingTokenizer, BadTokenizer."""
        file = directory / "tokenizer.json"
        if not file.is_file():
            raise StartupError("the model has no tokenizer.json", code="MissingTokenizer")
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exception
            raise StartupError(f"tokenizer.json: {_one_line(error)}", code="BadTokenizer") from error
        named = special_tokens(directory)
        return cls(
            tokenizer,
            bos_token_id=_named_id(tokenizer, named, "bos_token"),
            eos_token_ids=_eos_token_ids(directory, tokenizer, named),
        )

    @property
    def decoder(self) -> Decoder:
        """The compiled decoder, for streams."""
        return self._decoder

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The ids of a text; with `add_special_tokens`, whatever the tokenizer puts around one (BOS). Special tokens
        written out in the text become their ids. Takes about 0.3 us a character, and holds Python's lock for a short
        text only: long ones belong on a thread. Raises InvalidRequest for a text with lone surrogates."""
        try:
            if len(text) <= _SHORT_CHARS:
                ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
            else:  # the library lets go of the lock in its batch calls only
                ids = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        except TypeError as error:
            raise InvalidRequest("the text holds a lone surrogate, which is no character") from error
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of all ids at once. Ids without a token, such as a padded vocabulary's, have no text."""
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def piece(self, id: int) -> Piece | None:
        """What a token gives to a stream's first stage; None for an id without a token."""
        try:
            return self._pieces[id]
        except KeyError:
            token = self._tokenizer.id_to_token(id)
            piece = self._pieces[id] = None if token is None else self._decoder.prepare(token)
            return piece

    def token_bytes(self, id: int) -> bytes:
        """The bytes a token stands for in the middle of a text, a part of a character as it is; added and special
        tokens as their text; none for an id without a token."""
        if (text := self._added.get(id)) is not None:
            return text.encode()
        piece = self.piece(id)
        return b"" if piece is None else self._decoder.bytes_of(piece)

    def token_text(self, id: int) -> str:
        r"""A token as `logprobs` entries show it: its text or, for a part of a character, `bytes:\xe4\xbd`."""
        return shown(self.token_bytes(id))


def read_tokenizer(directory: Path, specs: Mapping[str, TokenizerSpec]) -> ModelTokenizer:
    """The tokenizer of a model: its tokenizer.json, or else what the first plugin that supports it reads. Raises
    StartupError: MissingTokenizer, with each plugin's reason; BadTokenizer."""
    if (directory / "tokenizer.json").is_file() or not specs:
        return TextTokenizer.from_directory(directory)
    reasons = []
    for spec in specs.values():
        try:
            reason = spec.supports(directory)
            if reason is None:
                return PluginTokenizer(spec.load(directory))
        except StartupError:
            raise
        except Exception as error:
            raise StartupError(
                f"tokenizer {spec.name!r} failed: {type(error).__name__}: {_one_line(error)}", code="BadTokenizer"
            ) from error
        reasons.append(f"{spec.name}: {reason}")
    raise StartupError(
        f"the model has no tokenizer.json, and no plugin reads what it has: {'; '.join(reasons)}",
        code="MissingTokenizer",
    )


def _decoder_of(tokenizer: Tokenizer) -> Decoder:
    spec = None if tokenizer.decoder is None else json.loads(tokenizer.decoder.__getstate__())
    try:
        return compile_decoder(spec)
    except UnsupportedDecoder as error:
        raise StartupError(f"tokenizer.json: {error}", code="BadTokenizer") from error


def _named_id(tokenizer: Tokenizer, named: Mapping[str, str], name: str) -> int | None:
    return tokenizer.token_to_id(named[name]) if name in named else None


def configured_ends(directory: Path) -> tuple[int, ...]:
    """The end ids that generation_config.json gives, else config.json; none when neither does."""
    for name in ("generation_config.json", "config.json"):
        if ids := tuple(_ids(read_json(directory, name), name)):
            return ids
    return ()


def _eos_token_ids(directory: Path, tokenizer: Tokenizer, named: Mapping[str, str]) -> tuple[int, ...]:
    if ids := configured_ends(directory):
        return ids
    eos = _named_id(tokenizer, named, "eos_token")
    return () if eos is None else (eos,)


def _ids(config: Mapping[str, Any], name: str) -> Iterable[int]:
    entry = config.get("eos_token_id")
    for id in entry if isinstance(entry, list) else [entry]:
        if id is None:
            continue
        if not isinstance(id, int) or id < 0:
            raise StartupError(f"{name}: eos_token_id {entry!r} is not a token id", code="BadTokenizer")
        yield id


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
