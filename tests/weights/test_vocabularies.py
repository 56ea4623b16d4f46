"""tokenizer.json made from other formats: held against transformers and SentencePiece on the same texts."""

from __future__ import annotations

import base64
import importlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tiktoken
import transformers
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from tickertape.core.errors import StartupError
from tickertape.weights.vocabularies.convert import convert_tokenizer, vocabulary_files
from tickertape.weights.vocabularies.merges import byte_letters
from tickertape.weights.vocabularies.piece_model import PieceModel

TEXTS = [
    "Hello world, it's 1234 o'clock; WE'LL see.",
    "def f(x):\n\treturn {'a': [x ** 2, 0x1F]}  # ok\n\n\n",
    "Größe, naïve façade; Ærøskøbing, İstanbul",
    "你好，世界。今天的天气很好！",
    "Привет, мир! Γειά σου Κόσμε",
    "नमस्ते दुनिया مرحبا بالعالم",
    "😀👍🏽👩‍👩‍👧 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \u200b zero",
    "trailing   spaces   ",
    "a  b   c    d",
    "ﬁne ﬂuid ½ Å e\u0301",
    "\ufffd\u0000\u0001 odd \r\n ends\r\n",
    "x" * 300,
    "",
    " ",
    "one",
]
LEADING = ["  two spaces first", "\n starts with a line"]
CORPUS = [text for text in TEXTS + LEADING for _ in range(3) if text.strip()]

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A directory of files: bytes, text or JSON."""

    def make(**files: Any) -> Path:
        for name, content in files.items():
            path = tmp_path / name.replace("__", ".")
            raw = (
                content
                if isinstance(content, bytes)
                else (content if isinstance(content, str) else json.dumps(content)).encode()
            )
            path.write_bytes(raw)
        return tmp_path

    return make


def converted(directory: Path) -> Tokenizer:
    return Tokenizer.from_str(convert_tokenizer(directory)["tokenizer.json"].decode())


def refusal(directory: Path) -> StartupError:
    with pytest.raises(StartupError) as caught:
        convert_tokenizer(directory)
    assert "\n" not in caught.value.message
    return caught.value


def pieces(**options: Any) -> bytes:
    model = io.BytesIO()
    settings = {
        "vocab_size": 480,
        "model_type": "bpe",
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "character_coverage": 0.98,
        "hard_vocab_limit": False,
        "minloglevel": 2,
    }
    lines = (line for text in CORPUS for line in text.replace("\0", "").split("\n") if line)
    train: Any = sentencepiece.SentencePieceTrainer.train
    train(sentence_iterator=lines, model_writer=model, **(settings | options))
    return model.getvalue()


LLAMA = {
    "tokenizer_class": "LlamaTokenizer",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "add_bos_token": True,
    "add_eos_token": False,
}
CHAT = ["<s>[INST] hi [/INST] yes </s><s> [INST] more", "a<s>b</s> c <unk>"]


def test_llama_as_transformers_reads_it(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    # The schema that comes with transformers: sentencepiece's own wants the newest protobuf.
    slow = importlib.import_module("transformers.convert_slow_tokenizer")
    monkeypatch.setattr(slow, "is_sentencepiece_available", lambda: False)
    directory = write(
        tokenizer__model=pieces(),
        tokenizer_config__json=LLAMA | {"legacy": False},
        config__json={"model_type": "llama"},
    )
    ours, theirs = converted(directory), transformers.AutoTokenizer.from_pretrained(directory)
    for text in TEXTS + LEADING + CHAT:
        for special in (True, False):
            ids = ours.encode(text, add_special_tokens=special).ids
            assert ids == theirs.encode(text, add_special_tokens=special), text
        assert ours.decode(ids, skip_special_tokens=True) == theirs.decode(ids, skip_special_tokens=True), text


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"add_dummy_prefix": False, "user_defined_symbols": ["<mask>", "<2x>", "\n\n"]},  # Gemma's way
        {
            "model_type": "unigram",
            "byte_fallback": False,
            "normalization_rule_name": "nmt_nfkc",
            "remove_extra_whitespaces": True,
        },
        {"model_type": "unigram", "normalization_rule_name": "nmt_nfkc_cf"},
    ],
    ids=["bpe", "no-prefix", "unigram-nfkc", "unigram-lower"],
)
def test_a_text_is_cut_as_sentencepiece_cuts_it(write: Write, options: dict[str, Any]) -> None:
    data = pieces(**options)
    oracle = sentencepiece.SentencePieceProcessor(model_proto=data)
    ours = converted(write(tokenizer__model=data, tokenizer_config__json={"add_bos_token": True, "legacy": True}))
    for text in TEXTS + LEADING:
        if "\0" in text or ("x" * 300 in text and options.get("model_type") == "unigram"):
            continue  # its own normaliser ends there; of equally good cuts of one letter's run each takes another
        expected = oracle.encode(text)
        ids = ours.encode(text, add_special_tokens=False).ids
        assert ids == expected, text
        assert ours.encode(text).ids == [oracle.bos_id(), *expected]
        if "\ufffd" not in text and oracle.unk_id() not in ids:
            assert ours.decode(ids) == oracle.decode(expected), text


def test_the_file_of_pieces_is_read_as_its_own_library_reads_it() -> None:
    data = pieces(user_defined_symbols=["<mask>"], pad_id=3)
    oracle, ours = sentencepiece.SentencePieceProcessor(model_proto=data), PieceModel.read(data)
    assert [piece.text for piece in ours.pieces] == [oracle.id_to_piece(n) for n in range(oracle.get_piece_size())]
    assert [piece.score for piece in ours.pieces] == [oracle.get_score(n) for n in range(oracle.get_piece_size())]
    assert (ours.unknown, ours.begin, ours.end) == (oracle.unk_id(), oracle.bos_id(), oracle.eos_id())
    assert (ours.byte_fallback, ours.space_first, ours.squeeze_spaces, ours.charsmap) == (True, True, False, b"")
    with pytest.raises(ValueError, match="cut off"):
        PieceModel.read(data[:-1])
    with pytest.raises(ValueError, match="no pieces"):
        PieceModel.read(b"")


def byte_level(**words: Any) -> tuple[dict[str, int], str]:
    """vocab.json and merges.txt, trained on the corpus."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = BpeTrainer(vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    vocabulary: dict[str, int] = model["vocab"]
    return vocabulary, "#version: 0.2\n" + "\n".join(" ".join(pair) for pair in model["merges"]) + "\n"


