"""Build the report as one self-contained HTML page: tables, and inline pictures from ``pictures``.

Escapes everything that comes from a log: other programs write names and ids.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

from nsq_ha.base.markup import Html, join, tag
from nsq_ha.spark.trace.pictures import latency_picture, named_marks, timeline_picture

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
        report: The result of :meth:`nsq_ha.spark.trace.report.TraceReport.as_dict`.
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
