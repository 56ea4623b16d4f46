"""OutputParserConformance: what every output parser must do, written once.

    class TestMine(OutputParserConformance):
        @pytest.fixture(scope="class")
        @classmethod
        def subject(cls):
            return ParserSubject(MY_SPEC, texts=[...], markup={"tool_call", "name", "arguments"})

The texts are answers as the model writes them, and near misses: the more kinds, the more is shown.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement, count, pairwise
from typing import Any

import pytest

from tickertape.core.output_parser import FoldedOutput, fold_parts
from tickertape.plugins import OutputParser, OutputParserSpec, OutputPart, ParserContext, ToolCallPart

__all__ = ["OutputParserConformance", "ParserSubject"]

_WORD = re.compile(r"\w+")
_ESCAPE = re.compile(r'\\["\\/bfnrt]')
_PLAIN = "The quick brown fox jumps over the lazy dog. "
_MAX_HELD_CHARS = 64
_NUM_MUTANTS = 40  # per text
_SMALL, _LARGE = 6_000, 24_000  # characters, piece by piece
_SMALL_WHOLE, _LARGE_WHOLE = 50_000, 200_000  # in one piece
_NUM_ATTEMPTS = 3  # the machine may be busy
_MAX_GROWTH = 8.0  # for four times the text: 4 is linear, 16 quadratic


@dataclass(frozen=True)
class ParserSubject:
    """A parser under test.

    `texts`: answers to read. `markup`: the words that the format itself is made of and that may go (a word is a run of
    letters, digits and underscores). `tools` may be called. `prompt_ends`: what the prompt may end in. `repeated`:
    texts that, over and over, are nearly something; the parser's own `shows` and `triggers` are repeated in any case.
    """

    spec: OutputParserSpec
    texts: Sequence[str]
    markup: Iterable[str] = ()
    tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    prompt_ends: Sequence[str | None] = (None,)
    repeated: Sequence[str] = ()

    def open(self, prompt_end: str | None = None) -> OutputParser:
        numbers = count()
        context = ParserContext(tools=self.tools, prompt_end=prompt_end, new_id=lambda: f"call_{next(numbers)}")
        return self.spec.make(context)

    def parts(self, pieces: Sequence[str], prompt_end: str | None = None) -> list[OutputPart]:
        """What the parser makes of a text that comes in `pieces`."""
        parser = self.open(prompt_end)
        parts: list[OutputPart] = []
        for n, piece in enumerate(pieces, 1):
            parts += parser.feed(piece, n == len(pieces))
        return parts

    def fold(self, text: str, prompt_end: str | None = None, *, cuts: Iterable[int] = ()) -> FoldedOutput:
        """What the text adds up to, cut at these places."""
        pieces = [text[start:end] for start, end in pairwise([0, *sorted(cuts), len(text)])]
        return fold_parts(self.parts(pieces, prompt_end))

    def check_words(self, text: str, output: FoldedOutput) -> None:
        """Every word of the text is in the output as often as written, but for those of the format."""
        calls = [word for call in output.calls for word in (call.name, call.arguments)]
        found = _words(" ".join([output.content, output.reasoning, *calls]))
        written = _words(text)
        assert not set(written - found).difference(self.markup), f"lost words of {text!r}: {output}"
        assert not set(found - written).difference(self.markup), f"words that are not in {text!r}: {output}"


class OutputParserConformance:
    """Override `subject`."""

    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> ParserSubject:
        raise pytest.UsageError("a subclass of OutputParserConformance overrides the fixture `subject`")

    # -- how a text is cut makes no difference ---------------------------------------------------------------------

    def test_two_cuts_anywhere_make_no_difference(self, subject: ParserSubject) -> None:
        for text, prompt_end in _cases(subject):
            whole = subject.fold(text, prompt_end)
            for cuts in combinations_with_replacement(range(len(text) + 1), 2):
                assert subject.fold(text, prompt_end, cuts=cuts) == whole, f"{text!r} cut at {cuts}"

    def test_single_characters_make_no_difference(self, subject: ParserSubject) -> None:
        for text, prompt_end in _cases(subject):
            cuts = range(1, len(text))
            assert subject.fold(text, prompt_end, cuts=cuts) == subject.fold(text, prompt_end), f"{text!r}"

    def test_damaged_texts_in_any_pieces_give_the_same(self, subject: ParserSubject) -> None:
        for text, prompt_end, chance in _mutants(subject):
            cuts = chance.choices(range(len(text) + 1), k=chance.randrange(1, 12))
            whole = subject.fold(text, prompt_end)
            assert subject.fold(text, prompt_end, cuts=cuts) == whole, f"{text!r} cut at {sorted(cuts)}"

    # -- nothing is lost -------------------------------------------------------------------------------------------

    def test_no_word_is_lost_wherever_the_text_ends(self, subject: ParserSubject) -> None:
        for text, prompt_end in _cases(subject):
            for end in range(len(text) + 1):
                subject.check_words(text[:end], subject.fold(text[:end], prompt_end))

    def test_no_word_of_a_damaged_text_is_lost(self, subject: ParserSubject) -> None:
        for text, prompt_end, _ in _mutants(subject):
            subject.check_words(text, subject.fold(text, prompt_end))

    def test_plain_text_comes_out_as_it_is(self, subject: ParserSubject) -> None:
        text = _PLAIN * 3
        assert subject.fold(text) in (FoldedOutput(text, "", ()), FoldedOutput("", text, ()))

    def test_plain_text_is_not_held(self, subject: ParserSubject) -> None:
        parser = subject.open()
        shown = written = 0
        for word in (_PLAIN * 4).split():
            written += len(word) + 1
            for part in parser.feed(f"{word} ", False):
                assert not isinstance(part, ToolCallPart)
                shown += len(part.text)
            assert written - shown <= _MAX_HELD_CHARS, "text that cannot become markup is held"

    # -- the form of the parts -------------------------------------------------------------------------------------

    def test_parts_are_whole(self, subject: ParserSubject) -> None:
        """None is empty; a call begins with its id and name, and has both once; ids differ; only tools are called."""
        for text, prompt_end in _cases(subject):
            for pieces in ([text], list(text) or [""]):
                parts = subject.parts(pieces, prompt_end)
                for part in parts:
                    if isinstance(part, ToolCallPart):
                        assert part.arguments or part.name, f"an empty part: {part}"
                    else:
                        assert part.text, f"an empty part: {part}"
                calls = fold_parts(parts).calls
                assert len({call.id for call in calls}) == len(calls)
                assert {call.name for call in calls} <= set(subject.tools)

    def test_final_is_the_end(self, subject: ParserSubject) -> None:
        """It may come with text or without; nothing is held after it, and nothing may follow."""
        for text, prompt_end in _cases(subject):
            assert fold_parts(subject.parts([text, ""], prompt_end)) == subject.fold(text, prompt_end)
            parser = subject.open(prompt_end)
            parser.feed(text, True)
            for final in (False, True):
                with pytest.raises(ValueError, match=r"."):
                    parser.feed("", final)

    def test_choices_do_not_share_state(self, subject: ParserSubject) -> None:
        for text, prompt_end in _cases(subject):
            one, other = subject.open(prompt_end), subject.open(prompt_end)
            parts: tuple[list[OutputPart], list[OutputPart]] = ([], [])
            for character in text:
                parts[0].extend(one.feed(character, False))
                parts[1].extend(other.feed(character, False))
            parts[0].extend(one.feed("", True))
            parts[1].extend(other.feed("", True))
            assert fold_parts(parts[0]) == fold_parts(parts[1]) == subject.fold(text, prompt_end)

    def test_its_call_format_is_its_own(self, subject: ParserSubject) -> None:
        """What a grammar would force is read as calls."""
        if subject.spec.call_format is None:
            pytest.skip("the format's arguments are no JSON text")
        assert subject.tools, "a parser that names a call format is tested with tools"
        calls = [(name, json.dumps({"a": [1, "}"]})) for name in subject.tools] + [(next(iter(subject.tools)), "{}")]
        for some in ([calls[0]], calls):
            output = subject.fold(subject.spec.call_format.spell(some))
            assert [(call.name, call.arguments) for call in output.calls] == some
            assert not output.content

    # -- work ------------------------------------------------------------------------------------------------------

    def test_work_is_linear(self, subject: ParserSubject) -> None:
        """Four times the text takes about four times the processor time, for texts made of near misses."""
        for unit in ("<", '{"a":', "[", "\n", *subject.spec.shows, *subject.spec.triggers, *subject.repeated):
            for small, large, whole in ((_SMALL, _LARGE, False), (_SMALL_WHOLE, _LARGE_WHOLE, True)):
                growths: list[float] = []
                while len(growths) < _NUM_ATTEMPTS and min(growths, default=_MAX_GROWTH) >= _MAX_GROWTH:
                    growths.append(_seconds(subject, unit, large, whole) / _seconds(subject, unit, small, whole))
                assert min(growths) < _MAX_GROWTH, f"{large} characters of {unit!r} took {growths} times {small}'s time"


# -- parts of the tests ----------------------------------------------------------------------------------------------


def _cases(subject: ParserSubject) -> Iterable[tuple[str, str | None]]:
    return [(text, prompt_end) for prompt_end in subject.prompt_ends for text in subject.texts]


def _words(text: str) -> Counter[str]:
    return Counter(_WORD.findall(_ESCAPE.sub(" ", text)))


def _mutants(subject: ParserSubject) -> Iterable[tuple[str, str | None, random.Random]]:
    """Texts with a stretch left out, doubled, or replaced by a bit of markup; words stay whole."""
    chance = random.Random(0)
    marks = [*subject.spec.shows, *subject.spec.triggers, "<", '"', "{", "}", "]", "\\", ",", "\n", " "]
    for text, prompt_end in _cases(subject):
        edges = [0, *(found.start() for found in re.finditer(r"\W", text)), len(text)]
        for _ in range(_NUM_MUTANTS):
            start, end = sorted(chance.choices(edges, k=2))
            middle = chance.choice(["", text[start:end] * 2, chance.choice(marks)])
            yield text[:start] + middle + text[end:], prompt_end, chance


def _seconds(subject: ParserSubject, unit: str, size: int, whole: bool) -> float:
    """Processor time for about `size` characters, in one piece or one by one."""
    text = unit * (size // len(unit))
    start = time.process_time()
    subject.parts([text] if whole else list(text))
    return max(time.process_time() - start, 1e-4)
