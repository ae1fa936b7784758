"""Pictures of a trace report as inline SVG: latency over time, and each partition's time line."""

from __future__ import annotations

import html
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_WIDTH: Final = 1000
_LEFT: Final = 110
_RIGHT: Final = 28
_PLOT: Final = _WIDTH - _LEFT - _RIGHT
_HEIGHT: Final = 240
_TOP: Final = 20
_BOTTOM: Final = 46
_ROW: Final = 34
_HEADING: Final = 20
_LONGEST_NAME: Final = 80
_MAX_ROWS: Final = 64
_BRIDGED: Final = 3  # buckets
_LINE: Final = 14
_MAX_LINES: Final = 5
_LETTER: Final = 6.2  # as wide as a letter of a name is on average
_STALL_NS: Final = 500_000_000


@dataclass(frozen=True, slots=True)
class Mark:
    """What is named above the pictures.

    Attributes:
        at_ns: When it happened.
        text: Its name.
        kind: ``leader`` or ``fault``.
    """

    at_ns: int
    text: str
    kind: str


def named_marks(report: Mapping[str, Any], marks: Collection[tuple[float, str]]) -> list[Mark]:
    """Return the changes of leaders and other marks, by time.

    Args:
        report: The report.
        marks: Times in Unix seconds, and short names.
    """
    headed = len({row["topic"] for row in report["leaders"]}) > 1
    known, found = set(), [Mark(int(at * 1e9), text, "fault") for at, text in marks]
    for row in report["leaders"]:
        place = (row["topic"], row["partition"])
        if place in known:
            subject = f"{row['topic']}-{row['partition']}" if headed else f"partition {row['partition']}"
            found.append(Mark(row["ts_ns"], f"{subject} \N{RIGHTWARDS ARROW} {row['node']}"[:_LONGEST_NAME], "leader"))
        known.add(place)
    return sorted(found, key=lambda mark: (mark.at_ns, mark.text))


def latency_picture(report: Mapping[str, Any], marks: Sequence[Mark] = ()) -> str:
    """Return the lines of the 50th and 99th percentile from publish to delivery, on a logarithmic scale."""
    series: Sequence[Mapping[str, Any]] = report["series"]
    if not series:
        return '<p class="soft">No message with both a publish and a delivery.</p>'
    least = max(min(row["p50_ms"] for row in series), 0.01)
    low = math.floor(math.log10(least))
    high = max(math.ceil(math.log10(max(*(row["p99_ms"] for row in series), 0.02))), low + 1)
    plot = _HEIGHT - _TOP - _BOTTOM

    def y(milliseconds: float) -> float:
        return _TOP + plot * (1 - (math.log10(max(milliseconds, 10.0**low)) - low) / (high - low))

    lines = [
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(10.0**power):.1f}" y2="{y(10.0**power):.1f}" '
        f'stroke="var(--line)"/><text x="{_LEFT - 8}" y="{y(10.0**power) + 4:.1f}" text-anchor="end">'
        f"{_milliseconds(10.0**power)}</text>"
        for power in range(low, high + 1)
    ]
    for name, label in (("p50_ms", "half of the messages are faster"), ("p99_ms", "99 of 100 are faster")):
        color = f"var(--{name.removesuffix('_ms')})"
        for run in _runs(series):
            points = " ".join(f"{_x(report, row['bucket'] + 0.5):.1f},{y(row[name]):.1f}" for row in run)
            lines.append(f'<polyline class="{name}" points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        lines += [
            f'<circle cx="{_x(report, row["bucket"] + 0.5):.1f}" cy="{y(row[name]):.1f}" r="2.5" fill="{color}">'
            f"<title>{_seconds(report, row['bucket'])} s: {row[name]:,.2f} ms, {row['messages']:,} messages</title>"
            "</circle>"
            for row in series
        ]
        at = _LEFT + (0 if name == "p50_ms" else 220)
        lines.append(
            f'<rect x="{at}" y="5" width="12" height="4" fill="{color}"/><text x="{at + 18}" y="12">{label}</text>'
        )
    lines.append(
        f'<text x="14" y="{_TOP + plot / 2:.1f}" text-anchor="middle" '
        f'transform="rotate(-90 14 {_TOP + plot / 2:.1f})">publish to delivery</text>'
    )
    axis = _axis(report, _HEIGHT, "time of the publish")
    named, above = _named(report, marks, _HEIGHT - _BOTTOM)
    return _svg("latency", "Latency from publish to delivery over time", _HEIGHT, named + lines + axis, above)


