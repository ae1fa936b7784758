"""The rows of the table: what is measured, against whom, and the mark."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks import markdown
from benchmarks.peers.environments import (
    ASYNCNSQ,
    GO_NSQ,
    OURS_311,
    OURS_312,
    OURS_UVLOOP,
    PEERS,
    PYNSQ,
    Client,
)
from benchmarks.peers.rounds import Outcome, Work, ratios


@dataclass(frozen=True, slots=True)
class Mark:
    """One figure to reach.

    Attributes:
        ours: Which of our clients it is about.
        figure: ``rate``, ``cpu``, ``p50``, ``p99`` or ``peak_bytes``.
        at: The ratio to the fastest of ``peers``.
    """

    ours: Client
    figure: str
    at: float
    peers: tuple[Client, ...] = PEERS

    @property
    def is_rate(self) -> bool:
        """More is better."""
        return self.figure == "rate"


@dataclass(frozen=True, slots=True)
class Row:
    """One work with its marks."""

    work: Work
    marks: tuple[Mark, ...]

    @property
    def clients(self) -> tuple[Client, ...]:
        """Everybody whose figures are wanted."""
        return tuple(dict.fromkeys(client for mark in self.marks for client in (mark.ours, *mark.peers)))


def _drain(name: str, counts: tuple[int, int], body_bytes: int, rate: float, cpu: float) -> Row:
    ours = (OURS_311, OURS_312, OURS_UVLOOP)
    marks = tuple(Mark(one, figure, at) for one in ours for figure, at in (("rate", rate), ("cpu", cpu)))
    return Row(Work(name, "drain", counts, body_bytes), marks)


def _publishing(
    name: str, work: str, counts: tuple[int, int], in_flight: int, marks: tuple[Mark, ...], *, body_bytes: int = 100
) -> Row:
    return Row(Work(name, work, counts, body_bytes, in_flight=in_flight), marks)


def _marks(figure: str, at: float, peer: Client) -> tuple[Mark, ...]:
    """Return the marks of our client on both event loops against one peer."""
    return tuple(Mark(one, figure, at, (peer,)) for one in (OURS_312, OURS_UVLOOP))


def _latency(rate: int, count: int) -> Row:
    work = Work(f"end to end at RDY 2500, {rate:,} a second", "latency", (count, count), in_flight=2500, rate=rate)
    ours = (OURS_311, OURS_312, OURS_UVLOOP)
    return Row(work, tuple(Mark(one, figure, 0.2) for one in ours for figure in ("p50", "p99")))


ROWS: Final = {
    "drain100": _drain("drain, 100 B", (200_000, 40_000), 100, 5.0, 0.10),
    "drain1k": _drain("drain, 1 KiB", (100_000, 30_000), 1024, 4.5, 0.15),
    "drain16k": _drain("drain, 16 KiB", (10_000, 6_000), 16384, 1.8, 0.5),
    "go": Row(
        Work("drain, 100 B, against Go with four handlers", "drain", (200_000, 200_000)),
        tuple(Mark(one, "rate", 2.0, (GO_NSQ,)) for one in (OURS_311, OURS_312, OURS_UVLOOP)),
    ),
    "publish": _publishing(
        "publish, 100 in flight, 100 B",
        "publish",
        (60_000, 60_000),
        100,
        tuple(
            Mark(one, figure, at)
            for one in (OURS_311, OURS_312, OURS_UVLOOP)
            for figure, at in (("rate", 1.5), ("cpu", 0.65))
        ),
    ),
    "publish16k": _publishing(
        "publish, 100 in flight, 16 KiB",
        "publish",
        (20_000, 20_000),
        100,
        (*_marks("rate", 1.2, ASYNCNSQ), *_marks("rate", 1.5, GO_NSQ), *_marks("cpu", 0.8, ASYNCNSQ)),
        body_bytes=16384,
    ),
    "single": _publishing(
        "publish one by one",
        "single",
        (5_000, 5_000),
        1,
        (Mark(OURS_312, "p50", 1.0), Mark(OURS_UVLOOP, "p50", 0.85)),
    ),
    "batch": _publishing(
        "MPUB of 100 x 100 B",
        "batch",
        (200_000, 200_000),
        100,
        (Mark(OURS_UVLOOP, "cpu", 0.7), *_marks("rate", 1.0, GO_NSQ)),
    ),
    "batch16k": _publishing(
        "MPUB of 100 x 16 KiB",
        "batch",
        (20_000, 20_000),
        100,
        (*_marks("rate", 0.75, GO_NSQ), *_marks("cpu", 1.5, GO_NSQ)),
        body_bytes=16384,
    ),
    # At 400 a second the 16 KiB that an nsqd gathers for most clients do not fill before its timer; at 2,000 they do.
    "latency": _latency(400, 1_200),
    "latency2000": _latency(2_000, 5_000),
    "rdy1": Row(
        Work("publish to handler at RDY 1, 500 a second", "latency", (1_500, 1_500), in_flight=1, rate=500),
        _marks("p50", 1.0, ASYNCNSQ),
    ),
    "memory": Row(
        Work("peak memory while draining, 100 B", "drain", (100_000, 100_000)),
        (Mark(OURS_311, "peak_bytes", 1.0, (PYNSQ,)),),
    ),
}


def report(row: Row, outcomes: Sequence[Outcome]) -> str:
    """Return the row's lines of the table."""
    by_client = {outcome.client: outcome for outcome in outcomes}
    lines = [f"## {row.work.name}"]
    for outcome in outcomes:
        if outcome.trouble or not outcome.results:
            lines.append(f"   {outcome.client.name}: {outcome.trouble or 'not run'}")
        else:
            lines.append(f"   {outcome.client.name:<24} {_figures(outcome)}")
    lines += [_line(mark, by_client) for mark in row.marks]
    return "\n".join(lines)


