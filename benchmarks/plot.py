"""Small plots as SVG, with logarithmic axes: one panel for each line. No library is needed for that."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Sequence

_ACROSS: Final = 3
_WIDTH: Final = 300
_HEIGHT: Final = 200
_LEFT: Final = 52
_TOP: Final = 34
_BOTTOM: Final = 40
_TITLE: Final = 44
"""Letters of a title in one line."""


@dataclass(frozen=True, slots=True)
class Line:
    """One panel.

    Attributes:
        title: Above it.
        unit: Of what grows, below it.
        points: What grows, and the figure.
    """

    title: str
    unit: str
    points: Sequence[tuple[float, float]]


def draw(title: str, lines: Sequence[Line]) -> str:
    """Return an SVG with all panels, some side by side, in as many rows as that takes."""
    across = min(len(lines), _ACROSS)
    width, height = _WIDTH * across, _HEIGHT * math.ceil(len(lines) / across) + 24
    panels = "".join(
        f'<g transform="translate({number % across * _WIDTH},{number // across * _HEIGHT})">{_panel(line)}</g>'
        for number, line in enumerate(lines)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="10"><rect width="{width}" height="{height}" fill="#fff"/>'
        f'<text x="8" y="14" font-size="12">{escape(title)}</text>{panels}</svg>\n'
    )


def _panel(line: Line) -> str:
    xs = [x for x, _ in line.points]
    ys = [y for _, y in line.points]
    low, high = 10 ** math.floor(math.log10(min(ys))), 10 ** math.ceil(math.log10(max(ys) * 1.01))

    def place(x: float, y: float) -> tuple[float, float]:
        across = math.log(x / min(xs)) / math.log(max(xs) / min(xs))
        up = math.log(y / low) / math.log(high / low)
        inner, tall = _WIDTH - _LEFT - 20, _HEIGHT - _TOP - _BOTTOM
        return _LEFT + across * inner, 24 + _TOP + (1 - up) * tall

    # A long title takes a second line, above: it would leave the panel, and the last panel leaves the picture.
    *above, last = line.title.rsplit(", ", 1) if len(line.title) > _TITLE else [line.title]
    parts = [
        f'<text x="{_LEFT}" y="{18 + _TOP - 12 * number}" font-weight="bold">{escape(text)}</text>'
        for number, text in enumerate([last, *(f"{text}," for text in above)])
    ]
    decade = low
    while decade <= high:
        x, y = place(min(xs), decade)
        end, _ = place(max(xs), decade)
        parts.append(f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{end:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{x - 6:.1f}" y="{y + 3:.1f}" text-anchor="end">{decade:g}</text>')
        decade *= 10
    places = [place(x, y) for x, y in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts.append(f'<polyline points="{path}" fill="none" stroke="#36c" stroke-width="2"/>')
    foot = 24 + _HEIGHT - _BOTTOM + 14
    for (x, _), (across, up) in zip(line.points, places, strict=True):
        parts.append(f'<circle cx="{across:.1f}" cy="{up:.1f}" r="3" fill="#36c"/>')
        parts.append(f'<text x="{across:.1f}" y="{foot}" text-anchor="middle">{_short(x)}</text>')
    parts.append(f'<text x="{_WIDTH / 2:.1f}" y="{foot + 14}" text-anchor="middle">{escape(line.unit)}</text>')
    return "".join(parts)


def _short(number: float) -> str:
    for unit, word in ((1 << 20, "Mi"), (1 << 10, "Ki")):
        if number >= unit and number % unit == 0:
            return f"{number / unit:g}{word}"
    for unit, word in ((1_000_000, "M"), (1_000, "k")):
        if number >= unit:
            return f"{number / unit:g}{word}"
    return f"{number:g}"
