"""Diagrams of states, drawn from the tables of the code.

Only places are written down here; boxes, arrows and their words come from the
table. A state without a place is an error of the build, and so is a place that
no state needs.
"""

from __future__ import annotations

import html
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

BOX_WIDTH: Final = 138
BOX_HEIGHT: Final = 40
LINE: Final = 15
"""Height of a line of words."""
LETTER: Final = 6.9
"""Width of a letter of them, at most, in most fonts."""

STYLE: Final = """
.states { font: 13px var(--font-stack, sans-serif); max-width: 100%; height: auto; }
.states rect { fill: var(--color-background-secondary, #f8f9fb); stroke: var(--color-foreground-muted, #6b6f76); }
.states rect.first { stroke-width: 2.5; }
.states rect.last { stroke-dasharray: 5 3; }
.states rect.frame { fill: none; stroke: var(--color-background-border, #c5c8cd); stroke-dasharray: 2 4; }
.states text { fill: var(--color-foreground-primary, #111); text-anchor: middle; }
.states text.state { font-weight: 600; }
.states text.frame { fill: var(--color-foreground-muted, #6b6f76); font-style: italic; text-anchor: start; }
.states text.word { font-size: 11.5px; }
.states rect.behind { fill: var(--color-background-primary, #fff); stroke: none; }
.states path { fill: none; stroke: var(--color-foreground-secondary, #5a5c63); stroke-width: 1.3; }
.states .head { fill: var(--color-foreground-secondary, #5a5c63); stroke: none; }
.states .doubt path { stroke: #c2570c; }
.states .doubt .head, .states .doubt text.word { fill: #c2570c; }
"""


@dataclass(frozen=True)
class Edge:
    """An arrow.

    Attributes:
        start: A state, or a frame.
        end: A state.
        words: What is written on it, a line each.
        is_doubtful: Drawn in another colour.
    """

    start: str
    end: str
    words: tuple[str, ...]
    is_doubtful: bool = False


@dataclass(frozen=True)
class Bend:
    """How an arrow runs where a straight line would not do.

    Attributes:
        by: How far its middle is moved to the left of its direction; negative to the right.
        words_at: Where its words stand, 0 at its start and 1 at its end.
        shift: Moves its words.
    """

    by: float = 0.0
    words_at: float = 0.5
    shift: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class Frame:
    """A frame around states that have something in common; arrows may start at it.

    Attributes:
        box: Left, top, width, height.
        title: What they have in common.
        title_at: Where that stands, from the left.
    """

    box: tuple[float, float, float, float]
    title: str
    title_at: tuple[float, float]


@dataclass(frozen=True)
class Layout:
    """Where things stand.

    Attributes:
        size: Width and height of the whole.
        places: The centre of each state.
        first: States that stand at the beginning.
        last: Final ones.
        frames: Frames by name.
        bends: Arrows that are not straight, by start and end.
    """

    size: tuple[int, int]
    places: Mapping[str, tuple[float, float]]
    first: frozenset[str]
    last: frozenset[str]
    frames: Mapping[str, Frame] = field(default_factory=dict)
    bends: Mapping[tuple[str, str], Bend] = field(default_factory=dict)


def draw(title: str, layout: Layout, states: Iterable[str], edges: Iterable[Edge]) -> str:
    """Return the diagram as SVG.

    Raises:
        LookupError: A state has no place, or a place no state, or a bend no arrow.
    """
    drawn = list(edges)
    if set(states) != set(layout.places):
        raise LookupError(f"states without a place, or places without a state: {set(states) ^ set(layout.places)}")
    if unused := set(layout.bends) - {(edge.start, edge.end) for edge in drawn}:
        raise LookupError(f"bends of arrows that are not there: {unused}")
    width, height = layout.size
    parts = [
        f'<svg class="states" role="img" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f"<title>{html.escape(title)}</title><style>{STYLE}</style>",
    ]
    for frame in layout.frames.values():
        left, top, wide, high = frame.box
        parts.append(f'<rect class="frame" x="{left}" y="{top}" width="{wide}" height="{high}" rx="10"/>')
        parts.append(_text("frame", *frame.title_at, (frame.title,)))
    lines, words = [], []
    for edge in drawn:
        line, word = _arrow(edge, layout)
        kind = "doubt" if edge.is_doubtful else "sure"
        lines.append(f'<g class="{kind}">{line}</g>')
        words.append(f'<g class="{kind}">{word}</g>')
    parts += lines
    for name, (x, y) in layout.places.items():
        kind = "first" if name in layout.first else "last" if name in layout.last else "state"
        left, top = x - BOX_WIDTH / 2, y - BOX_HEIGHT / 2
        parts.append(f'<rect class="{kind}" x="{left}" y="{top}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="8"/>')
        parts.append(_text("state", x, y + 4.5, (name,)))
    # Words last: no line may run through them.
    return "".join([*parts, *words, "</svg>"])


