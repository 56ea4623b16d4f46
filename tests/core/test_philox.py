"""The random bits are Random123's, on every namespace."""

from __future__ import annotations

from typing import Any

import array_api_compat.torch as torch
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickertape.core.philox import philox4x32, uniform

KNOWN_ANSWERS = [  # counter, key, output: philox4x32x10 of Random123's kat_vectors
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]

word = st.integers(0, 2**32 - 1)


def words(xp: Any, rows: list[tuple[int, ...]]) -> tuple[Any, ...]:
    return tuple(xp.asarray(np.array(column, dtype=np.int64)) for column in zip(*rows, strict=True))


@pytest.mark.parametrize("xp", [np, torch], ids=["numpy", "torch"])
def test_known_answers_in_one_call(xp: Any) -> None:
    counters, keys, expected = (list(column) for column in zip(*KNOWN_ANSWERS, strict=True))
    out = philox4x32(xp, words(xp, counters), words(xp, keys))
    assert list(zip(*(lane.tolist() for lane in out), strict=True)) == expected


@given(st.lists(st.tuples(word, word, word, word, word), min_size=1, max_size=5))
def test_namespaces_agree_and_stay_strictly_inside_0_1(lanes: list[tuple[int, ...]]) -> None:
    names = ("seed_low", "seed_high", "position", "choice", "lane")
    by_numpy, by_torch = (uniform(xp, **dict(zip(names, words(xp, lanes), strict=True))).tolist() for xp in (np, torch))
    assert by_numpy == by_torch
    assert all(0.0 < value < 1.0 for value in by_numpy)


def test_every_input_changes_the_number() -> None:
    base = {"seed_low": 1, "seed_high": 2, "position": 3, "choice": 4, "lane": 5}
    variants = [base] + [base | {name: value + 1} for name, value in base.items()]
    drawn = {
        float(uniform(np, **{name: np.array([value]) for name, value in variant.items()})[0]) for variant in variants
    }
    assert len(drawn) == len(variants)


def test_uniforms_are_uniform() -> None:
    n = 64_000
    zeros = np.zeros(n, dtype=np.int64)
    drawn = uniform(np, seed_low=zeros + 7, seed_high=zeros, position=np.arange(n), choice=zeros, lane=zeros)
    counts = np.bincount((drawn * 64).astype(int), minlength=64)
    chi_square = float((((counts - n / 64) ** 2) / (n / 64)).sum())
    assert 30 < chi_square < 110  # 63 degrees of freedom: both ends beyond 1 in 1000


@pytest.mark.parametrize("extreme", [0, 2**32 - 1])
def test_extreme_words_stay_inside(extreme: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = np.zeros(1, dtype=np.int64)
    monkeypatch.setattr("tickertape.core.philox.philox4x32", lambda *_: (lane + extreme,) * 4)
    (value,) = uniform(np, seed_low=lane, seed_high=lane, position=lane, choice=lane, lane=lane).tolist()
    assert 0.0 < value < 1.0
