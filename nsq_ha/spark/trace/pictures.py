"""Pictures of a trace report as inline SVG: latency over time, and each partition's time line."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nsq_ha.base.markup import Html, join, tag

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
_PERCENTILES: Final = {"p50_ms": "half of the messages are faster", "p99_ms": "99 of 100 are faster"}


@dataclass(frozen=True, slots=True)
class NamedTime:
    """What is named above the pictures.

    Attributes:
        at_ns: When it happened.
        text: Its name.
        kind: ``leader`` or ``fault``.
    """

    at_ns: int
    text: str
    kind: str


def named_marks(report: Mapping[str, Any], marks: Collection[tuple[float, str]]) -> list[NamedTime]:
    """Return the changes of leaders and other marks, by time.

    Args:
        report: The report.
        marks: Times in Unix seconds, and short names.
    """
    headed = len({row["topic"] for row in report["leaders"]}) > 1
    known, found = set(), [NamedTime(int(at * 1e9), text, "fault") for at, text in marks]
    for row in report["leaders"]:
        place = (row["topic"], row["partition"])
        if place in known:
            subject = f"{row['topic']}-{row['partition']}" if headed else f"partition {row['partition']}"
            text = f"{subject} \N{RIGHTWARDS ARROW} {row['node']}"[:_LONGEST_NAME]
            found.append(NamedTime(row["ts_ns"], text, "leader"))
        known.add(place)
    return sorted(found, key=lambda mark: (mark.at_ns, mark.text))


def latency_picture(report: Mapping[str, Any], marks: Sequence[NamedTime] = ()) -> Html:
    """Return the lines of the 50th and 99th percentile from publish to delivery, on a logarithmic scale."""
    series: Sequence[Mapping[str, Any]] = report["series"]
    if not series:
        return tag("p", "No message with both a publish and a delivery.", class_="soft")
    least = max(min(row["p50_ms"] for row in series), 0.01)
    low = math.floor(math.log10(least))
    high = max(math.ceil(math.log10(max(*(row["p99_ms"] for row in series), 0.02))), low + 1)
    plot = _HEIGHT - _TOP - _BOTTOM

    def y(milliseconds: float) -> float:
        return _TOP + plot * (1 - (math.log10(max(milliseconds, 10.0**low)) - low) / (high - low))

    parts: list[Html] = []
    for value in (10.0**power for power in range(low, high + 1)):
        parts.append(tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y(value), y2=y(value), stroke="var(--line)"))
        parts.append(_label(_milliseconds(value), _LEFT - 8, y(value) + 4, "end"))
    for number, (name, label) in enumerate(_PERCENTILES.items()):
        color = f"var(--{name.removesuffix('_ms')})"
        path, before = "", -math.inf
        for row in series:
            read = f"{_seconds(report, row['bucket'])} s: {row[name]:,.2f} ms, {row['messages']:,} messages"
            x = _x(report, row["bucket"] + 0.5)
            parts.append(tag("circle", _title(read), cx=x, cy=y(row[name]), r=2.5, fill=color))
            # No line crosses a gap, in which nothing was published.
            path += f"{'L' if row['bucket'] - before <= _BRIDGED else 'M'}{x:.1f} {y(row[name]):.1f}"
            before = row["bucket"]
        parts.append(tag("path", class_=name, d=path, fill="none", stroke=color, stroke_width=2))
        at = _LEFT + 220 * number
        parts += [tag("rect", x=at, y=5, width=12, height=4, fill=color), _label(label, at + 18, 12)]
    middle = f"{_TOP + plot / 2:.1f}"
    turned = f"rotate(-90 14 {middle})"
    parts.append(tag("text", "publish to delivery", x=14, y=middle, text_anchor="middle", transform=turned))
    parts += _axis(report, _HEIGHT, "time of the publish")
    named, above = _named(report, marks, _HEIGHT - _BOTTOM)
    return _svg("latency", "Latency from publish to delivery over time", _HEIGHT, named + parts, above)


def timeline_picture(report: Mapping[str, Any], marks: Sequence[NamedTime] = ()) -> Html:
    """Return one row per partition: bars for deliveries, marks for changes of leader and anomalies."""
    places = sorted({(row["topic"], row["partition"]) for row in report["timeline"] + report["leaders"]})
    if not places:
        return tag("p", "Nothing was delivered.", class_="soft")
    headed = len({topic for topic, _ in places}) > 1
    most = max((row["messages"] for row in report["timeline"]), default=1)
    parts: list[Html] = []
    height, heading = _TOP, ""
    for topic, partition in places[:_MAX_ROWS]:
        if headed and topic != heading:
            height, heading = height + _HEADING, topic
            short = topic if len(topic) <= _LONGEST_NAME else f"{topic[:_LONGEST_NAME]}…"
            parts.append(tag("text", short, class_="topic", x=0, y=height - 6))
        height += _ROW
        base = height - 6
        bars, led, wrong = (
            [row for row in report[name] if (row["topic"], row["partition"]) == (topic, partition)]
            for name in ("timeline", "leaders", "first")
        )
        row = [
            _label(f"partition {partition}", _LEFT - 8, base - 6, "end"),
            tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=base, y2=base, stroke="var(--line)"),
            *(_bar(report, each, base, most) for each in bars),
            *(_leader(report, each, base, is_first=not number) for number, each in enumerate(led)),
            *(_anomaly(report, each, base) for each in wrong if each["ts_ns"] is not None),
        ]
        parts.append(tag("g", *row, class_="partition"))
    height += _BOTTOM
    parts += _axis(report, height, "time of the delivery")
    named, above = _named(report, marks, height - _BOTTOM)
    picture = _svg("timeline", "Messages delivered by partition over time", height, named + parts, above)
    hidden = len(places) - _MAX_ROWS
    more = f", {hidden} more partitions are not shown" if hidden > 0 else ""
    legend = tag(
        "p",
        f"Bars: messages delivered, the highest is {most:,} in {report['bucket_ns'] / 1e9:,.2f} s. ",
        tag("span", "▼ leader", style="color:var(--lead)"),
        ", ",
        tag("span", "● anomaly", style="color:var(--bad)"),
        f"; rest the pointer on one to read it{more}.",
        class_="soft",
    )
    return join(picture, legend)


def _bar(report: Mapping[str, Any], row: Mapping[str, Any], base: float, most: int) -> Html:
    wide, tall = max(_x(report, 1) - _x(report, 0) - 0.5, 0.5), max(1.0, (_ROW - 12) * row["messages"] / most)
    title = _title(f"{_seconds(report, row['bucket'])} s: {row['messages']:,} messages")
    return tag("rect", title, x=_x(report, row["bucket"]), y=base - tall, width=wide, height=tall, fill="var(--bar)")


def _leader(report: Mapping[str, Any], row: Mapping[str, Any], base: float, *, is_first: bool) -> Html:
    x, top = _x_ns(report, row["ts_ns"]), base - _ROW + 8
    since = "leads at first" if is_first else f"leads from {(row['ts_ns'] - report['begin_ns']) / 1e9:,.2f} s on"
    arrow = tag("path", _title(f"{row['node']} {since}"), d=f"M{x - 5:.1f} {top} h10 l-5 7 z", fill="var(--lead)")
    line = None if is_first else tag("line", x1=x, x2=x, y1=top, y2=base, stroke="var(--lead)", stroke_width=1.5)
    return tag("g", line, arrow, class_="leader" if is_first else "leader change")


def _anomaly(report: Mapping[str, Any], row: Mapping[str, Any], base: float) -> Html:
    title = _title(f"{row['kind']}: message {row['message_id']}, {row['detail']}")
    return tag("circle", title, class_="anomaly", cx=_x_ns(report, row["ts_ns"]), cy=base, r=4, fill="var(--bad)")


def _axis(report: Mapping[str, Any], height: float, name: str) -> list[Html]:
    span = _span_s(report)
    step = _step(span)
    ticks = [
        _label(f"{number * step:,g} s", _LEFT + _PLOT * number * step / span, height - 26, "middle")
        for number in range(int(span / step + 1e-9) + 1)
    ]
    return [*ticks, _label(name, _LEFT + _PLOT / 2, height - 8, "middle")]


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


def _x_ns(report: Mapping[str, Any], at_ns: int) -> float:
    return _x(report, (at_ns - report["begin_ns"]) / report["bucket_ns"])


def _seconds(report: Mapping[str, Any], bucket: float) -> str:
    return f"{bucket * report['bucket_ns'] / 1e9:,.2f}"


def _milliseconds(value: float) -> str:
    return f"{value / 1000:g} s" if value >= 1000 else f"{value:g} ms"


def _named(report: Mapping[str, Any], marks: Sequence[NamedTime], bottom: float) -> tuple[list[Html], float]:
    """Return the longest stall as a band, and each mark as a line with its name above, and the room for the names."""
    parts = []
    stall = report["stall"]
    if stall is not None and stall["end_ns"] - stall["begin_ns"] >= _STALL_NS:
        left, right = (_x_ns(report, stall[name]) for name in ("begin_ns", "end_ns"))
        title = _title(f"the longest stall: {(stall['end_ns'] - stall['begin_ns']) / 1e9:,.2f} s")
        place = {"x": left, "y": 0, "width": max(1.0, right - left), "height": bottom}
        parts.append(tag("rect", title, class_="stall", **place, fill="var(--bad)", opacity=".13"))
    ends: list[float] = []
    for mark in marks:
        x, wide = _x_ns(report, mark.at_ns), _LETTER * len(mark.text) + 10
        left = x if x + wide <= _WIDTH else x - wide
        line = next((number for number, end in enumerate(ends) if end <= left), len(ends))
        color = "var(--lead)" if mark.kind == "leader" else "var(--bad)"
        name = None
        if line < _MAX_LINES:
            ends[line:] = [left + wide, *ends[line + 1 :]]
            name = _label(mark.text, x, -_LINE * line - 5, "start" if left == x else "end")
        top = -_LINE * min(line, _MAX_LINES - 1) - 4
        dashed = tag("line", x1=x, x2=x, y1=top, y2=bottom, stroke=color, stroke_dasharray="4 3")
        parts.append(tag("g", _title(mark.text), dashed, name, class_=f"mark {mark.kind}"))
    return parts, _LINE * len(ends) + 6 if ends else 0


def _svg(name: str, title: str, height: float, parts: Sequence[Html], above: float) -> Html:
    box = f"0 {-above} {_WIDTH} {height + above}"
    svg = tag("svg", *parts, id=name, viewBox=box, role="img", aria_label=title)
    return tag("div", svg, class_="scroll")


def _label(text: str, x: float, y: float, anchor: str = "start") -> Html:
    return tag("text", text, x=x, y=y, text_anchor=anchor)


def _title(text: str) -> Html:
    return tag("title", text)
