"""How every benchmark ends: a table for people, and as its last line one JSON list for machines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

__all__ = ["Figure", "publish"]


class Figure(Struct, frozen=True):
    """One measured number. `goal` None: reported, no goal set. A peer that was not there has value None."""

    id: str
    value: float | None
    unit: str
    goal: float | None = None
    better: Literal["lower", "higher"] = "lower"
    what: str = ""

    @property
    def ok(self) -> bool | None:
        """None when there is nothing to judge."""
        if self.value is None or self.goal is None:
            return None
        return self.value <= self.goal if self.better == "lower" else self.value >= self.goal


def publish(title: str, figures: Sequence[Figure]) -> None:
    """Prints the table and the JSON line."""
    width = max(len(figure.id) for figure in figures)
    print(f"\n{title}")
    for figure in figures:
        value = "absent" if figure.value is None else f"{figure.value:,.4g} {figure.unit}"
        sign = "<=" if figure.better == "lower" else ">="
        goal = "" if figure.goal is None else f"goal {sign} {figure.goal:,.4g}"
        verdict = {True: "ok", False: "MISSED", None: ""}[figure.ok]
        print(f"  {figure.id:<{width}}  {value:>16}  {goal:<16} {verdict:<7} {figure.what}".rstrip())
    rows = [{"id": f.id, "value": f.value, "unit": f.unit, "goal": f.goal, "ok": f.ok} for f in figures]
    print(json.dumps(rows))
