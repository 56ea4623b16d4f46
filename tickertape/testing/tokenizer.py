"""TokenizerConformance: what every Tokenizer of a plugin must do, written once.

class TestMine(TokenizerConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls):
        return TokenizerSubject(open=lambda: MyTokenizer(directory))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tickertape.plugins import Tokenizer

__all__ = ["TokenizerConformance", "TokenizerSubject"]

TEXTS = (
    "Hello, world!",
    " leading and trailing ",
    "line\nbreaks\r\nand\ttabs  and   runs of spaces",
    "naïve café, Größe, пример, 你好世界, こんにちは, ‏עברית",
    "emoji 👍🏽 👩‍👩‍👧‍👦 and combining e\u0301",
    "code(x) { return x[0] != 'a' ? 1e-9 : 0x7f; }",
    "\u0000\u0001 control \u007f",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "\ufeffbom \ufffd",
)
MAX_IDS = 4096  # of a large vocabulary so many are looked at


@dataclass(frozen=True)
class TokenizerSubject:
    """A tokenizer under test; `texts` are looked at besides the kit's own."""

    open: Callable[[], Tokenizer]
    texts: Sequence[str] = ()


class TokenizerConformance:
    """Override `subject`."""

    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> TokenizerSubject:
        raise pytest.UsageError("a subclass of TokenizerConformance overrides the fixture `subject`")

    def test_a_text_comes_back_to_the_byte(self, subject: TokenizerSubject) -> None:
        tokenizer = subject.open()
        for text in (*TEXTS, *subject.texts):
            ids = tokenizer.encode(text, add_special_tokens=False)
            assert b"".join(tokenizer.token_bytes(id) for id in ids) == text.encode()

    def test_no_text_has_no_tokens(self, subject: TokenizerSubject) -> None:
        assert list(subject.open().encode("", add_special_tokens=False)) == []

    def test_ids_are_below_the_vocabulary_size(self, subject: TokenizerSubject) -> None:
        tokenizer = subject.open()
        named = [*tokenizer.eos_token_ids, *tokenizer.special_ids]
        if tokenizer.bos_token_id is not None:
            named.append(tokenizer.bos_token_id)
        ids = [id for text in TEXTS for id in tokenizer.encode(text, add_special_tokens=True)]
        assert all(type(id) is int and 0 <= id < tokenizer.vocab_size for id in [*named, *ids])

    def test_every_id_has_bytes_and_others_have_none(self, subject: TokenizerSubject) -> None:
        tokenizer = subject.open()
        size = tokenizer.vocab_size
        for id in range(0, size, max(1, size // MAX_IDS)):
            assert isinstance(tokenizer.token_bytes(id), bytes)
        assert tokenizer.token_bytes(size) == tokenizer.token_bytes(size + 1000) == b""

    def test_special_tokens_stand_around_the_text(self, subject: TokenizerSubject) -> None:
        """Asked for, they come before or after what is there without them."""
        tokenizer = subject.open()
        for text in TEXTS:
            plain = list(tokenizer.encode(text, add_special_tokens=False))
            full = list(tokenizer.encode(text, add_special_tokens=True))
            assert [id for id in full if id not in tokenizer.special_ids] == plain
            assert not tokenizer.special_ids & set(plain)

    def test_a_special_token_that_is_written_out_is_one(self, subject: TokenizerSubject) -> None:
        tokenizer = subject.open()
        for id in tokenizer.special_ids:
            ids = tokenizer.encode(f"a{tokenizer.token_bytes(id).decode()}b", add_special_tokens=False)
            assert id in ids

    def test_threads_do_not_disturb_each_other(self, subject: TokenizerSubject) -> None:
        tokenizer = subject.open()
        expected = [list(tokenizer.encode(text, add_special_tokens=True)) for text in TEXTS]
        with ThreadPoolExecutor(4) as pool:
            found = pool.map(lambda text: list(tokenizer.encode(text, add_special_tokens=True)), TEXTS * 8)
            assert list(found) == expected * 8
