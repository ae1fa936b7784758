"""Charts of measured figures: bars as SVG, drawn from the very tables and files that the pages show.

.. speed-chart::   messages a second beside other clients, from ``performance/figures.json``
.. fault-chart::   what the client adds to each fault, from the table of the fail-over page
.. spark-chart::   rows a second in Spark by the size of bodies, from ``spark-speed/figures.json``

The colours are the theme's, so that a chart is readable on light and dark pages.
"""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sphinx.application import Sphinx

PAGES: Final = Path(__file__).parents[1] / "explanation"
WIDTH: Final = 720
LETTER: Final = 6.9
"""Width of a letter, about."""
BAR: Final = 16
GAP: Final = 5
HEAD: Final = 26

SPEED: Final = {
    "peers/drain100": "Consume, 100 B",
    "peers/drain1k": "Consume, 1 KiB",
    "peers/drain16k": "Consume, 16 KiB",
    "peers/publish": "Publish, 100 in flight",
    "peers/batch": "Publish batches of 100",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar.

    Attributes:
        name: At its left.
        value: Its length.
        text: At its right.
        is_ours: Whether it stands out.
    """

    name: str
    value: float
    text: str
    is_ours: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Bars of one scale.

    Attributes:
        title: Above them.
        bars: From top to bottom.
    """

    title: str
    bars: Sequence[Bar]


def draw(about: str, groups: Sequence[Group]) -> str:
    """Return the groups below each other as one SVG.

    Args:
        about: For those who cannot see it.
        groups: The groups, at least one.
    """
    every = [bar for group in groups for bar in group.bars]
    left = 12 + LETTER * max(len(bar.name) for bar in every)
    space = WIDTH - left - 12 - LETTER * max(len(bar.text) for bar in every)
    parts, top = [], 0
    for group in groups:
        if group.title:
            parts.append(f'<text class="head" x="0" y="{top + 16}">{escape(group.title)}</text>')
            top += HEAD
        full = max(bar.value for bar in group.bars)
        for bar in group.bars:
            width = max(1.5, bar.value / full * space)
            middle, kind = top + BAR - 4, "ours" if bar.is_ours else "other"
            parts.append(f'<text x="{left - 8:.1f}" y="{middle}" text-anchor="end">{escape(bar.name)}</text>')
            parts.append(
                f'<rect class="{kind}" x="{left:.1f}" y="{top}" width="{width:.1f}" height="{BAR}" rx="2"/>'
                f'<text x="{left + width + 6:.1f}" y="{middle}">{escape(bar.text)}</text>'
            )
            top += BAR + GAP
        top += 2 * GAP
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {top}" role="img" aria-label="{escape(about, {chr(34): "&quot;"})}">'
        f"{''.join(parts)}</svg>"
    )


def speed_chart() -> str:
    """Draw the rates of all clients, the best of each with several versions of Python."""
    kept = json.loads((PAGES / "performance" / "figures.json").read_text("utf-8"))
    groups = []
    for key, title in SPEED.items():
        rates: dict[str, float] = {}
        for client, results in kept[key]["figures"].items():
            name = re.sub(r" (3\.\d+|uvloop)", "", client)
            rates[name] = max(rates.get(name, 0.0), statistics.median(one["rate"] for one in results))
        ordered = sorted(rates.items(), key=lambda one: -one[1])
        groups.append(Group(title, [Bar(name, rate, f"{rate:,.0f}/s", name == "nsq_ha") for name, rate in ordered]))
    return draw("Messages a second of nsq_ha beside other clients", groups)


def fault_rows() -> list[tuple[str, str, float, float]]:
    """Return name, target, and what is added to publishing and consuming, of the ordered topic's rows with a target."""
    found = []
    for line in (PAGES / "fail-over" / "table.md.inc").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        limit = re.match(r"<= ([\d.]+) / <= ([\d.]+) s", cells[1]) if len(cells) > 3 else None
        added = re.match(r"([\d.]+) / ([\d.]+)$", cells[2]) if limit else None
        if limit and added:
            found.append((cells[0], f"{limit[1]} / {limit[2]}", float(added[1]), float(added[2])))
    return found


def fault_chart() -> str:
    """Draw what the client adds to each fault."""
    bars = []
    for name, target, publishing, consuming in fault_rows():
        text = f"{publishing:g} / {consuming:g} s, target {target}"
        bars.append(Bar(name, max(publishing, consuming), text, is_ours=True))
    return draw("Seconds that the client adds to the cluster's own outage, for each fault", [Group("", bars)])


def spark_chart(kept: Path = PAGES / "spark-speed" / "figures.json") -> str:
    """Draw the rates of reads in Spark by the size of bodies; nothing before they were measured."""
    found = json.loads(kept.read_text("utf-8")) if kept.exists() else {}
    groups = []
    sizes = found.get("spark/sizes", {"figures": {"plain": {}}})["figures"]["plain"]
    for size, of in sorted(sizes.items(), key=lambda one: int(one[0])):
        rates = sorted(((statistics.median(each), label) for label, each in of["rates"].items()), reverse=True)
        bars = [Bar(label, rate, f"{rate:,.0f}/s", label.startswith("nsq")) for rate, label in rates]
        groups.append(Group(f"Bodies of {int(size):,} B", bars))
    return draw("Rows a second of reads in Spark, by the size of bodies", groups) if groups else ""


class _Chart(SphinxDirective):
    make: Callable[[], str]

    def run(self) -> list[nodes.Node]:
        """Insert the SVG into HTML pages; other formats have the table alone."""
        drawn = type(self).make()
        # On a phone it scrolls: made narrower, its letters could not be read.
        return [nodes.raw("", f'<div class="scroll">{drawn}</div>', format="html")] if drawn else []


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    charts = {
        "speed-chart": speed_chart,
        "fault-chart": fault_chart,
        "spark-chart": spark_chart,
    }
    for name, make in charts.items():
        app.add_directive(name, type(name, (_Chart,), {"make": staticmethod(make)}))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
