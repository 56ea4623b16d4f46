"""When a worker is started again."""

from __future__ import annotations

from tickertape.backoff import Backoff


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_delay_doubles_up_to_its_cap() -> None:
    clock = Clock()
    backoff = Backoff(clock)
    delays = []
    for _ in range(12):
        clock.now += 50.0  # never six within two minutes
        delays.append(backoff.died(1.0))
    assert delays[:5] == [0.1, 0.2, 0.4, 0.8, 1.6]
    assert delays[-3:] == [30.0, 30.0, 30.0]


def test_a_long_life_starts_it_over() -> None:
    clock = Clock()
    backoff = Backoff(clock)
    for _ in range(3):
        backoff.died(0.0)
    clock.now += 60.0
    assert backoff.died(60.0) == 0.1
    assert backoff.died(59.9) == 0.2


def test_the_sixth_death_within_two_minutes_is_one_too_many() -> None:
    clock = Clock()
    backoff = Backoff(clock)
    for _ in range(5):
        clock.now += 24.0
        assert backoff.died(0.0) is not None
    clock.now += 24.0
    assert backoff.died(0.0) is None


def test_deaths_further_apart_go_on_for_ever() -> None:
    clock = Clock()
    backoff = Backoff(clock)
    for _ in range(40):
        clock.now += 24.1
        assert backoff.died(0.0) is not None
