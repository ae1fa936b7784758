"""The live screen of ``nsq-ha demo``: progress bars, and above them the table of the streaming query."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Final

from nsq_ha.cli.output import cell
from nsq_ha.demo.delays import Delays, most_flights_first, total

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import Console, RenderableType
    from rich.progress import Progress
    from rich.table import Table

    from nsq_ha.demo.flight_stream import StreamState
    from nsq_ha.demo.stage import Demo
    from nsq_ha.spark.lag import StreamLag

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

    class Screen(Progress):
        """Progress bars with a table above."""

        table: RenderableType | None = None

        def get_renderables(self) -> Iterable[RenderableType]:
            if self.table is not None:
                yield self.table
            yield from super().get_renderables()

    with Screen(
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