@pytest.mark.parametrize(
    "config",
    [
        {"tokenizer_class": "GPT2Tokenizer"},
        {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, "bos_token": "<|endoftext|>"},
        {"tokenizer_class": "GPT2TokenizerFast", "add_prefix_space": True},
        {"tokenizer_class": "Qwen2Tokenizer"},
    ],
    ids=["gpt2", "bos", "prefix", "qwen2"],
)
def test_byte_level_as_transformers_reads_it(write: Write, config: dict[str, Any]) -> None:
    vocabulary, merges = byte_level()
    vocabulary["<|endoftext|>"] = len(vocabulary)
    first = len(vocabulary)
    added = {
        str(first): {
            "content": "<|im_start|>",
            "special": True,
            "normalized": False,
            "lstrip": False,
            "rstrip": False,
            "single_word": False,
        },
        str(first + 1): {
            "content": "<think>",
            "special": False,
            "normalized": False,
            "lstrip": False,
            "rstrip": False,
            "single_word": False,
        },
    }
    directory = write(
        vocab__json=vocabulary,
        merges__txt=merges,
        tokenizer_config__json=config | {"added_tokens_decoder": added, "additional_special_tokens": ["<|im_start|>"]},
        config__json={"model_type": "gpt2"},
    )
    ours, theirs = converted(directory), transformers.AutoTokenizer.from_pretrained(directory)
    for text in [*TEXTS, *LEADING, "<|im_start|>user\nhi<think>x<|endoftext|> y"]:
        ids = ours.encode(text).ids
        assert ids == theirs.encode(text), text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_word_pieces_as_transformers_reads_them(write: Write) -> None:
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "hello",
        "world",
        "##s",
        "it",
        "'",
        ",",
        "see",
        "你",
        "好",
        "größe",
        "one",
    ]
    directory = write(
        vocab__txt="\n".join(words) + "\n",
        tokenizer_config__json={"tokenizer_class": "BertTokenizer", "do_lower_case": True},
        config__json={"model_type": "bert"},
    )
    ours, theirs = converted(directory), transformers.AutoTokenizer.from_pretrained(directory)
    for text in [*TEXTS, "Hello worlds [MASK] it's"]:
        assert ours.encode(text).ids == theirs.encode(text), text


