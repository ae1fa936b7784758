"""Build the report as one self-contained HTML page: tables, and inline SVG of latencies and of each partition's time.

Escapes everything that comes from a log: other programs write names and ids.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any, Final, NamedTuple

from nsq_ha.base.markup import Html, join, tag

_STAGES: Final = {
    "publish_to_start": "publish to delivery",
    "start_to_finish": "delivery to finish",
    "publish_to_finish": "publish to finish",
}
_KINDS: Final = {"lost": "lost", "repeated": "repeated", "out_of_order": "out of order", "gap": "gaps in the log"}


_COUNTED: Final = (
    "Each message counts once per channel, however often it was delivered. A message is repeated if it was delivered "
    "or finished again after a finish; two publishes of the same body are two messages."
)
_MEASURED: Final = (
    "Publish is the time of the call, so waiting in the producer counts, and so does waiting in the topic while the "
    "consumer is behind."
)
_MEASURED_BY_NSQD: Final = (
    "Publish is the time at which nsqd had the message, so waiting in the topic while the consumer is behind counts."
)

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


def html_page(
    report: Mapping[str, Any],
    title: str = "",
    extra: Collection[str] = (),
    latency_note: str = "",
    *,
    marks: Collection[tuple[float, str]] = (),
) -> str:
    """Return the page.

    Args:
        report: The result of :meth:`nsq_ha.traces.report.TraceReport.as_dict`.
        title: The title of the page. Empty for the default.
        extra: Paragraphs below the verdict, as text.
        latency_note: More text about the latencies, shown with them.
        marks: What happened meanwhile, named in the pictures: times in Unix seconds, and short names.
    """
    named = named_marks(report, marks)
    measured = _soft(f"{_MEASURED_BY_NSQD if report['side'] == 'server' else _MEASURED} {latency_note}".rstrip())
    heading = title or "The life of every message"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", heading),
        tag("style", Html(files(__package__).joinpath("page.css").read_text(encoding="utf-8"))),
    )
    body = tag(
        "body",
        tag("h1", heading),
        _soft(_span(report)),
        _verdict(report),
        _stall(report),
        [tag("p", line) for line in extra],
        _section("Latency over time", latency_picture(report, named)),
        _section("Deliveries by partition", timeline_picture(report, named)),
        _section("Outcomes of the messages", _soft(_COUNTED), _outcomes(report)),
        _section("Latency", measured, _latency(report)),
        _section("First anomalies", _anomalies(report)),
        _section("Leaders", _soft("Since the acknowledgement of a leader's first publish."), _leaders(report)),
    )
    return "<!doctype html>\n" + tag("html", head, body, lang="en")


def _section(heading: str, *content: Html) -> Html:
    return tag("section", tag("h2", heading), *content)


def _soft(text: str) -> Html:
    return tag("p", text, class_="soft")


def _verdict(report: Mapping[str, Any]) -> Html:
    counts: Mapping[str, int] = report["counts"]
    summary = ", ".join(f"{counts[kind]:,} {name}" for kind, name in _KINDS.items() if kind in counts)
    if report["begin_ns"] is None:
        summary = "no trace lines"
    kind, word = ("ok", "ok") if report["is_ok"] else ("failed", "FAILED")
    return tag("p", f"{word}: {summary}", class_=f"verdict {kind}", id="verdict")


def _stall(report: Mapping[str, Any]) -> Html | None:
    stall = report["stall"]
    if stall is None:
        return None
    seconds = tag("b", f"{(stall['end_ns'] - stall['begin_ns']) / 1e9:,.2f} s")
    waited = f", in which a publish to {stall['topic']}-{stall['partition']} waited for its acknowledgement, from "
    return tag("p", "Longest stall: ", seconds, f"{waited}{_at(stall['begin_ns'], report)} s on.", id="stall")


def _span(report: Mapping[str, Any]) -> str:
    begin, end = report["begin_ns"], report["end_ns"]
    if begin is None:
        return "The logs hold no trace lines."
    start = datetime.datetime.fromtimestamp(begin / 1e9, datetime.UTC)
    bad = f", {report['bad_lines']:,} lines that cannot be parsed" if report["bad_lines"] else ""
    return (
        f"{report['events']:,} events in {(end - begin) / 1e9:,.1f} s from {start:%Y-%m-%d %H:%M:%S} UTC{bad}; "
        f"pictures by the {report['side']}'s log"
    )


def _outcomes(report: Mapping[str, Any]) -> Html:
    rows = [(row["side"], row["topic"], row["channel"], row["outcome"], row["count"]) for row in report["outcomes"]]
    return _table(("log", "topic", "channel", "outcome", "messages#"), rows)


def _latency(report: Mapping[str, Any]) -> Html:
    # What is the same in every row stands in the table of outcomes.
    places = [
        (name, key)
        for name, key in (("log", "side"), ("topic", "topic"), ("channel", "channel"))
        if len({row[key] for row in report["latency"]}) > 1
    ]
    rows = [
        (
            *(row[key] for _, key in places),
            "all" if row["partition"] is None else str(row["partition"]),
            _STAGES.get(row["stage"], row["stage"]),
            row["messages"],
            *(f"{row[name]:,.2f}" for name in ("p50_ms", "p95_ms", "p99_ms", "max_ms")),
        )
        for row in report["latency"]
    ]
    names = [name for name, _ in places]
    return _table((*names, "partition#", "stage", "messages#", "50 % ms#", "95 % ms#", "99 % ms#", "max ms#"), rows)


def _anomalies(report: Mapping[str, Any]) -> Html:
    first: Sequence[Mapping[str, Any]] = report["first"]
    if not first:
        return _soft("None.")
    rows = [
        (
            _KINDS.get(row["kind"], row["kind"]),
            row["side"],
            f"{row['topic']}-{row['partition']}",
            row["channel"],
            None if row["message_id"] is None else str(row["message_id"]),  # an id, not a number
            None if row["trace_id"] is None else str(row["trace_id"]),
            _at(row["ts_ns"], report),
            row["detail"],
        )
        for row in first
    ]
    names = ("kind", "log", "partition", "channel", "message id#", "trace id#", "at s#", "detail")
    total = sum(report["counts"].values())
    hint = tag(
        "p",
        f"{len(first):,} of {total:,}. To look one up, ask the partition's leader: ",
        tag("code", "/message/get?topic=…&partition=…&search_mode=id&search_pos=MESSAGE_ID"),
        ". For a message inside a batch it answers with the first message of that batch.",
    )
    return join(hint, _table(names, rows))


def _leaders(report: Mapping[str, Any]) -> Html:
    rows = [(f"{row['topic']}-{row['partition']}", row["node"], _at(row["ts_ns"], report)) for row in report["leaders"]]
    return _table(("partition", "node", "from s#"), rows)


def _at(ts_ns: int | None, report: Mapping[str, Any]) -> str:
    return "" if ts_ns is None or report["begin_ns"] is None else f"{(ts_ns - report['begin_ns']) / 1e9:,.3f}"


def _table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> Html:
    """Return a table; a name that ends in ``#`` is a column of numbers."""
    kinds = ["n" if name.endswith("#") else None for name in names]
    head = [tag("th", name.rstrip("#"), class_=kind) for name, kind in zip(names, kinds, strict=True)]
    body = [
        tag("tr", [tag("td", _cell(cell), class_=kind) for cell, kind in zip(row, kinds, strict=True)]) for row in rows
    ]
    table = tag("table", tag("thead", tag("tr", head)), tag("tbody", body))
    return tag("div", table, class_="scroll")


def _cell(cell: object) -> str | None:
    if isinstance(cell, int) and not isinstance(cell, bool):
        return f"{cell:,}" if cell < 10**9 else str(cell)
    return None if cell is None else str(cell)


# ---------------------------------------------------------------- pictures


class NamedTime(NamedTuple):
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
    return sorted(found)


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
