"""Build the report as one self-contained HTML page: tables, and inline pictures from ``pictures``.

Escapes everything that comes from a log: other programs write names and ids.
"""

from __future__ import annotations

import datetime
import html
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

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
    heading = _text(title or "The life of every message")
    style = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    parts = [
        f"<h1>{heading}</h1>",
        f'<p class="soft">{_text(_span(report))}</p>',
        _verdict(report),
        _stall(report),
        *(f"<p>{_text(line)}</p>" for line in extra),
        _section("Latency over time", latency_picture(report, named)),
        _section("Deliveries by partition", timeline_picture(report, named)),
        _section("Outcomes of the messages", _soft(_COUNTED) + _outcomes(report)),
        _section("Latency", measured + _latency(report)),
        _section("First anomalies", _anomalies(report)),
        _section("Leaders", _soft("Since the acknowledgement of a leader's first publish.") + _leaders(report)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{heading}</title><style>\n{style}</style></head>\n<body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _section(heading: str, content: str) -> str:
    return f"<section><h2>{_text(heading)}</h2>{content}</section>"


def _soft(text: str) -> str:
    return f'<p class="soft">{_text(text)}</p>'


def _verdict(report: Mapping[str, Any]) -> str:
    counts: Mapping[str, int] = report["counts"]
    summary = ", ".join(f"{counts[kind]:,} {name}" for kind, name in _KINDS.items() if kind in counts)
    if report["begin_ns"] is None:
        summary = "no trace lines"
    kind, word = ("ok", "ok") if report["is_ok"] else ("failed", "FAILED")
    return f'<p class="verdict {kind}" id="verdict">{word}: {_text(summary)}</p>'


def _stall(report: Mapping[str, Any]) -> str:
    stall = report["stall"]
    if stall is None:
        return ""
    seconds = (stall["end_ns"] - stall["begin_ns"]) / 1e9
    return (
        f'<p id="stall">Longest stall: <b>{seconds:,.2f} s</b>, in which a publish to '
        f"{_text(stall['topic'])}-{_text(str(stall['partition']))} waited for its acknowledgement, from "
        f"{_at(stall['begin_ns'], report)} s on.</p>"
    )


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


def _outcomes(report: Mapping[str, Any]) -> str:
    rows = [(row["side"], row["topic"], row["channel"], row["outcome"], row["count"]) for row in report["outcomes"]]
    return _table(("log", "topic", "channel", "outcome", "messages#"), rows)


def _latency(report: Mapping[str, Any]) -> str:
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
    names = (
        *(name for name, _ in places),
        "partition#",
        "stage",
        "messages#",
        "50 % ms#",
        "95 % ms#",
        "99 % ms#",
        "max ms#",
    )
    return _table(names, rows)


def _anomalies(report: Mapping[str, Any]) -> str:
    first: Sequence[Mapping[str, Any]] = report["first"]
    if not first:
        return '<p class="soft">None.</p>'
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
    hint = (
        f"<p>{len(first):,} of {total:,}. To look one up, ask the partition's leader: "
        "<code>/message/get?topic=…&amp;partition=…&amp;search_mode=id&amp;search_pos=MESSAGE_ID</code>. "
        "For a message inside a batch it answers with the first message of that batch.</p>"
    )
    return hint + _table(names, rows)


def _leaders(report: Mapping[str, Any]) -> str:
    rows = [(f"{row['topic']}-{row['partition']}", row["node"], _at(row["ts_ns"], report)) for row in report["leaders"]]
    return _table(("partition", "node", "from s#"), rows)


def _at(ts_ns: int | None, report: Mapping[str, Any]) -> str:
    return "" if ts_ns is None or report["begin_ns"] is None else f"{(ts_ns - report['begin_ns']) / 1e9:,.3f}"


def _table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; a name that ends in ``#`` is a column of numbers."""
    kinds = [' class="n"' if name.endswith("#") else "" for name in names]
    head = "".join(f"<th{kind}>{_text(name.rstrip('#'))}</th>" for name, kind in zip(names, kinds, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{_cell(cell)}</td>" for cell, kind in zip(row, kinds, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(cell: object) -> str:
    if isinstance(cell, int) and not isinstance(cell, bool):
        return f"{cell:,}" if cell < 10**9 else str(cell)
    return "" if cell is None else _text(str(cell))


def _text(text: str) -> str:
    return html.escape(text, quote=True)
