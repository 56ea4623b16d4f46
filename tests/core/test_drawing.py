"""Edges of a draw that no seed is known to reach."""

from __future__ import annotations

import math
from typing import Any

import array_api_compat.torch as torch
import numpy as np
import pytest

from tickertape.core.drawing import draw

NAMESPACES = {"numpy": np, "torch": torch}


@pytest.fixture(params=list(NAMESPACES))
def xp(request: pytest.FixtureRequest) -> Any:
    return NAMESPACES[request.param]


LEAST, GREATEST = 2.0**-53, 1.0 - 2.0**-53


def drawn_at(xp: Any, x: Any, value: float, top_p: float = 1.0) -> int:
    """The id that `draw` gives for float64 logits with one chosen random number."""
    column = {"uniform": value, "temperature": 1.0, "top_k": float(len(x)), "top_p": top_p}
    columns: dict[str, Any] = {name: xp.asarray(np.array([[number]])) for name, number in column.items()}
    ranked = None if top_p == 1.0 else xp.asarray(np.array([0]))
    best = xp.asarray(np.array([[max(x)]]))
    return int(draw(xp, xp.asarray(np.array([x])), best, log_min_p=None, ranked=ranked, **columns)[0])


@pytest.mark.parametrize("first", [1, 3, 256, 300, 511])
def test_the_ends_of_the_unit_interval_hit_ids_with_weight(xp: Any, first: int) -> None:
    x = [-math.inf] * first + [0.0, -1.0] + [-math.inf] * (700 - first)
    assert drawn_at(xp, x, LEAST) == first
    assert drawn_at(xp, x, GREATEST) == first + 1


def test_edges_between_ids_belong_to_the_next(xp: Any) -> None:
    quarters = [0.0] * 4
    assert [drawn_at(xp, quarters, value) for value in (0.25, 0.5, 0.75)] == [1, 2, 3]
    assert drawn_at(xp, [0.0] * 1024, 0.25) == 256  # where one block ends and the next begins


def test_top_p_is_reached_by_an_equal_mass(xp: Any) -> None:
    halves = [math.log(0.5), 0.0, math.log(0.5)]
    assert [drawn_at(xp, halves, value, top_p=0.5) for value in (LEAST, GREATEST)] == [1, 1]
    assert [drawn_at(xp, halves, value, top_p=0.51) for value in (LEAST, GREATEST)] == [0, 2]
