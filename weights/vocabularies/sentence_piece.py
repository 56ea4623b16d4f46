"""SentencePiece models: byte pair encodings and unigram models, with what the file says of spaces and normalisation."""

from __future__ import annotations

from typing import Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from tickertape.core.errors import StartupError
from tickertape.weights.vocabularies.files import TokenizerFiles, refused
from tickertape.weights.vocabularies.finish import add_tokens, enclose
from tickertape.weights.vocabularies.merges import merges_by_score
from tickertape.weights.vocabularies.piece_model import BPE, CONTROL, UNIGRAM, UNUSED, USER_DEFINED, PieceModel

__all__ = ["from_pieces"]

_SPACE: Final = "▁"
_CLASSES: Final = frozenset(
    {None, "LlamaTokenizer", "GemmaTokenizer", "PreTrainedTokenizer", "TokenizersBackend", "InternLM2Tokenizer"}
)
"""Those whose token ids are the ids of the pieces, and that do no more to a text than the file says."""


def from_pieces(name: str, pieces: PieceModel, files: TokenizerFiles) -> Tokenizer:
    """`add_prefix_space`, `add_bos_token`, `add_eos_token` and `legacy` of tokenizer_config.json count. With `legacy`
    every stretch of text between special tokens is encoded as SentencePiece would encode it; without, as transformers
    does: only what stands at the very beginning gets a space before it, and none if one is there. BOS is added unless
    the config says otherwise. Raises StartupError: UnsupportedTokenizer, BadTokenizer."""
    _check(name, pieces, files)
    ids = {piece.text: n for n, piece in enumerate(pieces.pieces)}
    if len(ids) != len(pieces.pieces):
        raise StartupError(f"{name}: two pieces are spelled alike", code="BadTokenizer")
    prefixed = files.flag("add_prefix_space", pieces.space_first)
    everywhere = files.flag("legacy", False) or pieces.algorithm == UNIGRAM
    tokenizer = Tokenizer(_model(pieces, ids))
    steps: list[normalizers.Normalizer] = []
    if pieces.charsmap:
        steps.append(normalizers.Precompiled(pieces.charsmap))
    if pieces.squeeze_spaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if prefixed and everywhere:
        steps.append(normalizers.Prepend(_SPACE))
    if everywhere or not prefixed:
        steps.append(normalizers.Replace(" ", _SPACE))
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(_SPACE, prepend_scheme="first", split=False)
    if steps:
        tokenizer.normalizer = normalizers.Sequence(steps)
    letters = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*letters, decoders.Strip(" ", 1, 0)] if prefixed else letters)
    add_tokens(tokenizer, files, _marked(pieces))
    begin, end = _end(pieces, files, "bos_token", pieces.begin), _end(pieces, files, "eos_token", pieces.end)
    enclose(
        tokenizer,
        begin if files.flag("add_bos_token", True) else None,
        end if files.flag("add_eos_token", False) else None,
    )
    return tokenizer


def _check(name: str, pieces: PieceModel, files: TokenizerFiles) -> None:
    if files.tokenizer_class not in _CLASSES:
        raise refused(f"{name} of {files.tokenizer_class}")
    if pieces.algorithm not in (UNIGRAM, BPE):
        raise refused(f"{name}: a model of whole words or letters")
    if pieces.space_last or not pieces.escape_spaces:
        raise refused(f"{name}: a model that has its spaces elsewhere than before a word")
    if any(piece.kind == UNUSED for piece in pieces.pieces):
        raise refused(f"{name}: a model with unused pieces")


def _model(pieces: PieceModel, ids: dict[str, int]) -> models.Model:
    scores = [piece.score for piece in pieces.pieces]
    if pieces.algorithm == UNIGRAM:
        vocabulary = [(piece.text, piece.score) for piece in pieces.pieces]
        return models.Unigram(vocabulary, pieces.unknown, pieces.byte_fallback)
    unknown = None if pieces.unknown is None else pieces.pieces[pieces.unknown].text
    return models.BPE(
        ids,
        merges_by_score(ids, scores),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=pieces.byte_fallback,
    )


def _marked(pieces: PieceModel) -> list[AddedToken]:
    """Control pieces are special; what the trainer was told to keep whole is kept whole."""
    special = [AddedToken(piece.text, special=True, normalized=False)
               for n, piece in enumerate(pieces.pieces) if piece.kind == CONTROL or n == pieces.unknown]  # fmt: skip
    whole = [piece.text for piece in pieces.pieces if piece.kind == USER_DEFINED]
    return special + [AddedToken(text, special=False, normalized=_SPACE in text) for text in whole]


def _end(pieces: PieceModel, files: TokenizerFiles, role: str, token_id: int | None) -> AddedToken | None:
    return files.named(role, None if token_id is None else pieces.pieces[token_id].text)
