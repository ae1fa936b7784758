"""What ``nsq-ha top`` shows, and what its keys do.

Pure: samples, keys and the size of the terminal come in as arguments.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from nsq_ha.admin.findings import counted, problems
from nsq_ha.admin.reading import Reading
from nsq_ha.cli.figures import SORTS, columns_of, duration, in_order, number
from nsq_ha.cli.output import cell, clean
from nsq_ha.cli.tables import fitted_widths, fitting

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from nsq_ha.admin import ClusterState, ClusterStats
    from nsq_ha.admin.findings import Trouble
    from nsq_ha.admin.reading import Place, Row

ORDERS: Final = ("name", *SORTS)
"""The orders of the rows, in the order in which the key ``s`` goes through them."""

MARKED: Final = 30.0
"""Seconds for which a partition whose leader moved is marked."""

_QUIT: Final = ("q", "Q", "\x03", "\x04")
_ENTER: Final = ("\r", "\n", "\x1b")
_ERASE: Final = ("\x7f", "\b")

_TROUBLES: Final[Mapping[Trouble, str]] = {
    "lookupd": "nsqlookupd {}: {}",
    "unstable": "the cluster is not stable: a node joins or leaves, or replicas are missing",
    "silent": "nsqd {} does not answer: {}",
}
"""What the head says of a trouble, in this order; partitions without leader have rows of their own."""


@dataclass(slots=True)
class Screen:
    """The state of the display.

    Attributes:
        name: What is looked at, such as the context or the address.
        interval: Seconds between two samples.
        sort: The order of the rows, one of :data:`ORDERS`.
        is_reversed: The order is turned round.
        by_partition: A row for each partition, not for each channel.
        pattern: Only rows whose ``topic/channel`` matches; empty for all.
        is_typing: The keys go into ``pattern``.
        first: The first row that is shown.
    """

    name: str
    interval: float
    sort: str = "name"
    is_reversed: bool = False
    by_partition: bool = False
    pattern: str = ""
    is_typing: bool = False
    first: int = 0
    _reading: Reading | None = None
    _moved: dict[Place, float] = field(default_factory=dict)
    _trouble: str = ""

    # ------------------------------------------------------------ samples

    def take(self, state: ClusterState, stats: ClusterStats, wall: float, clock: float) -> None:
        """Take a sample.

        Args:
            state: The state of the cluster.
            stats: What the nsqds say.
            wall: The time in Unix seconds.
            clock: The time of a clock that never goes back.
        """
        earlier = None if self._reading is None else self._reading.kept
        self._reading = Reading(wall, stats=stats, cluster=state, earlier=earlier, clock=clock)
        self._moved = {place: at for place, at in self._moved.items() if clock - at < MARKED}
        self._moved |= dict.fromkeys(self._reading.moved, clock)
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
        elif key == "r":
            self.is_reversed = not self.is_reversed
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
    def rows(self) -> list[Row]:
        """The rows that match, in their order."""
        if self._reading is None:
            return []
        rows = self._reading.parts if self.by_partition else self._reading.rows
        pattern = self.pattern if any(char in self.pattern for char in "*?[") else f"*{self.pattern}*"
        chosen = [row for row in rows if fnmatch.fnmatchcase(f"{row.topic}/{row.name}", pattern)]
        return in_order(chosen, self.sort, reverse=self.is_reversed)

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
        if self._reading is None:
            return [line, Text("reading the statistics ...")]
        reading, rows = self._reading, self._reading.rows
        answering = sum(not each.error for each in reading.lookupds)
        parts = [
            "plain" if reading.is_plain else "partitioned",
            f"{answering}/{len(reading.lookupds)} nsqlookupds",
            f"{len(reading.nodes) - len(reading.silent)}/{len(reading.nodes)} nsqds",
            counted(len(reading.topics), "topic"),
        ]
        published = {row.topic: row.in_rate for row in rows if row.in_rate is not None}
        done = [row.out_rate for row in rows if row.out_rate is not None]
        totals = [
            f"in {number(sum(published.values())) if published else '-'}/s",
            f"out {number(sum(done)) if done else '-'}/s",
            f"depth {number(sum(row.depth or 0 for row in rows))}",
            f"in flight {number(sum(row.channel.in_flight for row in rows if row.channel))}",
        ]
        return [line, Text(", ".join(parts)), Text(", ".join(totals))]

    def _troubles(self, clock: float) -> list[Text]:
        from rich.text import Text

        found = []
        if self._trouble:
            since = duration(max(0.0, clock - self._reading.kept.clock)) if self._reading is not None else None
            found.append(f"no new figures{f' for {since}' if since else ''}: {self._trouble}")
        known = problems(self._reading) if self._reading is not None else {}
        for trouble, text in _TROUBLES.items():
            found += [text.format(subject, why) for (kind, subject), why in known.items() if kind == trouble]
        return [Text(clean(text), style="red", overflow="ellipsis", no_wrap=True) for text in found[:5]]

    def _table(self, width: int, room: int, clock: float) -> Table | Text:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        rows = self.rows
        if not rows:
            return Text("\nnothing matches\n" if self.pattern else "\nno topics\n", style="dim")
        self.first = min(self.first, max(0, len(rows) - room))
        shown = rows[self.first : self.first + room]
        columns = fitting(columns_of(rows, by_partition=self.by_partition, rates=True), shown, width - 2)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=False)
        widths = fitted_widths(columns, shown, width - 2)
        for column in columns:
            justify: Literal["right", "left"] = "right" if column.is_number else "left"
            most = widths[column.name]
            table.add_column(column.name, justify=justify, no_wrap=True, overflow="ellipsis", max_width=most)
        for row in shown:
            table.add_row(*(cell(column.text(row)) for column in columns), style=self.style(row, clock))
        return table

    def style(self, row: Row, clock: float) -> str:
        """Return a colour: magenta if the leader moved, red if nobody consumes it, yellow if it is stopped."""
        moved_at = self._moved.get((row.topic, row.partition)) if row.partition is not None else None
        if moved_at is not None and clock - moved_at < MARKED:
            return "magenta"
        if row.channel is not None and row.depth and not row.channel.clients:
            return "red"
        return "yellow" if row.state else ""

    def _foot(self, width: int) -> Text:
        from rich.text import Text

        if self.is_typing:
            return Text(f"filter: {clean(self.pattern)}_  (Enter ends it)", style="reverse")
        order = f"{self.sort}{' reversed' if self.is_reversed else ''}"
        keys = [
            "q quit",
            f"s sort: {order}",
            "r reverse",
            f"p {'channels' if self.by_partition else 'partitions'}",
            f"/ filter{f': {clean(self.pattern)}' if self.pattern else ''}",
            "j k scroll",
        ]
        if width >= 100:
            keys.append("red: nobody consumes, magenta: leader moved")
        return Text("  ".join(keys), style="dim")