def _runs(series: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Split a series where nothing was published, so that no line crosses the gap."""
    runs: list[list[Mapping[str, Any]]] = []
    for row in series:
        if runs and row["bucket"] - runs[-1][-1]["bucket"] <= _BRIDGED:
            runs[-1].append(row)
        else:
            runs.append([row])
    return runs


def timeline_picture(report: Mapping[str, Any], marks: Sequence[Mark] = ()) -> str:
    """Return one row per partition: bars for deliveries, marks for changes of leader and anomalies."""
    places = sorted({(row["topic"], row["partition"]) for row in report["timeline"] + report["leaders"]})
    if not places:
        return '<p class="soft">Nothing was delivered.</p>'
    shown = places[:_MAX_ROWS]
    headed = len({topic for topic, _ in places}) > 1
    most = max((row["messages"] for row in report["timeline"]), default=1)
    parts: list[str] = []
    height, heading = _TOP, ""
    for place in shown:
        if headed and place[0] != heading:
            height, heading = height + _HEADING, place[0]
            parts.append(f'<text class="topic" x="0" y="{height - 6}">{_name(heading)}</text>')
        height += _ROW
        base = height - 6
        parts.append(
            f'<g class="partition"><text x="{_LEFT - 8}" y="{base - 6}" text-anchor="end">'
            f"partition {_text(place[1])}</text>"
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{base}" y2="{base}" stroke="var(--line)"/>'
        )
        parts += _bars(report, place, base, most)
        parts += _leader_marks(report, place, base)
        parts += _anomaly_marks(report, place, base)
        parts.append("</g>")
    height += _BOTTOM
    axis = _axis(report, height, "time of the delivery")
    named, above = _named(report, marks, height - _BOTTOM)
    picture = _svg("timeline", "Messages delivered by partition over time", height, named + parts + axis, above)
    more = f", {len(places) - len(shown)} more partitions are not shown" if len(places) > len(shown) else ""
    legend = (
        '<p class="soft">Bars: messages delivered, the highest is '
        f"{most:,} in {report['bucket_ns'] / 1e9:,.2f} s. "
        '<span style="color:var(--lead)">▼ leader</span>, '
        f'<span style="color:var(--bad)">● anomaly</span>; rest the pointer on one to read it{more}.</p>'
    )
    return picture + legend


def _name(topic: str) -> str:
    return _text(topic if len(topic) <= _LONGEST_NAME else f"{topic[:_LONGEST_NAME]}…")


def _text(value: object) -> str:
    """Return a value of the report as escaped HTML: other programs write all of them, even numbers."""
    return html.escape(str(value))


def _bars(report: Mapping[str, Any], place: tuple[str, int], base: float, most: int) -> list[str]:
    wide = max(_x(report, 1) - _x(report, 0) - 0.5, 0.5)
    bars = []
    for row in report["timeline"]:
        if (row["topic"], row["partition"]) == place:
            tall = max(1.0, (_ROW - 12) * row["messages"] / most)
            bars.append(
                f'<rect x="{_x(report, row["bucket"]):.1f}" y="{base - tall:.1f}" width="{wide:.1f}" '
                f'height="{tall:.1f}" fill="var(--bar)"><title>{_seconds(report, row["bucket"])} s: '
                f"{row['messages']:,} messages</title></rect>"
            )
    return bars


def _leader_marks(report: Mapping[str, Any], place: tuple[str, int], base: float) -> list[str]:
    marks = []
    found = [row for row in report["leaders"] if (row["topic"], row["partition"]) == place]
    for number, row in enumerate(found):
        since = row["ts_ns"] - report["begin_ns"]
        x, top = _x(report, since / report["bucket_ns"]), base - _ROW + 8
        kind, change, line = "leader", "leads at first", ""
        if number:
            kind, change = "leader change", f"leads from {since / 1e9:,.2f} s on"
            line = f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{base}" stroke="var(--lead)" stroke-width="1.5"/>'
        marks.append(
            f'<g class="{kind}">{line}<path d="M{x - 5:.1f} {top} h10 l-5 7 z" fill="var(--lead)">'
            f"<title>{_text(row['node'])} {change}</title></path></g>"
        )
    return marks


def _anomaly_marks(report: Mapping[str, Any], place: tuple[str, int], base: float) -> list[str]:
    return [
        f'<circle class="anomaly" cx="{_x(report, (row["ts_ns"] - report["begin_ns"]) / report["bucket_ns"]):.1f}" '
        f'cy="{base}" r="4" fill="var(--bad)"><title>{_text(row["kind"])}: message {_text(row["message_id"])}, '
        f"{_text(row['detail'])}</title></circle>"
        for row in report["first"]
        if (row["topic"], row["partition"]) == place and row["ts_ns"] is not None and report["begin_ns"] is not None
    ]


def _axis(report: Mapping[str, Any], height: float, name: str) -> list[str]:
    span = _span_s(report)
    step = _step(span)
    count = int(span / step + 1e-9)
    ticks = [
        f'<text x="{_LEFT + _PLOT * number * step / span:.1f}" y="{height - 26}" text-anchor="middle">'
        f"{number * step:,g} s</text>"
        for number in range(count + 1)
    ]
    return [*ticks, f'<text x="{_LEFT + _PLOT / 2:.1f}" y="{height - 8}" text-anchor="middle">{name}</text>']


def _step(span: float) -> float:
    """Return a round step that divides ``span`` into at most ten."""
    power: float = 10.0 ** math.floor(math.log10(span / 10))
    return next(power * times for times in (1, 2, 5, 10) if span / (power * times) <= 10)


def _span_s(report: Mapping[str, Any]) -> float:
    span: int = max(report["end_ns"] - report["begin_ns"], report["bucket_ns"])
    return span / 1e9


def _x(report: Mapping[str, Any], bucket: float) -> float:
    share: float = bucket * report["bucket_ns"] / 1e9 / _span_s(report)
    return _LEFT + _PLOT * min(max(share, 0.0), 1.0)


def _seconds(report: Mapping[str, Any], bucket: float) -> str:
    return f"{bucket * report['bucket_ns'] / 1e9:,.2f}"


def _milliseconds(value: float) -> str:
    return f"{value / 1000:g} s" if value >= 1000 else f"{value:g} ms"


def _named(report: Mapping[str, Any], marks: Sequence[Mark], bottom: float) -> tuple[list[str], float]:
    """Return the longest stall as a band, and each mark as a line with its name above, and the room for the names."""
    parts = []
    stall = report["stall"]
    if stall is not None and stall["end_ns"] - stall["begin_ns"] >= _STALL_NS:
        left, right = (_x_ns(report, stall[name]) for name in ("begin_ns", "end_ns"))
        parts.append(
            f'<rect class="stall" x="{left:.1f}" y="0" width="{max(1.0, right - left):.1f}" height="{bottom:.1f}" '
            'fill="var(--bad)" opacity=".13"><title>'
            f"the longest stall: {(stall['end_ns'] - stall['begin_ns']) / 1e9:,.2f} s</title></rect>"
        )
    ends: list[float] = []
    for mark in marks:
        x, wide = _x_ns(report, mark.at_ns), _LETTER * len(mark.text) + 10
        left = x if x + wide <= _WIDTH else x - wide
        line = next((number for number, end in enumerate(ends) if end <= left), len(ends))
        color = "var(--lead)" if mark.kind == "leader" else "var(--bad)"
        name = ""
        if line < _MAX_LINES:
            ends[line:] = [left + wide, *ends[line + 1 :]]
            anchor = "start" if left == x else "end"
            name = f'<text x="{x:.1f}" y="{-_LINE * line - 5}" text-anchor="{anchor}">{_text(mark.text)}</text>'
        top = -_LINE * min(line, _MAX_LINES - 1) - 4
        parts.append(
            f'<g class="mark {mark.kind}"><title>{_text(mark.text)}</title><line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" '
            f'y2="{bottom:.1f}" stroke="{color}" stroke-dasharray="4 3"/>{name}</g>'
        )
    return parts, _LINE * len(ends) + 6 if ends else 0


def _x_ns(report: Mapping[str, Any], at_ns: int) -> float:
    return _x(report, (at_ns - report["begin_ns"]) / report["bucket_ns"])


def _svg(name: str, title: str, height: float, parts: Sequence[str], above: float) -> str:
    return (
        f'<div class="scroll"><svg id="{name}" viewBox="0 {-above} {_WIDTH} {height + above}" role="img" '
        f'aria-label="{html.escape(title)}">{"".join(parts)}</svg></div>'
    )
