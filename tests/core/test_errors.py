"""What every error of the tree promises."""

from __future__ import annotations

import pytest

from tickertape.core.errors import OriginError, StartupError


@pytest.mark.parametrize("kind", [StartupError, OriginError])
def test_what_an_origin_names_its_files_cannot_break_the_one_line(kind: type[StartupError]) -> None:
    error = kind("größe: a\nb\r\x1b[31m\ud800 is 'no' model", code="X", retry_after_s=1.0)
    assert error.message == str(error) == "größe: a\\nb\\r\\x1b[31m\\ud800 is 'no' model"
    assert (error.code, error.retry_after_s) == ("X", 1.0)