def _arrow(edge: Edge, layout: Layout) -> tuple[str, str]:
    start, end = _box(edge.start, layout), _box(edge.end, layout)
    bend = layout.bends.get((edge.start, edge.end), Bend())
    (x0, y0), (x1, y1) = (start[0], start[1]), (end[0], end[1])
    if edge.start in layout.frames:
        # Straight out of the frame.
        x0 = x1 if abs(x1 - x0) < start[2] else x0
        y0 = y1 if abs(y1 - y0) < start[3] else y0
    length = math.hypot(x1 - x0, y1 - y0) or 1.0
    left_x, left_y = (y1 - y0) / length, -(x1 - x0) / length
    control = ((x0 + x1) / 2 + 2 * bend.by * left_x, (y0 + y1) / 2 + 2 * bend.by * left_y)
    if bend.by:
        x0, y0 = _edge_of((x0, y0), start[2:], start[:2], control)
        x1, y1 = _edge_of((x1, y1), end[2:], end[:2], control)
    else:
        (x0, y0), (x1, y1) = (
            _edge_of((x0, y0), start[2:], start[:2], (x1, y1)),
            _edge_of((x1, y1), end[2:], end[:2], (x0, y0)),
        )
        control = (x0 + x1) / 2, (y0 + y1) / 2
    angle = math.atan2(y1 - control[1], x1 - control[0])
    tip = [(x1 - 9 * math.cos(angle + turn), y1 - 9 * math.sin(angle + turn)) for turn in (-0.42, 0.42)]
    head = " ".join(f"{x:.1f},{y:.1f}" for x, y in ((x1, y1), *tip))
    curve = f"M{x0:.1f},{y0:.1f} Q{control[0]:.1f},{control[1]:.1f} {x1:.1f},{y1:.1f}"
    at = bend.words_at
    x = (1 - at) ** 2 * x0 + 2 * at * (1 - at) * control[0] + at**2 * x1 + bend.shift[0]
    y = (1 - at) ** 2 * y0 + 2 * at * (1 - at) * control[1] + at**2 * y1 + bend.shift[1]
    y += 4 - LINE * (len(edge.words) - 1) / 2
    return f'<path d="{curve}"/><polygon class="head" points="{head}"/>', _words(x, y, edge.words)


def _words(x: float, y: float, lines: tuple[str, ...]) -> str:
    """Return words with a ground behind them, so that the arrow does not run through."""
    ground = "".join(
        f'<rect class="behind" x="{x - width / 2:.1f}" y="{y - 11 + LINE * number:.1f}"'
        f' width="{width:.1f}" height="{LINE}"/>'
        for number, width in enumerate(LETTER * len(line) + 4 for line in lines)
    )
    return ground + _text("word", x, y, lines)


def _box(name: str, layout: Layout) -> tuple[float, float, float, float]:
    """Return centre, half width and half height."""
    if name in layout.frames:
        left, top, wide, high = layout.frames[name].box
        return left + wide / 2, top + high / 2, wide / 2, high / 2
    return *layout.places[name], BOX_WIDTH / 2, BOX_HEIGHT / 2


def _edge_of(
    point: tuple[float, float], half: tuple[float, float], centre: tuple[float, float], towards: tuple[float, float]
) -> tuple[float, float]:
    """Return where the line from a point inside a box to another point leaves the box."""
    dx, dy = towards[0] - point[0], towards[1] - point[1]
    scales = [1.0]
    if dx:
        scales.append((centre[0] + math.copysign(half[0], dx) - point[0]) / dx)
    if dy:
        scales.append((centre[1] + math.copysign(half[1], dy) - point[1]) / dy)
    scale = min(scales)
    return point[0] + dx * scale, point[1] + dy * scale


def _text(kind: str, x: float, y: float, lines: tuple[str, ...]) -> str:
    spans = "".join(
        f'<tspan x="{x:.1f}" y="{y + LINE * number:.1f}">{html.escape(line)}</tspan>'
        for number, line in enumerate(lines)
    )
    return f'<text class="{kind}">{spans}</text>'