def ranks() -> dict[bytes, int]:
    """Byte strings by rank: the bytes, then what merges give."""
    _, merges = byte_level()
    back = {letter: byte for byte, letter in byte_letters().items()}
    order = [bytes([n]) for n in range(256)]
    for line in merges.splitlines()[1:]:
        token = bytes(back[letter] for letter in line.replace(" ", ""))
        if token not in order:
            order.append(token)
    return {token: n for n, token in enumerate(order)}


def tiktoken_file(ranked: dict[bytes, int]) -> bytes:
    return b"".join(b"%s %d\n" % (base64.b64encode(token), rank) for token, rank in ranked.items())


def test_qwen_tiktoken_as_tiktoken_reads_it(write: Write) -> None:
    from tickertape.weights.vocabularies.byte_level import QWEN_WORDS

    ranked = ranks()
    directory = write(qwen__tiktoken=tiktoken_file(ranked), tokenizer_config__json={"tokenizer_class": "QWenTokenizer"})
    ours = converted(directory)
    special = {"<|endoftext|>": len(ranked), "<|im_start|>": len(ranked) + 1, "<|im_end|>": len(ranked) + 2}
    oracle = tiktoken.Encoding("qwen", pat_str=QWEN_WORDS, mergeable_ranks=ranked, special_tokens=special)
    for text in [*TEXTS, *LEADING, "<|im_start|>user\nhi<|im_end|>"]:
        if "e\u0301" not in text:  # tiktoken itself composes nothing, Qwen does
            assert ours.encode(text).ids == oracle.encode(text, allowed_special="all"), text
    assert ours.token_to_id("<|extra_204|>") == len(ranked) + 207
    assert ours.encode("e\u0301").ids == ours.encode("\u00e9").ids


def test_llama3_under_the_name_of_a_sentencepiece_file(write: Write) -> None:
    ranked = ranks()
    added = {str(len(ranked)): {"content": "<|begin_of_text|>", "special": True}}
    config = {"bos_token": "<|begin_of_text|>", "added_tokens_decoder": added}
    directory = write(
        tokenizer__model=tiktoken_file(ranked), tokenizer_config__json=config, config__json={"model_type": "llama"}
    )
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    oracle = tiktoken.Encoding("llama3", pat_str=pattern, mergeable_ranks=ranked, special_tokens={})
    for text in TEXTS + LEADING:
        assert converted(directory).encode(text).ids == [len(ranked), *oracle.encode(text)]


def tekken(*, listed: bool) -> dict[str, Any]:
    ranked = ranks()
    texts = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    special = [{"rank": n, "token_str": text, "is_control": True} for n, text in enumerate(texts)]
    vocabulary = [
        {"rank": n, "token_bytes": base64.b64encode(token).decode(), "token_str": None} for token, n in ranked.items()
    ]
    pattern = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    config = {
        "pattern": pattern,
        "num_vocab_tokens": len(ranked),
        "default_vocab_size": len(ranked) + 30,
        "default_num_special_tokens": 40,
        "version": "v7",
    }
    return {"config": config, "vocab": vocabulary} | ({"special_tokens": special} if listed else {})


