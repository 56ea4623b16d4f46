"""vocab.txt, as BERT has it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from tickertape.core.errors import StartupError
from tickertape.weights.vocabularies.files import TokenizerFiles, refused
from tickertape.weights.vocabularies.finish import add_tokens, enclose

__all__ = ["from_words"]

_CLASSES: Final = frozenset({None, "BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"})
_ROLES: Final = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}


def from_words(path: Path, files: TokenizerFiles) -> Tokenizer:
    """Raises StartupError: UnsupportedTokenizer naming the class, BadTokenizer."""
    if files.tokenizer_class not in _CLASSES:
        raise refused(f"{path.name} of {files.tokenizer_class}")
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"{path.name}: {error}", code="BadTokenizer") from error
    ids = {line.rstrip("\r"): n for n, line in enumerate(lines) if line or n + 1 < len(lines)}
    roles = {name: files.named(f"{name}_token", text) for name, text in _ROLES.items()}
    unknown = roles["unk"]
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token=unknown.content if unknown else "[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=files.flag("tokenize_chinese_chars", True),
        strip_accents=files.flag("strip_accents", False) or None,
        lowercase=files.flag("do_lower_case", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    known: list[AddedToken] = [token for token in roles.values() if token is not None and token.content in ids]
    add_tokens(tokenizer, files, known)
    enclose(tokenizer, roles["cls"], roles["sep"])
    return tokenizer
