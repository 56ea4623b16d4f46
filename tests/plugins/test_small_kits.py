"""The kits of tokenizers, logits processors and weight sources: good parts pass, each rule has one that breaks it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tickertape.api.tokenizer import TextTokenizer
from tickertape.plugins import (
    FileEntry,
    FileSink,
    LogitsContext,
    LogitsProcessorSpec,
    Manifest,
    Progress,
    StartupError,
    Tokenizer,
)
from tickertape.plugins.sources.directory import DirectorySource
from tickertape.testing.logits_processor import LogitsProcessorConformance, ProcessorSubject
from tickertape.testing.tokenizer import TokenizerConformance, TokenizerSubject
from tickertape.testing.tokenizers import byte_level_tokenizer
from tickertape.testing.weight_source import SourceSubject, WeightSourceConformance

Rule = Callable[..., None]


def rules_of(kit: type) -> set[str]:
    return {name for name in vars(kit) if name.startswith("test_")}


# -- tokenizers ------------------------------------------------------------------------------------------------------


class Bytes:
    """A good one: every byte is a token, 256 begins a text and 257 ends it."""

    vocab_size = 258
    bos_token_id: int | None = 256
    eos_token_ids: tuple[int, ...] = (257,)
    special_ids = frozenset({256, 257})

    def encode(self, text: str, *, add_special_tokens: bool) -> Sequence[int]:
        ids: list[int] = [256] if add_special_tokens else []
        for n, part in enumerate(text.split("<end>")):
            ids += ([257] if n else []) + list(part.encode())
        return ids

    def token_bytes(self, id: int) -> bytes:
        return {256: b"", 257: b"<end>"}.get(id, bytes([id]) if id < 256 else b"")


class Good(Bytes):
    """`<begin>` and `<end>` may be written out."""

    def encode(self, text: str, *, add_special_tokens: bool) -> Sequence[int]:
        ids: list[int] = [256] if add_special_tokens else []
        for n, part in enumerate(text.split("<begin>")):
            ids += ([256] if n else []) + list(Bytes.encode(self, part, add_special_tokens=False))
        return ids

    def token_bytes(self, id: int) -> bytes:
        return b"<begin>" if id == 256 else Bytes.token_bytes(self, id)


class Normalizes(Good):
    def encode(self, text: str, *, add_special_tokens: bool) -> Sequence[int]:
        return super().encode(text.strip(), add_special_tokens=add_special_tokens)


class AddsASpace(Good):
    def encode(self, text: str, *, add_special_tokens: bool) -> Sequence[int]:
        return [32, *super().encode(text, add_special_tokens=add_special_tokens)]


class MiscountsItsVocabulary(Good):
    vocab_size = 257


class RaisesForUnknownIds(Good):
    def token_bytes(self, id: int) -> bytes:
        assert id < self.vocab_size, "no such token"
        return super().token_bytes(id)


class AlwaysAddsTheBeginning(Good):
    def encode(self, text: str, *, add_special_tokens: bool) -> Sequence[int]:
        return super().encode(text, add_special_tokens=True) if text else []


class SpellsSpecialsOut(Good):
    def encode(self, text: str, *, add_special_tokens: bool) -> Sequence[int]:
        return [*([256] if add_special_tokens else []), *text.encode()]


class SharesABuffer(Good):
    def __init__(self) -> None:
        self._buffer: list[int] = []

    def encode(self, text: str, *, add_special_tokens: bool) -> Sequence[int]:
        self._buffer.clear()
        for id in super().encode(text, add_special_tokens=add_special_tokens):
            self._buffer.append(id)
            threading.Event().wait(1e-6)
        return list(self._buffer)


class TestByteTokens(TokenizerConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> TokenizerSubject:
        return TokenizerSubject(open=Good, texts=("a text\0of mine",))


class TestByteLevel(TokenizerConformance):
    """Ours, where its tokens are bytes."""

    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> TokenizerSubject:
        return TokenizerSubject(open=lambda: TextTokenizer(byte_level_tokenizer(), eos_token_ids=(256,)))


TOKENIZERS: list[tuple[type[Good], Rule]] = [
    (Normalizes, TokenizerConformance.test_a_text_comes_back_to_the_byte),
    (AddsASpace, TokenizerConformance.test_no_text_has_no_tokens),
    (MiscountsItsVocabulary, TokenizerConformance.test_ids_are_below_the_vocabulary_size),
    (RaisesForUnknownIds, TokenizerConformance.test_every_id_has_bytes_and_others_have_none),
    (AlwaysAddsTheBeginning, TokenizerConformance.test_special_tokens_stand_around_the_text),
    (SpellsSpecialsOut, TokenizerConformance.test_a_special_token_that_is_written_out_is_one),
    (SharesABuffer, TokenizerConformance.test_threads_do_not_disturb_each_other),
]


@pytest.mark.parametrize(("broken", "rule"), TOKENIZERS, ids=[rule.__name__ for _, rule in TOKENIZERS])
def test_a_broken_tokenizer_is_caught(broken: type[Good], rule: Rule) -> None:
    tokenizer: Tokenizer = broken()
    with pytest.raises(AssertionError):
        rule(TokenizerConformance(), TokenizerSubject(open=lambda: tokenizer))


# -- logits processors -----------------------------------------------------------------------------------------------


class Rare:
    """A good one: the more often an id came, the less likely it is."""

    def __init__(self, arguments: Mapping[str, Any], context: LogitsContext) -> None:
        self._strength = arguments.get("strength", 1.0)

    def apply(self, tokens: Sequence[int], logits: Any) -> None:
        for token in tokens:
            logits[token] -= self._strength


def check_strength(arguments: Mapping[str, Any]) -> str | None:
    given = arguments.get("strength", 1.0)
    return None if isinstance(given, int | float) and given >= 0 else "'strength' is a number from 0 on"


class GivesThemBack(Rare):
    def apply(self, tokens: Sequence[int], logits: Any) -> None:
        return logits - 1  # type: ignore[no-any-return]


class MakesNan(Rare):
    def apply(self, tokens: Sequence[int], logits: Any) -> None:
        logits[tokens[-1]] = np.nan


class Sorts(Rare):
    def apply(self, tokens: Sequence[int], logits: Any) -> None:
        tokens.sort()  # type: ignore[attr-defined]


class Counts(Rare):
    """Remembers how often it was asked."""

    num_asked = 0

    def apply(self, tokens: Sequence[int], logits: Any) -> None:
        self.num_asked += 1
        logits[1] -= self.num_asked


class Shares(Rare):
    seen: set[int] = set()  # noqa: RUF012

    def apply(self, tokens: Sequence[int], logits: Any) -> None:
        self.seen.update(tokens)
        for token in self.seen:
            logits[token] -= 1


class KnowsNumpyOnly(Rare):
    def apply(self, tokens: Sequence[int], logits: Any) -> None:
        logits[:] = logits + np.sign(logits) if isinstance(logits, np.ndarray) else logits


class TestRare(LogitsProcessorConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> ProcessorSubject:
        return rare(Rare)


def rare(make: Callable[..., Any], check: Any = check_strength) -> ProcessorSubject:
    spec = LogitsProcessorSpec(name="rare", make=make, check=check)
    return ProcessorSubject(spec, good=({}, {"strength": 0.5}), bad=({"strength": -1}, {"strength": "x"}))


PROCESSORS: list[tuple[ProcessorSubject, Rule]] = [
    (rare(Rare, lambda arguments: None), LogitsProcessorConformance.test_arguments_are_checked),
    (rare(Rare, lambda arguments: "never"), LogitsProcessorConformance.test_arguments_are_checked),
    (rare(GivesThemBack), LogitsProcessorConformance.test_logits_are_edited_in_place),
    (rare(MakesNan), LogitsProcessorConformance.test_logits_are_edited_in_place),
    (rare(Sorts), LogitsProcessorConformance.test_the_ids_stay_as_they_are),
    (rare(Counts), LogitsProcessorConformance.test_what_it_does_follows_from_the_ids),
    (rare(Shares), LogitsProcessorConformance.test_sequences_do_not_share_anything),
    (rare(KnowsNumpyOnly), LogitsProcessorConformance.test_torch_and_numpy_are_edited_alike),
]


@pytest.mark.parametrize(("broken", "rule"), PROCESSORS, ids=[rule.__name__ for _, rule in PROCESSORS])
def test_a_broken_processor_is_caught(broken: ProcessorSubject, rule: Rule) -> None:
    Shares.seen.clear()
    with pytest.raises(AssertionError):
        rule(LogitsProcessorConformance(), broken)


# -- weight sources --------------------------------------------------------------------------------------------------

FILES = {"config.json": b'{"a": 1}', "model.safetensors": bytes(range(256)) * 8}


class Memory:
    """A good one: files from a dictionary, in pieces, only what is missing."""

    name = "memory"
    schemes: tuple[str, ...] = ("memory",)

    def resolve(self, uri: str) -> Manifest:
        if uri != "memory://model":
            raise StartupError(f"no such model: {uri}", code="PathNotFound")
        return Manifest(uri, "1", tuple(FileEntry(path, len(data)) for path, data in FILES.items()))

    def fetch(self, manifest: Manifest, sink: FileSink) -> Generator[Progress, None, None]:
        for entry in manifest.files:
            for start, end in sink.missing(entry):
                data = FILES[entry.path][start:end]
                for offset in range(0, len(data), 100):
                    sink.write(entry, start + offset, data[offset : offset + 100])
                    yield Progress("download", offset, len(data))
                sink.finish(entry)


class Shouts(Memory):
    schemes = ("Memory://",)


class ChangesItsMind(Memory):
    num_asked = 0

    def resolve(self, uri: str) -> Manifest:
        self.num_asked += 1
        manifest = super().resolve(uri)
        return Manifest(manifest.uri, str(self.num_asked), manifest.files)


class Escapes(Memory):
    def resolve(self, uri: str) -> Manifest:
        return Manifest(uri, "1", (FileEntry("../config.json", 8), FileEntry("model.safetensors", 2048)))


class FindsEverything(Memory):
    def resolve(self, uri: str) -> Manifest:
        return super().resolve("memory://model")


class RaisesItsOwn(Memory):
    def resolve(self, uri: str) -> Manifest:
        try:
            return super().resolve(uri)
        except StartupError as error:
            raise LookupError("nothing there") from error


class StopsShort(Memory):
    def fetch(self, manifest: Manifest, sink: FileSink) -> Generator[Progress, None, None]:
        yield from super().fetch(Manifest(manifest.uri, "1", manifest.files[:1]), sink)


class NeverFinishes(Memory):
    def fetch(self, manifest: Manifest, sink: FileSink) -> Generator[Progress, None, None]:
        for entry in manifest.files:
            sink.write(entry, 0, FILES[entry.path])
            yield Progress("download", 1, 1)


class StartsOver(Memory):
    def fetch(self, manifest: Manifest, sink: FileSink) -> Generator[Progress, None, None]:
        for entry in manifest.files:
            sink.write(entry, 0, FILES[entry.path])
            yield Progress("download", 1, 1)
            sink.finish(entry)


class LeavesAChild(Memory):
    def __init__(self) -> None:
        self.children: list[subprocess.Popen[bytes]] = []

    def fetch(self, manifest: Manifest, sink: FileSink) -> Generator[Progress, None, None]:
        self.children.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))
        yield from super().fetch(manifest, sink)


class TestMemory(WeightSourceConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> SourceSubject:
        return in_memory(Memory())


class TestDirectory(WeightSourceConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls, tmp_path_factory: pytest.TempPathFactory) -> SourceSubject:
        directory = tmp_path_factory.mktemp("model")
        for path, data in FILES.items():
            (directory / path).write_bytes(data)
        return SourceSubject(
            DirectorySource(), good=directory.as_uri(), bad=Path("/nowhere/at/all").as_uri(), files=FILES
        )


def in_memory(source: Memory) -> SourceSubject:
    return SourceSubject(source, good="memory://model", bad="memory://nothing", files=FILES)


SOURCES: list[tuple[type[Memory], Rule]] = [
    (Shouts, WeightSourceConformance.test_schemes_are_words),
    (ChangesItsMind, WeightSourceConformance.test_a_uri_means_the_same_again),
    (Escapes, WeightSourceConformance.test_paths_stay_inside_the_model),
    (FindsEverything, WeightSourceConformance.test_what_is_not_there_is_said_in_one_line),
    (RaisesItsOwn, WeightSourceConformance.test_what_is_not_there_is_said_in_one_line),
    (StopsShort, WeightSourceConformance.test_every_file_comes_whole),
    (NeverFinishes, WeightSourceConformance.test_every_file_comes_whole),
    (StartsOver, WeightSourceConformance.test_what_is_held_is_not_brought_again),
    (LeavesAChild, WeightSourceConformance.test_closing_early_leaves_nothing_behind),
]


@pytest.mark.parametrize(("broken", "rule"), SOURCES, ids=[f"{rule.__name__}-{b.__name__}" for b, rule in SOURCES])
def test_a_broken_source_is_caught(broken: type[Memory], rule: Rule) -> None:
    source = broken()
    try:
        with pytest.raises((AssertionError, pytest.fail.Exception, LookupError)):
            rule(WeightSourceConformance(), replace(in_memory(Memory()), source=source))
    finally:
        for child in getattr(source, "children", ()):
            child.kill()
            child.wait()


@pytest.mark.parametrize(
    ("kit", "broken"),
    [(TokenizerConformance, TOKENIZERS), (LogitsProcessorConformance, PROCESSORS), (WeightSourceConformance, SOURCES)],
)
def test_every_rule_has_something_that_breaks_it(kit: type, broken: list[tuple[Any, Rule]]) -> None:
    assert {rule.__name__ for _, rule in broken} == rules_of(kit)
