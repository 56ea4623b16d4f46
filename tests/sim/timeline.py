"""What happened over time in a run, as series and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from tests.sim.probes import Deployment
from tests.sim.traffic import TrafficLog

__all__ = ["Series", "Timeline", "draw"]

Point = tuple[float, float]

_WIDTH: Final = 720
_HEIGHT: Final = 200
_LEFT: Final = 64
_TOP: Final = 36
_BOTTOM: Final = 40
_COLOURS: Final = ("#1f6feb", "#d1242f", "#8250df", "#1a7f37")


class Series(Struct, frozen=True):
    """Steps: a value holds until the next point."""

    label: str
    points: tuple[Point, ...]


class Timeline(Struct, frozen=True):
    """One run, in seconds from its start: how many pods were ready, and what the origin had sent."""

    label: str
    end_s: float
    ready: tuple[Point, ...]
    origin_bytes: tuple[Point, ...]

    @classmethod
    def of(cls, label: str, deployment: Deployment, log: TrafficLog, end_s: float) -> Timeline:
        """`end_s` is of `time.monotonic`, like what is recorded."""
        start, count, ready = deployment.started_s, 0, [(0.0, 0.0)]
        for event in deployment.events:
            if event.what in ("ready", "unready"):
                count += 1 if event.what == "ready" else -1
                ready.append((event.at_s - start, float(count)))
        sent = [(at - start, float(total)) for at, total in log.bytes_over_time() if at <= end_s]
        return cls(label, end_s - start, tuple(ready), ((0.0, 0.0), *sent))


def draw(path: Path, panels: Sequence[tuple[str, Sequence[Series]]]) -> None:
    """Writes an SVG: panels below each other over one axis of seconds, each with its title and its series."""
    end_s = max(at for _, many in panels for series in many for at, _ in series.points)
    step = _HEIGHT + _TOP + _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH + _LEFT + 24} {step * len(panels)}" '
        'font-family="sans-serif" font-size="12" fill="#57606a">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    for number, (title, many) in enumerate(panels):
        parts += [f'<g transform="translate({_LEFT},{number * step + _TOP})">', *_panel(title, many, end_s), "</g>"]
    path.write_text("\n".join([*parts, "</svg>\n"]))


def _panel(title: str, many: Sequence[Series], end_s: float) -> list[str]:
    top = max(value for series in many for _, value in series.points) or 1.0
    parts = [f'<text y="-14" fill="#1f2328" font-weight="bold">{title}</text>']
    for tick in _ticks(top):
        y = _HEIGHT * (1 - tick / top)
        parts.append(f'<path d="M0 {y:.1f}H{_WIDTH}" stroke="#d8dee4"/>')
        parts.append(f'<text x="-8" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in _ticks(end_s):
        x = _WIDTH * tick / end_s
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT + 18}" text-anchor="middle">{tick:g} s</text>')
    for number, series in enumerate(many):
        colour = _COLOURS[number]
        parts.append(f'<path d="{_steps(series.points, end_s, top)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        label = f'<text x="{_WIDTH}" y="-14" dx="{-150 * (len(many) - 1 - number)}" text-anchor="end"'
        parts.append(f'{label} fill="{colour}">{series.label}</text>')
    return parts


def _steps(points: Sequence[Point], end_s: float, top: float) -> str:
    path: list[str] = []
    for at, value in points:
        x, y = _WIDTH * at / end_s, _HEIGHT * (1 - value / top)
        path.append(f"H{x:.1f}V{y:.1f}" if path else f"M{x:.1f} {y:.1f}")
    return "".join(path)


def _ticks(top: float) -> list[float]:
    """Four to nine round numbers from 0 up to `top`."""
    unit = 10.0 ** (len(f"{int(top)}") - 1) if top >= 1 else 0.1
    while top / unit < 4:
        unit /= 2
    return [unit * n for n in range(int(top / unit) + 1)]