@pytest.mark.parametrize("listed", [True, False])
def test_tekken_as_tiktoken_reads_it(write: Write, listed: bool) -> None:
    content = tekken(listed=listed)
    kept = {token: n for token, n in ranks().items() if n < len(ranks()) - 10}
    oracle = tiktoken.Encoding("tekken", pat_str=content["config"]["pattern"], mergeable_ranks=kept, special_tokens={})
    directory = write(tekken__json=content)
    ours = converted(directory)
    for text in TEXTS + LEADING:
        assert ours.encode(text).ids == [1, *(40 + n for n in oracle.encode(text))], text
    assert ours.encode("[INST]", add_special_tokens=False).ids == [3]
    assert ours.token_to_id("<SPECIAL_39>") == 39
    assert json.loads(convert_tokenizer(directory)["tokenizer_config.json"]) == {
        "bos_token": "<s>",
        "eos_token": "</s>",
    }


@pytest.mark.parametrize(
    ("files", "code", "words"),
    [
        ({"tokenizer.model": b"\x08"}, "BadTokenizer", "tokenizer.model: it is cut off"),
        ({"spiece.model": b""}, "UnsupportedTokenizer", "spiece.model"),
        ({"vocab.json": {"a": 0}}, "UnsupportedTokenizer", "vocab.json"),
        (
            {"vocab.json": {"a": 0}, "merges.txt": "a b c\n", "config.json": {"model_type": "gpt2"}},
            "BadTokenizer",
            "merges.txt",
        ),
        (
            {"vocab.json": {"a": 0}, "merges.txt": "", "tokenizer_config.json": {"tokenizer_class": "BioGptTokenizer"}},
            "UnsupportedTokenizer",
            "BioGptTokenizer",
        ),
        (
            {"vocab.txt": "a\n", "tokenizer_config.json": {"tokenizer_class": "EsmTokenizer"}},
            "UnsupportedTokenizer",
            "EsmTokenizer",
        ),
        ({"cl100k.tiktoken": b"YQ== 0\n"}, "UnsupportedTokenizer", "cl100k.tiktoken"),
        ({"qwen.tiktoken": b"YQ== 1\n"}, "BadTokenizer", "ranks"),
        ({"tekken.json": {"vocab": []}}, "BadTokenizer", "tekken.json"),
        (
            {"vocab.json": {"a": 0}, "merges.txt": "", "tokenizer_config.json": "{"},
            "BadTokenizer",
            "tokenizer_config.json",
        ),
        (
            {
                "vocab.json": {"a": 0},
                "merges.txt": "",
                "tokenizer_config.json": {
                    "tokenizer_class": "GPT2Tokenizer",
                    "added_tokens_decoder": {"7": {"content": "<x>"}},
                },
            },
            "BadTokenizer",
            "'<x>' the id 7",
        ),
    ],
)
def test_what_cannot_be_converted_is_refused_by_name(
    write: Write, files: dict[str, Any], code: str, words: str
) -> None:
    error = refusal(write(**{name.replace(".", "__"): content for name, content in files.items()}))
    assert error.code == code
    assert words in error.message


def test_a_sentencepiece_model_of_a_class_with_ids_of_its_own_is_refused(write: Write) -> None:
    directory = write(tokenizer__model=pieces(), tokenizer_config__json={"tokenizer_class": "XGLMTokenizer"})
    assert "XGLMTokenizer" in refusal(directory).message
    for kind in ("word", "char"):
        write(tokenizer__model=pieces(model_type=kind, byte_fallback=False), tokenizer_config__json={})
        assert "words or letters" in refusal(directory).message


def test_only_what_lacks_a_tokenizer_json_is_converted(write: Write) -> None:
    directory = write(tekken__json=tekken(listed=True), config__json={})
    assert vocabulary_files(directory) == ("tekken.json", "config.json")
    write(tokenizer__json="{}")
    assert vocabulary_files(directory) == ()
