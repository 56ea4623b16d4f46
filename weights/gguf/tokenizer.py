"""tokenizer.json and tokenizer_config.json from the vocabulary inside a GGUF file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from tickertape.core.errors import StartupError
from tickertape.weights.vocabularies.merges import merges_by_score

__all__ = ["make_tokenizer"]

_CONTROL: Final = 3
_USER_DEFINED: Final = 4
_UNKNOWN: Final = 2

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LLAMA3_WORDS = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_WORDS = _LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN_UPPER, _TEKKEN_LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_TEKKEN_UPPER}*{_TEKKEN_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_TEKKEN_UPPER}+{_TEKKEN_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


_QWEN2: Final = ("qwen2", "deepseek-r1-qwen", "megrez")


class _Vocabulary(Struct, frozen=True):
    """The fields of `tokenizer.ggml`, checked against each other."""

    file: str
    model: str
    tokens: Sequence[str]
    kinds: Sequence[int]
    metadata: Mapping[str, Any]

    def get(self, key: str, default: Any = None) -> Any:
        return self.metadata.get(f"tokenizer.ggml.{key}", default)

    def token(self, key: str) -> str | None:
        """The text of the token that `key` names, as in "bos"."""
        token_id = self.get(f"{key}_token_id")
        return self.tokens[token_id] if isinstance(token_id, int) and 0 <= token_id < len(self.tokens) else None

    @property
    def ids(self) -> dict[str, int]:
        ids: dict[str, int] = {}
        for token_id, token in enumerate(self.tokens):
            ids.setdefault(token, token_id)
        return ids


def make_tokenizer(file: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The two files by name: tokenizer.json as bytes, tokenizer_config.json as a mapping.

    Reads byte-level BPE ("gpt2") and SentencePiece-type BPE ("llama"). Raises StartupError: UnsupportedTokenizer,
    naming the model or the pre-tokeniser that is not known, or BadHeader for a vocabulary that contradicts itself.
    """
    vocabulary = _read(file, metadata)
    makers: Mapping[str, Callable[[_Vocabulary], Tokenizer]] = {"gpt2": _byte_level, "llama": _sentence_piece}
    if vocabulary.model not in makers:
        raise StartupError(
            f"{file}: the tokenizer model {vocabulary.model!r} cannot be converted ({' and '.join(makers)} can)",
            code="UnsupportedTokenizer",
        )
    try:
        tokenizer = makers[vocabulary.model](vocabulary)
    except StartupError:
        raise
    except Exception as error:  # the library raises bare Exception
        raise StartupError(f"{file}: the tokenizer cannot be built: {error}", code="BadHeader") from error
    special = [t for t, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True) if kind == _CONTROL]
    added = [t for t, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True) if kind == _USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in added])
    adds = _adds(vocabulary)
    if (processor := _post_processor(vocabulary, *adds)) is not None:
        tokenizer.post_processor = processor
    return {
        "tokenizer.json": tokenizer.to_str(pretty=False).encode(),
        "tokenizer_config.json": _config(vocabulary, *adds),
    }


def _read(file: str, metadata: Mapping[str, Any]) -> _Vocabulary:
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        raise StartupError(f"{file}: there is no tokenizer in it", code="UnsupportedTokenizer")
    kinds = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    if len(kinds) != len(tokens):
        raise StartupError(f"{file}: {len(tokens)} tokens and {len(kinds)} token types", code="BadHeader")
    return _Vocabulary(file, str(metadata.get("tokenizer.ggml.model")), tokens, kinds, metadata)


def _byte_level(vocabulary: _Vocabulary) -> Tokenizer:
    pre = str(vocabulary.get("pre", "default"))
    splitters = {
        **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais"), _gpt2_words),
        **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), _digits_then_gpt2_words),
        **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), _by_regex(_LLAMA3_WORDS)),
        **dict.fromkeys(_QWEN2, _by_regex(_QWEN2_WORDS)),
        "tekken": _by_regex(_TEKKEN_WORDS),
    }
    if pre not in splitters:
        raise StartupError(
            f"{vocabulary.file}: the pre-tokeniser {pre!r} cannot be converted", code="UnsupportedTokenizer"
        )
    merges = [tuple(merge.split(" ", 1)) for merge in vocabulary.get("merges", [])]
    ranked = splitters[pre] not in (_gpt2_words, _digits_then_gpt2_words) and pre not in _QWEN2
    # As tiktoken does: a known word is one id.
    tokenizer = Tokenizer(models.BPE(vocabulary.ids, merges, ignore_merges=ranked))
    if pre in _QWEN2:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = splitters[pre]()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _gpt2_words() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _digits_then_gpt2_words() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2_words()])


def _by_regex(pattern: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    def make() -> pre_tokenizers.PreTokenizer:
        words = pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False)
        return pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    return make


def _sentence_piece(vocabulary: _Vocabulary) -> Tokenizer:
    ids = vocabulary.ids
    scores = vocabulary.get("scores")
    if not isinstance(scores, list) or len(scores) != len(vocabulary.tokens):
        raise StartupError(f"{vocabulary.file}: a SentencePiece vocabulary without scores", code="BadHeader")
    unknown = vocabulary.token("unknown") or next(
        (token for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True) if kind == _UNKNOWN), None
    )
    merges = merges_by_score(ids, scores)
    tokenizer = Tokenizer(models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefixed = vocabulary.get("add_space_prefix", True)
    spaces = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefixed else spaces
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefixed else steps)
    return tokenizer


def _adds(vocabulary: _Vocabulary) -> tuple[bool, bool]:
    """Whether encoding puts BOS before and EOS after the text. Where the file does not say: BOS as llama.cpp does."""
    pre = str(vocabulary.get("pre", ""))
    bos_by_default = vocabulary.model == "llama" or pre in ("llama-bpe", "llama3", "llama-v3", "tekken")
    adds_bos = bool(vocabulary.get("add_bos_token", bos_by_default)) and vocabulary.token("bos") is not None
    return adds_bos, bool(vocabulary.get("add_eos_token", False)) and vocabulary.token("eos") is not None


def _post_processor(vocabulary: _Vocabulary, adds_bos: bool, adds_eos: bool) -> processors.PostProcessor | None:
    before = [vocabulary.token("bos")] if adds_bos else []
    after = [vocabulary.token("eos")] if adds_eos else []
    ends = [token for token in before + after if token is not None]
    if not ends:
        return None
    single = [*before, "$A", *after]
    pair = [*single, *before, "$B:1", *after]
    ids = vocabulary.ids
    return processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[(token, ids[token]) for token in dict.fromkeys(ends)]
    )


def _config(vocabulary: _Vocabulary, adds_bos: bool, adds_eos: bool) -> dict[str, Any]:
    config: dict[str, Any] = {
        "add_bos_token": adds_bos,
        "add_eos_token": adds_eos,
        "clean_up_tokenization_spaces": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    for ours, theirs in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        if (token := vocabulary.token(theirs)) is not None:
            config[f"{ours}_token"] = token
    if (template := vocabulary.metadata.get("tokenizer.chat_template")) is not None:
        config["chat_template"] = template
    return config