def _figures(outcome: Outcome) -> str:
    parts = [f"{outcome.median('rate'):>9,.0f}/s", f"CPU {outcome.median('cpu') * 1e6:7.2f} us"]
    parts.append(f"peak {outcome.median('peak_bytes') / 1e6:5.1f} MB")
    if "p50" in outcome.results[0]:
        parts.append(f"p50 {outcome.median('p50') * 1e3:8.3f} ms p99 {outcome.median('p99') * 1e3:8.3f} ms")
    return "  ".join(parts)


def _line(mark: Mark, by_client: dict[Client, Outcome]) -> str:
    verdict = judged(mark, by_client)
    if verdict is None:
        return f"   {mark.ours.name} {mark.figure}: not measured"
    best, found, is_reached = verdict
    sign = ">=" if mark.is_rate else "<="
    return (
        f"   => {mark.ours.name:<20} {mark.figure:<10} {statistics.median(found):6.2f} of {best.client.name}"
        f" ({min(found):.2f}..{max(found):.2f}), mark {sign} {mark.at:g}: {'reached' if is_reached else 'NOT reached'}"
    )


def table(found: Sequence[tuple[Row, Sequence[Outcome]]]) -> str:
    """Return the rows as one Markdown table: ratios by client of ours, with their range over the rounds."""
    ours = (OURS_311, OURS_312, OURS_UVLOOP)
    rows: list[list[str]] = []
    for row, outcomes in found:
        by_client = {outcome.client: outcome for outcome in outcomes}
        for figure, peers in dict.fromkeys((mark.figure, mark.peers) for mark in row.marks):
            marks = {mark.ours: mark for mark in row.marks if (mark.figure, mark.peers) == (figure, peers)}
            verdicts = {one: verdict for one, mark in marks.items() if (verdict := judged(mark, by_client))}
            if not verdicts:
                continue
            sign = ">=" if figure == "rate" else "<="
            cells = [_cell(*verdicts[one][1:]) if one in verdicts else "" for one in ours]
            names = dict.fromkeys(best.client.name for best, _, _ in verdicts.values())
            at = ", ".join(f"{at:g}" for at in dict.fromkeys(mark.at for mark in marks.values()))
            rows.append([row.work.name, figure, f"{sign} {at}", *cells, ", ".join(names)])
    return markdown.table(["work", "figure", "mark", *(one.name for one in ours), "of"], rows)


def changes(found: Sequence[tuple[Row, Sequence[Outcome]]]) -> str:
    """Return each mark before and after a change as a Markdown table, from rounds in which both versions took turns."""
    rows: list[tuple[str, ...]] = []
    for row, outcomes in found:
        by_client = {outcome.client: outcome for outcome in outcomes}
        earlier = {outcome.client.name: outcome for outcome in outcomes}
        for mark in row.marks:
            after, old = judged(mark, by_client), earlier.get(mark.ours.before("").name)
            if after is None or old is None or not old.results:
                continue
            best, ratio, is_reached = after
            before = ratios(old, best, mark.figure)
            sign = ">=" if mark.is_rate else "<="
            cells = (row.work.name, mark.figure, mark.ours.name, _cell(before, True), _cell(ratio, is_reached))
            rows.append((*cells, f"{sign} {mark.at:g}", best.client.name))
    return markdown.table(("work", "figure", "client", "before", "after", "mark", "of"), rows)


def _cell(found: Sequence[float], is_reached: bool) -> str:
    text = f"{statistics.median(found):.2f} ({min(found):.2f}..{max(found):.2f})"
    return text if is_reached else f"**{text}**"


def judged(mark: Mark, by_client: dict[Client, Outcome]) -> tuple[Outcome, list[float], bool] | None:
    """Return the best peer, the ratios to it, and whether the mark is reached; None where one was not measured."""
    peers = [by_client[peer] for peer in mark.peers if peer in by_client and by_client[peer].results]
    ours = by_client.get(mark.ours)
    if ours is None or not ours.results or not peers:
        return None
    best = (max if mark.is_rate else min)(peers, key=lambda peer: peer.median(mark.figure))
    found = ratios(ours, best, mark.figure)
    ratio = statistics.median(found)
    return best, found, ratio >= mark.at if mark.is_rate else ratio <= mark.at
