"""The page on the HTTP API names everything there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tickertape.api.error_table import OUTCOMES
from tickertape.api.metrics import NAMES
from tickertape.api.openai.refusals import CHAT_FIXED, COMPLETION_FIXED
from tickertape.api.openai.requests import ChatRequest, CompletionRequest, StreamOptions

PAGE = (Path(__file__).parents[2] / "docs" / "http-api.md").read_text(encoding="utf-8")
QUOTED = set(re.findall(r"`([^`]+)`", PAGE))


@pytest.mark.parametrize(
    "name",
    sorted({*ChatRequest.model_fields, *CompletionRequest.model_fields, *StreamOptions.model_fields, *NAMES}),
)
def test_every_field_and_metric_is_on_the_page(name: str) -> None:
    assert name in QUOTED


def test_refused_fields_are_listed_as_such() -> None:
    _, _, listed = PAGE.partition("Taken only with the values")
    listed = listed.partition("Headers:")[0]
    assert set(re.findall(r"`(\w+)`", listed)) - {"unsupported_value"} == {*CHAT_FIXED, *COMPLETION_FIXED}


def test_every_outcome_is_on_the_page() -> None:
    assert all(re.search(rf"\b{outcome}\b", PAGE) for outcome in OUTCOMES)


def test_no_metric_is_made_up() -> None:
    assert set(re.findall(r"tickertape_\w+", PAGE)) == set(NAMES)
