"""``nsq-ha top``: a live screen of topics, channels and partitions.

:class:`Screen` is what it shows and what its keys do. It is pure: samples, keys and the size of the terminal come in as
arguments.
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import os
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import click

from nsq_ha.admin.causes import at_least, expected, incidents
from nsq_ha.admin.consuming import folded
from nsq_ha.admin.words import counted, span
from nsq_ha.cli.options import SECONDS, cluster_options
from nsq_ha.cli.output import SORTS, clean, columns_of, fitting, in_order, natural_width, number, table_of
from nsq_ha.cli.output import console as output_console
from nsq_ha.cli.running import run
from nsq_ha.cli.seen import looks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console, Group
    from rich.table import Table
    from rich.text import Text

    from nsq_ha.admin import AdminClient
    from nsq_ha.admin.memory import TopicPartition
    from nsq_ha.admin.reading import FigureRow, Reading
    from nsq_ha.cli.cluster import ClusterAccess


ORDERS: Final = ("name", *SORTS)
"""The orders of the rows, in the order in which the key ``s`` goes through them."""

_MOST_WRONG: Final = 5
"""Number of problems that are shown."""

MARKED: Final = 30.0
"""Seconds for which a partition whose leader moved is marked."""

_QUIT: Final = ("q", "Q", "\x03", "\x04")
_ENTER: Final = ("\r", "\n", "\x1b")
_ERASE: Final = ("\x7f", "\b")


@click.command(short_help="Watch rates, depths and lags live.")
@click.argument("pattern", required=False, default="")
@click.option("-i", "--interval", type=SECONDS, default=2.0, help="Seconds between two samples.")
@click.option("-s", "--sort", type=click.Choice(ORDERS), default="name", help="Order of the rows.")
@click.option("-p", "--partitions", "by_partition", is_flag=True, help="A row for each partition (plain: each nsqd).")
@click.option("-c", "--clients", is_flag=True, help="Show how many consumers take no more though messages wait.")
@click.option("-n", "--count", type=click.IntRange(1), help="End after this many samples.")
@cluster_options
def top(cluster: ClusterAccess, *, count: int | None, **options: Any) -> None:  # noqa: ANN401 - what Screen takes
    """Watch rates, depths, messages in flight, leaders and lags, until `q` or Ctrl-C.

    PATTERN is a part of TOPIC/CHANNEL, or a pattern such as orders/b*. Without a terminal, each sample is printed
    below the last one.
    """
    name = cluster.lookupd[0] + (f" +{len(cluster.lookupd) - 1}" if cluster.lookupd[1:] else "")
    screen = Screen(name, **options)
    has_end = count is not None
    run(_top(cluster, screen, count), stopped=None if has_end and not sys.stdout.isatty() else 0, has_end=has_end)


async def _top(cluster: ClusterAccess, screen: Screen, count: int | None) -> int:
    from rich.live import Live

    console = output_console()
    ended = asyncio.Event()
    async with cluster.admin() as admin:
        if not console.is_terminal:
            await _sample(admin, cluster.lookupd, screen, count, lambda: _print(console, screen))
            return 0
        with Live(console=console, screen=True, auto_refresh=False) as live:

            def draw() -> None:
                width, height = console.size
                live.update(screen.render(width, height, time.monotonic()), refresh=True)

            def pressed(key: str) -> None:
                if not screen.press(key):
                    ended.set()
                draw()

            with _keys(pressed):
                draw()
                sampling = asyncio.create_task(_sample(admin, cluster.lookupd, screen, count, draw))
                ending = asyncio.create_task(ended.wait())
                try:
                    await asyncio.wait({sampling, ending}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    ending.cancel()
                    sampling.cancel()
                    await asyncio.wait({sampling, ending})
        if not sampling.cancelled():
            sampling.result()
    return 0


async def _sample(
    admin: AdminClient, lookupd: Sequence[str], screen: Screen, count: int | None, show: Callable[[], None]
) -> None:
    async for found in looks(lookupd, admin, clients=screen.clients, interval=screen.interval, count=count):
        if isinstance(found, str):
            screen.fail(found)
        else:
            screen.take(found, time.monotonic())
        show()


def _print(console: Console, screen: Screen) -> None:
    console.print(screen.render(console.width, 10_000, time.monotonic()))


@contextlib.contextmanager
def _keys(pressed: Callable[[str], None]) -> Iterator[None]:
    """Call a function with each key, if standard input is a terminal; its settings are restored at the end."""
    if os.name != "posix" or sys.stdin is None or not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def read() -> None:
        typed = os.read(descriptor, 64).decode("utf-8", "ignore")
        for key in typed.replace("\x1b[A", "k").replace("\x1b[B", "j"):
            pressed(key)

    loop = asyncio.get_running_loop()
    tty.setcbreak(descriptor)
    try:
        loop.add_reader(descriptor, read)
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@dataclass(slots=True)
class Screen:
    """The state of the display.

    Attributes:
        name: What is looked at, such as the address.
        interval: Seconds between two samples.
        sort: The order of the rows, one of :data:`ORDERS`.
        by_partition: A row for each partition, not for each channel.
        clients: The consumers are read, too.
        pattern: Only rows whose ``topic/channel`` matches; empty for all.
        is_typing: The keys go into ``pattern``.
        first: The first row that is shown.
        reading: The newest sample. None before the first.
    """

    name: str
    interval: float
    sort: str = "name"
    by_partition: bool = False
    clients: bool = False
    pattern: str = ""
    is_typing: bool = False
    first: int = 0
    reading: Reading | None = None
    _moved: dict[TopicPartition, float] = field(default_factory=dict)
    _styles: dict[tuple[str, ...], str] = field(default_factory=dict)
    _trouble: str = ""

    # ------------------------------------------------------------ samples

    def take(self, reading: Reading, clock: float) -> None:
        """Take a sample; ``clock`` is the time of a clock that never goes back."""
        self.reading = reading
        self._moved = {place: at for place, at in self._moved.items() if clock - at < MARKED}
        self._moved |= dict.fromkeys(self.reading.moved, clock)
        levels = {tuple(each.subject.split("/")): each.is_bad for each in reversed(incidents(reading))}
        self._styles = {place: "red" if is_bad else "yellow" for place, is_bad in levels.items()}
        self._trouble = ""

    def fail(self, reason: str) -> None:
        """Take notice that there is no new sample."""
        self._trouble = reason

    # ------------------------------------------------------------ keys

    def press(self, key: str) -> bool:
        """Do what a key means. Return False if it ends the display."""
        if self.is_typing:
            self._type(key)
            return key not in ("\x03", "\x04")
        if key in _QUIT:
            return False
        if key == "s":
            self.sort = ORDERS[(ORDERS.index(self.sort) + 1) % len(ORDERS)]
        elif key == "p":
            self.by_partition = not self.by_partition
            self.first = 0
        elif key == "/":
            self.is_typing, self.pattern, self.first = True, "", 0
        elif key in ("j", "k"):
            self.first = max(0, self.first + (1 if key == "j" else -1))
        return True

    def _type(self, key: str) -> None:
        if key in _ENTER:
            self.is_typing = False
        elif key in _ERASE:
            self.pattern = self.pattern[:-1]
        elif key.isprintable():
            self.pattern += key

    # ------------------------------------------------------------ the display

    @property
    def rows(self) -> list[FigureRow]:
        """The rows that match, in their order."""
        if self.reading is None:
            return []
        rows = self.reading.parts if self.by_partition else self.reading.rows
        pattern = self.pattern if any(char in self.pattern for char in "*?[") else f"*{self.pattern}*"
        chosen = [row for row in rows if fnmatch.fnmatchcase(f"{row.topic}/{row.name}", pattern)]
        return in_order(chosen, self.sort)

    def render(self, width: int, height: int, clock: float) -> Group:
        """Return the display for a terminal.

        Args:
            width: Its columns.
            height: Its lines.
            clock: The time of the samples' clock.
        """
        from rich.console import Console, Group

        head = [*self._head(), *self._troubles(clock)]
        foot = self._foot(width)
        console = Console(width=width)
        taken = sum(len(line.wrap(console, width)) for line in (*head, foot))
        room = max(1, height - taken - 4)  # the title of the table, a rule and two empty lines
        return Group(*head, self._table(width, room, clock), foot)

    def _head(self) -> list[Text]:
        from rich.text import Text

        line = Text(f"nsq-ha top  {clean(self.name)}", style="bold")
        if self.reading is None:
            return [line, Text("reading the statistics ...")]
        reading, rows, least = self.reading, self.reading.rows, at_least(self.reading)
        lookupds = {each.url for each in reading.lookupds} | reading.remembered.lookupds.keys()
        parts = [
            "plain" if reading.is_plain else "partitioned",
            f"{len(lookupds & reading.answering)}/{len(lookupds)} nsqlookupds",
            "{}/{} nsqds".format(*expected(reading)),
            counted(len(reading.topics), "topic"),
        ]
        published = {row.topic: row.in_rate for row in rows if row.in_rate is not None}
        done = [row.out_rate for row in rows if row.out_rate is not None]
        totals = [
            f"in {least}{number(sum(published.values())) if published else '-'}/s",
            f"out {least}{number(sum(done)) if done else '-'}/s",
            f"depth {least}{number(reading.waiting)}",
            f"in flight {least}{number(sum(row.channel.in_flight for row in rows if row.channel))}",
        ]
        return [line, Text(", ".join(parts)), Text(", ".join(totals))]

    def _troubles(self, clock: float) -> list[Text]:
        from rich.text import Text

        found = list[tuple[str, bool]]()
        if self._trouble:
            since = span(max(0.0, clock - self.reading.kept.clock)) if self.reading is not None else None
            found.append((f"no new figures{f' for {since}' if since else ''}: {self._trouble}", True))
        if self.reading is not None:
            now = self.reading.at + max(0.0, clock - self.reading.kept.clock)
            found += [(each.sentence(now), each.is_bad) for each in folded(incidents(self.reading))]
        if len(found) > _MOST_WRONG:
            found[_MOST_WRONG:] = [(f"and {len(found) - _MOST_WRONG} more: nsq-ha doctor", False)]
        return [Text(clean(text), style="red" if is_bad else "yellow") for text, is_bad in found]

    def _table(self, width: int, room: int, clock: float) -> Table | Text:
        from rich.text import Text

        rows = self.rows
        if not rows:
            return Text("\nnothing matches\n" if self.pattern else "\nno topics\n", style="dim")
        self.first = min(self.first, max(0, len(rows) - room))
        shown = rows[self.first : self.first + room]
        chosen = fitting(columns_of(rows, by_partition=self.by_partition, rates=True), shown, width - 2)
        widths = (natural_width(each, shown) if each.is_number or each.need else None for each in chosen)
        columns = [(each.name, each.is_number, width) for each, width in zip(chosen, widths, strict=True)]
        cells = ([column.text(row) for column in chosen] for row in shown)
        return table_of(columns, cells, styles=[self.style(row, clock) for row in shown])

    def style(self, row: FigureRow, clock: float) -> str:
        """Return a colour: magenta if the leader moved, red or yellow if something is wrong with the channel."""
        moved_at = self._moved.get((row.topic, row.partition)) if row.partition is not None else None
        if moved_at is not None and clock - moved_at < MARKED:
            return "magenta"
        return self._styles.get((row.topic, row.name), "yellow" if row.state else "")

    def _foot(self, width: int) -> Text:
        from rich.text import Text

        if self.is_typing:
            return Text(f"filter: {clean(self.pattern)}_  (Enter ends it)", style="reverse")
        keys = [
            "q quit",
            f"s sort: {self.sort}",
            f"p {'channels' if self.by_partition else 'partitions'}",
            f"/ filter{f': {clean(self.pattern)}' if self.pattern else ''}",
            "j k scroll",
        ]
        if width >= 100:
            keys.append("red, yellow: see above, magenta: leader moved")
        return Text("  ".join(keys), style="dim")
