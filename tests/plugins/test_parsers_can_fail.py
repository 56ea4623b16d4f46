"""Every rule of the kit can fail: for each, a parser that breaks it alone is caught by the test of that rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from tickertape.plugins import (
    CallFormat,
    ContentPart,
    OutputParser,
    OutputParserSpec,
    OutputPart,
    ParserContext,
    ToolCallPart,
)
from tickertape.plugins.manager import Plugins
from tickertape.testing.output_parser import OutputParserConformance, ParserSubject

CALL = '<tool_call>\n{"name": "now", "arguments": {"city": "Paris"}}\n</tool_call>'
TEXTS = (
    f"Well. {CALL} So.",
    CALL,
    CALL + CALL,
    '<tool_call>{"name": "rm", "arguments": {}}</tool_call>',
    "a < b <tool_c",
    "",
)


class Twin:
    """A good parser with one fault."""

    def __init__(self, good: OutputParser, context: ParserContext) -> None:
        self.good = good
        self.context = context

    def feed(self, text: str, final: bool) -> Sequence[OutputPart]:
        return self.good.feed(text, final)


class LooksAtEachPieceAlone(Twin):
    """Takes the end of a piece for the end of what could be a tag."""

    def feed(self, text: str, final: bool) -> Sequence[OutputPart]:
        if "<" in text and "<tool_call>" not in text and ">" not in text:
            text = text.replace("<", "")
        return super().feed(text, final)


class DropsWhatIsNoCall(Twin):
    def feed(self, text: str, final: bool) -> Sequence[OutputPart]:
        parts = super().feed(text, final)
        return [part for part in parts if not (isinstance(part, ContentPart) and "{" in part.text)]


class SaysItTwice(Twin):
    def feed(self, text: str, final: bool) -> Sequence[OutputPart]:
        parts = super().feed(text, final)
        return [replace(part, text=part.text * 2) if isinstance(part, ContentPart) else part for part in parts]


class TrimsText(Twin):
    """Shows no white space at the end."""

    def feed(self, text: str, final: bool) -> Sequence[OutputPart]:
        parts = [*super().feed(text, final)]
        if final and parts and isinstance(parts[-1], ContentPart):
            parts[-1] = ContentPart(parts[-1].text.rstrip())
        return parts


class HoldsEverything(Twin):
    def __init__(self, good: OutputParser, context: ParserContext) -> None:
        super().__init__(good, context)
        self._parts: list[OutputPart] = []

    def feed(self, text: str, final: bool) -> Sequence[OutputPart]:
        self._parts += super().feed(text, final)
        return self._parts if final else []


class GivesEmptyParts(Twin):
    def feed(self, text: str, final: bool) -> Sequence[OutputPart]:
        return super().feed(text, final) or [ContentPart("")]


class UsesOneId(Twin):
    def feed(self, text: str, final: bool) -> Sequence[OutputPart]:
        parts = super().feed(text, final)
        return [replace(p, id="call") if isinstance(p, ToolCallPart) and p.id else p for p in parts]


class CallsAnything(Twin):
    def __init__(self, good: OutputParser, context: ParserContext) -> None:
        anything = replace(context, tools={**context.tools, "rm": {}})
        super().__init__(Plugins.load().parsers["hermes"].make(anything), anything)


class GoesOnAfterTheEnd(Twin):
    ended = False

    def feed(self, text: str, final: bool) -> Sequence[OutputPart]:
        if self.ended:
            return ()
        self.ended = final
        return super().feed(text, final)


class HoldsAfterTheEnd(Twin):
    """Forgets to flush when the last piece is empty."""

    def feed(self, text: str, final: bool) -> Sequence[OutputPart]:
        parts = super().feed(text, final)
        return parts if text else []


class ReadsAgain(Twin):
    """Looks at all of the text for every piece."""

    def __init__(self, good: OutputParser, context: ParserContext) -> None:
        super().__init__(good, context)
        self._text = ""

    def feed(self, text: str, final: bool) -> Sequence[OutputPart]:
        self._text += text
        for _ in range(3):
            self._text.count("<tool_call")
        return super().feed(text, final)


rules = OutputParserConformance
BROKEN: list[tuple[type[Twin], Callable[..., None]]] = [
    (LooksAtEachPieceAlone, rules.test_two_cuts_anywhere_make_no_difference),
    (LooksAtEachPieceAlone, rules.test_single_characters_make_no_difference),
    (LooksAtEachPieceAlone, rules.test_damaged_texts_in_any_pieces_give_the_same),
    (DropsWhatIsNoCall, rules.test_no_word_is_lost_wherever_the_text_ends),
    (SaysItTwice, rules.test_no_word_is_lost_wherever_the_text_ends),
    (DropsWhatIsNoCall, rules.test_no_word_of_a_damaged_text_is_lost),
    (TrimsText, rules.test_plain_text_comes_out_as_it_is),
    (HoldsEverything, rules.test_plain_text_is_not_held),
    (GivesEmptyParts, rules.test_parts_are_whole),
    (UsesOneId, rules.test_parts_are_whole),
    (CallsAnything, rules.test_parts_are_whole),
    (GoesOnAfterTheEnd, rules.test_final_is_the_end),
    (HoldsAfterTheEnd, rules.test_final_is_the_end),
    (ReadsAgain, rules.test_work_is_linear),
]


def subject(spec: OutputParserSpec) -> ParserSubject:
    return ParserSubject(spec, TEXTS, markup={"tool_call", "name", "arguments"}, tools={"now": {}})


def spec_of(twin: type[Twin]) -> OutputParserSpec:
    good = Plugins.load().parsers["hermes"]
    # Without its marks fewer texts are timed.
    return replace(good, make=lambda context: twin(good.make(context), context), shows=(), triggers=())


@pytest.mark.parametrize(("twin", "rule"), BROKEN, ids=[f"{rule.__name__}-{twin.__name__}" for twin, rule in BROKEN])
def test_a_broken_parser_is_caught(twin: type[Twin], rule: Callable[..., None]) -> None:
    rule(rules(), subject(spec_of(Twin)))  # the good parser passes
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        rule(rules(), subject(spec_of(twin)))


def test_a_parser_that_keeps_state_between_choices_is_caught() -> None:
    good = Plugins.load().parsers["hermes"]
    shared: list[str] = []

    class Shares(Twin):
        """Keeps the text in one place for all."""

        def feed(self, text: str, final: bool) -> Sequence[OutputPart]:
            shared.append(text)
            if not final:
                return ()
            text = "".join(shared)
            shared.clear()
            return super().feed(text, True)

    spec = replace(good, make=lambda context: Shares(good.make(context), context))
    with pytest.raises(AssertionError):
        rules().test_choices_do_not_share_state(subject(spec))
    rules().test_choices_do_not_share_state(subject(good))


def test_a_call_format_of_another_is_caught() -> None:
    good = Plugins.load().parsers["hermes"]
    wrong = CallFormat(open='{"name": "', middle='", "arguments": ', close="}")
    rules().test_its_call_format_is_its_own(subject(good))
    with pytest.raises(AssertionError):
        rules().test_its_call_format_is_its_own(subject(replace(good, call_format=wrong)))


def test_every_rule_has_a_parser_that_breaks_it() -> None:
    alone: set[Any] = {rules.test_choices_do_not_share_state, rules.test_its_call_format_is_its_own}
    found = {rule for _, rule in BROKEN} | alone
    assert found == {rule for name, rule in vars(rules).items() if name.startswith("test_")}
