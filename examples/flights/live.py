"""The demo's page in the dashboard: its counts, its charts with faults and stalls, and who leads each partition.

The dashboard asks the cluster and sends the pages; this module adds one page, made of the job's own counts. The page
ends with the run: browsers keep its last state.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from examples.flights.audit import SLOW, Audit
from nsq_ha.base.markup import Html, join, tag
from nsq_ha.dashboard import DashboardOptions, figures, serve
from nsq_ha.dashboard.charts import ChartLine, bar, chart, lane, legend
from nsq_ha.dashboard.history import ClusterEvent, Period
from nsq_ha.dashboard.pages import ui
from nsq_ha.dashboard.pages.ui import Board, Extra, Page, TableColumn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from examples.flights.faults import DemoEvent
    from nsq_ha.admin import AdminClient

INTERVAL: Final = 0.5
"""Seconds between two samples."""

REFRESH: Final = 1.0
"""Seconds between two looks at the cluster, each of which refreshes the page; more would slow the job down."""

MAX_SAMPLES: Final = 1200
"""Samples that are kept; of a longer run, only every other one, again and again."""

_ROW: Final = 20
_COLORS: Final = 6
_MOST_NAMES: Final = 12
_NAME_ROWS: Final = 3
_NAME_HEIGHT: Final = 15


class LivePage:
    """What the page shows of one run.

    Args:
        audit: The job's counts.
        topic: Its topic.
        names: Names of nsqds, by address.
        events: What has happened; the run adds to it.

    Attributes:
        times: When the samples were taken, in Unix seconds.
        samples: Counts of acknowledged and consumed messages, of those without receipt, and of those not delivered.
        gap: Seconds between two samples; it grows, so that memory is bounded.
    """

    def __init__(self, audit: Audit, topic: str, names: Mapping[str, str], events: Sequence[DemoEvent]) -> None:
        self._audit = audit
        self._topic = topic
        self._names = names
        self._events = events
        self.times: list[float] = []
        self.samples: list[tuple[int, int, int, int]] = []
        self.gap: float = INTERVAL
        self._is_clean: bool | None = None
        self._error: str | None = None
        self._clock = asyncio.get_running_loop().time
        self._offset = time.time() - self._clock()
        self.sample()

    def end(self, *, is_clean: bool, error: str | None = None) -> None:
        """Show the verdict; ``error`` is what is wrong besides the counts."""
        self._is_clean, self._error = is_clean, error
        self.sample()

    def sample(self) -> None:
        """Note the counts of this moment."""
        audit = self._audit
        self.times.append(self._clock() + self._offset)
        self.samples.append((audit.acknowledged, audit.consumed, audit.unanswered, audit.lost))
        if len(self.times) > MAX_SAMPLES:
            self.times, self.samples, self.gap = self.times[::2], self.samples[::2], self.gap * 2

    async def run(self) -> None:
        """Take samples until cancelled."""
        while True:
            await asyncio.sleep(self.gap)
            self.sample()

    def page(self, _: Board) -> Page:
        """Return the page."""
        events = ui.events_list(
            (
                ClusterEvent(
                    event.at,
                    "operator" if event.mark else "cluster",
                    "warning" if event.mark else "info",
                    event.mark or "demo",
                    event.text,
                )
                for event in reversed(self._events)
            ),
            empty="Nothing has happened yet.",
        )
        audit = self._audit
        content = join(
            self._verdict(audit),
            _counts(audit, has_ended=self._is_clean is not None),
            tag("div", *self._charts(audit), class_="charts"),
            ui.section("Who leads each partition", self._leaders(audit)),
            ui.section("Receipts by partition", self._partitions(audit)),
            ui.section("Events, the newest first", events),
        )
        return Page("Demo", content)

    def _verdict(self, audit: Audit) -> Html:
        if self._is_clean is None:
            text = f"Flights of aircraft go through {self._topic}, in order for each aircraft."
            if audit.is_settled:
                text = f"All {audit.total:,} flights came through; what follows checks them."
            return tag("p", text, class_="soft", id="verdict")
        if self._is_clean:
            text = f"ok: {audit.consumed:,} flights of {audit.keys:,} aircraft came through, 0 lost, 0 out of order"
        elif audit.is_clean:
            text = f"FAILED: {self._error}"
        else:
            text = (
                f"FAILED: {audit.lost:,} lost, {audit.out_of_order:,} out of order, {audit.failed:,} errors, "
                f"{audit.total - audit.acknowledged:,} not acknowledged"
            )
        return tag("p", text, class_=f"banner {'good' if self._is_clean else 'bad'}", role="status", id="verdict")

    def _charts(self, audit: Audit) -> list[Html]:
        periods = [self._period(f"partition {p}", b, e) for p, bands in audit.receipts.bands.items() for b, e in bands]
        now, oldest = self._clock(), audit.oldest
        if oldest is not None and now - oldest >= SLOW:
            periods.append(self._period("a partition", oldest, now))
        marks = self._marks()
        above = _names_above(self.times[0], self.times[-1], marks)
        rates = [self._rates([sample[index] for sample in self.samples]) for index in (0, 1)]
        waiting = [[float(sample[index]) for sample in self.samples] for index in (2, 3)]
        pictures = (
            ("demo-rate", "Messages per second", "rate", ("acknowledged", "consumed"), rates),
            ("demo-waiting", "Messages on the way", "count", ("without receipt", "not delivered"), waiting),
        )
        return [
            chart(
                name,
                title,
                self.times,
                [ChartLine(*line) for line in zip(labels, values, strict=True)],
                unit=unit,
                periods=periods,
                marks=marks,
                above=above,
            )
            for name, title, unit, labels, values in pictures
        ]

    def _rates(self, counts: Sequence[int]) -> list[float]:
        """Return how fast a count grew before each sample."""
        pairs = zip(pairwise(self.times), pairwise(counts), strict=True)
        return [math.nan, *((new - old) / max(after - before, 0.001) for (before, after), (old, new) in pairs)]

    def _marks(self) -> list[ClusterEvent]:
        return [
            ClusterEvent(event.at, "operator", "warning", event.mark, event.text)
            for event in self._events
            if event.mark
        ]

    def _period(self, subject: str, begin: float, end: float) -> Period:
        why = f"publishes waited for {end - begin:.1f} s"
        return Period("leaderless", subject, why, begin + self._offset, end + self._offset)

    def _leaders(self, audit: Audit) -> Html:
        """Return a row for each partition: who acknowledged when, and its stalls."""
        window = (self.times[0], self.times[-1])
        nodes = list(dict.fromkeys(node for writers in audit.writers.values() for _, node in writers))
        rows = []
        for partition in sorted(audit.writers):
            writers = [(at + self._offset, node) for at, node in audit.writers[partition]]
            ends = [*(at for at, _ in writers[1:]), window[1]]
            shapes = [
                bar((at, until), window, (1, _ROW - 2), self._name(node), f"fill-{nodes.index(node) % _COLORS}")
                for (at, node), until in zip(writers, ends, strict=True)
            ]
            for b, e in audit.receipts.bands.get(partition, ()):
                # A stall is a strip below, so that the leader stays visible.
                times = (b + self._offset, e + self._offset)
                shapes.append(bar(times, window, (_ROW - 7, 6), f"stalled for {e - b:.1f} s", "band stalled"))
            label = f"partition {partition}: {self._names.get(writers[-1][1], writers[-1][1])}"
            rows.append(lane(label, shapes, _ROW, data_key=str(partition)))
        if not rows:
            return tag("p", "No receipt has come yet.", class_="empty", id="leaders")
        keys = [legend(f"line-{index % _COLORS}", self._name(node)) for index, node in enumerate(nodes)]
        stalled = legend("stalled", f"a publish waits for {SLOW:g} s or longer")
        above = _names_above(*window, self._marks())
        head = tag("div", tag("span", class_="subject"), above, class_="row bare") if above else None
        return tag("figure", head, rows, tag("p", *keys, stalled, class_="legends"), id="leaders", class_="lanes")

    def _partitions(self, audit: Audit) -> Html:
        def longest(row: tuple[int, list[tuple[float, str]]]) -> float | None:
            return max((end - begin for begin, end in audit.receipts.bands.get(row[0], [])), default=None)

        columns = (
            ui.number("partition", lambda row: str(row[0])),
            TableColumn("leader", lambda row: self._name(row[1][-1][1])),
            ui.number("leader changes", lambda row: figures.count(len(row[1]) - 1)),
            ui.number("longest stall", lambda row: figures.span(longest(row))),
        )
        rows = sorted(audit.writers.items())
        return ui.table("receipts", columns, rows, key=lambda row: str(row[0]), empty="No receipt has come yet.")

    def _name(self, address: str) -> str:
        name = self._names.get(address)
        return f"{name} ({address})" if name else address


def _names_above(begin: float, end: float, marks: Sequence[ClusterEvent]) -> Html | None:
    """Return the names above a picture, each at its time; neighbours are on different lines."""
    shown = [each for each in marks if begin <= each.at <= end][-_MOST_NAMES:]
    if not shown:
        return None
    rows = min(len(shown), _NAME_ROWS)
    texts = []
    for index, each in enumerate(shown):
        share = (each.at - begin) / (end - begin) if end > begin else 0.0
        # A name begins at its mark, or ends there if it would leave the picture.
        anchor = "start" if share < 0.6 else "end"
        y = (index % rows + 1) * _NAME_HEIGHT - 4
        texts.append(tag("text", each.subject, x=f"{share * 100:.1f}%", y=y, text_anchor=anchor))
    return tag("svg", *texts, class_=f"names rows-{rows}")


def _counts(audit: Audit, *, has_ended: bool) -> Html:
    lost = audit.lost if has_ended else max(0, audit.overtaken)
    facts = [
        (f"published, of {audit.total:,}", figures.count(audit.published), ""),
        ("acknowledged", figures.count(audit.acknowledged), ""),
        ("consumed", figures.count(audit.consumed), ""),
        ("lost" if has_ended else "lost so far", figures.count(lost), "bad" if lost else "good"),
        ("out of order", figures.count(audit.out_of_order), "bad" if audit.out_of_order else "good"),
        ("repeated deliveries", figures.count(audit.repeated), ""),
        ("leader changes", figures.count(audit.leader_changes), ""),
        ("longest wait for a receipt", figures.brief(audit.receipts.longest), ""),
    ]
    if audit.failed:
        facts.append(("errors", figures.count(audit.failed), "bad"))
    return ui.tiles(*facts)


@contextlib.asynccontextmanager
async def shown(admin: AdminClient, page: LivePage) -> AsyncIterator[str]:
    """Serve the page at a free port of the loopback; yield its URL."""
    started: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    options = DashboardOptions(port=0, interval=REFRESH, history=600.0)
    extra = Extra("demo", "Demo", page.page)
    serving = asyncio.create_task(serve(admin, options, started=started.set_result, extra=extra))
    sampling = asyncio.create_task(page.run())
    try:
        waited: set[asyncio.Future[Any]] = {started, serving}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            await serving
        yield f"{await started}demo"
    finally:
        sampling.cancel()
        serving.cancel()
        await asyncio.wait({sampling, serving})
