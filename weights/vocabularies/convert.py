"""Finds the vocabulary of a model directory that has no tokenizer.json, and makes one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from tokenizers import Tokenizer

from tickertape.core.errors import StartupError
from tickertape.weights.vocabularies.byte_level import from_merges
from tickertape.weights.vocabularies.files import INPUTS, TokenizerFiles, refused
from tickertape.weights.vocabularies.piece_model import PieceModel
from tickertape.weights.vocabularies.ranked import from_tekken, from_tiktoken, read_tiktoken
from tickertape.weights.vocabularies.sentence_piece import from_pieces
from tickertape.weights.vocabularies.word_piece import from_words

__all__ = ["CONVERTER_VERSION", "convert_tokenizer", "vocabulary_files"]

CONVERTER_VERSION: Final = "1"
"""Part of the recipe of what is made here: raise it whenever the output changes."""

_KNOWN: Final = (("tekken.json",), ("tokenizer.model",), ("vocab.json", "merges.txt"), ("vocab.txt",))
"""The best of what there is comes first."""

_REFUSED: Final = ("spiece.model", "sentencepiece.bpe.model", "source.spm", "vocab.json", "vocab.bpe")


class _Made(NamedTuple):
    """`roles` are for a tokenizer_config.json where there is none."""

    tokenizer: Tokenizer
    roles: Mapping[str, str]


def vocabulary_files(directory: Path) -> tuple[str, ...]:
    """The files that a tokenizer.json would be made from; none when it is there already, or when there are none."""
    if (directory / "tokenizer.json").is_file() or not (found := _vocabulary(directory)):
        return ()
    return (*found, *(name for name in INPUTS if (directory / name).is_file()))


def convert_tokenizer(directory: Path) -> dict[str, bytes]:
    """tokenizer.json and, where there is none, a tokenizer_config.json that names BOS and EOS. Raises StartupError:
    UnsupportedTokenizer naming what is not known, BadTokenizer."""
    path = directory / _vocabulary(directory)[0]
    files = TokenizerFiles(directory)
    try:
        made = _make(path, files)
    except StartupError:
        raise
    except Exception as error:  # the library raises bare Exception
        raise StartupError(f"{path.name}: {' '.join(str(error).split())}", code="BadTokenizer") from error
    documents = {"tokenizer.json": made.tokenizer.to_str(pretty=False).encode()}
    if made.roles and not files.has_config:
        documents["tokenizer_config.json"] = msgspec.json.encode(made.roles)
    return documents


def _vocabulary(directory: Path) -> tuple[str, ...]:
    for names in _KNOWN:
        if all((directory / name).is_file() for name in names):
            return names
    if tiktokens := sorted(path.name for path in directory.glob("*.tiktoken")):
        return (tiktokens[0],)
    return next(((name,) for name in _REFUSED if (directory / name).is_file()), ())


def _make(path: Path, files: TokenizerFiles) -> _Made:
    match path.name:
        case "tekken.json":
            return _Made(from_tekken(path, files), {"bos_token": "<s>", "eos_token": "</s>"})
        case "tokenizer.model":
            return _from_model(path, files)
        case "vocab.json" if (path.parent / "merges.txt").is_file():
            return _Made(from_merges(path.parent, files), {})
        case "vocab.txt":
            return _Made(from_words(path, files), {})
    if path.suffix == ".tiktoken":
        return _Made(from_tiktoken(path.name, read_tiktoken(path.read_bytes()), files), {"eos_token": "<|endoftext|>"})
    raise refused(path.name)


def _from_model(path: Path, files: TokenizerFiles) -> _Made:
    """SentencePiece's, or a tiktoken vocabulary under its name."""
    data = path.read_bytes()
    try:
        ranks = read_tiktoken(data)
    except ValueError:
        pieces = PieceModel.read(data)
    else:
        return _Made(from_tiktoken(path.name, ranks, files), {})
    ends = {"bos_token": pieces.begin, "eos_token": pieces.end}
    roles = {role: pieces.pieces[token_id].text for role, token_id in ends.items() if token_id is not None}
    return _Made(from_pieces(path.name, pieces, files), roles)
