"""Output parsers register through the hook that strangers use, and a bad record costs its plugin alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tickertape.core.output_parser import fold_parts
from tickertape.plugins import ModelSigns, ParserContext
from tickertape.plugins.manager import PluginRecord, Plugins
from tickertape.plugins.output_parsers import choose_parsers

HEAD = """
from tickertape.plugins import ContentPart, OutputParserSpec, ReasoningPart, hookimpl

API = (1, 0)


class Shouts:
    def __init__(self, context):
        self.context = context

    def feed(self, text, final):
        kind = ReasoningPart if text.isupper() else ContentPart
        return [kind(text)] if text else []


def spec(**changes):
    return OutputParserSpec(**{"name": "shouts", "kind": "reasoning", "make": Shouts, "detects": lambda s: 9} | changes)


@hookimpl
def register_output_parsers(register):
"""


def load(directory: Path, body: str) -> tuple[Plugins, PluginRecord]:
    (directory / "stranger.py").write_text(f"{HEAD}    {body}\n")
    plugins = Plugins.load(directory=directory)
    [record] = [record for record in plugins.records if record.name == "stranger"]
    return plugins, record


def test_a_strangers_parser_is_chosen_and_read_with(tmp_path: Path) -> None:
    plugins, record = load(tmp_path, "register(spec())")
    assert (record.state, record.hooks) == ("loaded", ("register_output_parsers",))
    parsers = choose_parsers(plugins.parsers.values(), ModelSigns(template="</think>"))
    parser = parsers.open(ParserContext())
    output = fold_parts([*parser.feed("HM", False), *parser.feed("yes", True)])
    assert (output.reasoning, output.content) == ("HM", "yes")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("register('shouts')", "register_output_parsers takes OutputParserSpec records, not str"),
        ("register(spec(kind='images'))", "output parser 'shouts': kind 'images' is none of"),
        ("register(spec(name='hermes'))", "output parser 'hermes' is already registered by plugin 'hermes'"),
        ("register(spec(name='auto'))", "output parser 'auto': the name has a meaning of its own"),
        ("[register(spec()) for _ in '12']", "output parser 'shouts' is already registered by plugin 'stranger'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)  # fmt: skip
def test_a_bad_record_costs_its_plugin_alone(tmp_path: Path, body: str, message: str) -> None:
    plugins, record = load(tmp_path, body)
    assert (record.state, record.stage) == ("failed", "register_output_parsers")
    assert record.error.startswith(message)
    assert "shouts" not in plugins.parsers
    assert plugins.parsers["hermes"].kind == "tools"
