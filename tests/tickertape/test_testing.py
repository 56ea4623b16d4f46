"""The public names of the kit are there, and cost nothing before they are used."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tickertape import testing


@pytest.mark.parametrize("name", testing.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(testing, name).__name__ == name


def test_another_name_is_not() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Missing'"):
        _ = testing.Missing


def test_nothing_is_imported_before_it_is_used() -> None:
    code = "import sys, tickertape.testing; print(*{'numpy', 'starlette', 'torch', 'msgspec'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == ""
