"""Places in one partition's log: the boundary at an offset, a time or a number of messages.

Owns the search for message boundaries, by questions to the leader. Every offset
that a plan holds comes from here, or is a bound of the log.

**Source:** Spark reference 1.1 (``message/get``), 2.1 ("Boundary rule", "Limits").
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from nsq_ha.errors import NsqError
from nsq_ha.spark import survey

if TYPE_CHECKING:
    from nsq_ha.discovery.nsqd_http import Search, StoredMessage
    from nsq_ha.policy.topology import Node
    from nsq_ha.spark.cluster import Cluster, Extent

K = TypeVar("K")

_NS_OF_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Positions:
    """Searches one partition's log. All offsets are bytes.

    Attributes:
        topic: The topic.
        partition: The partition.
        node: Its leader.
        extent: What the log holds.
        cluster: Whom to ask.
        patience: Seconds to wait for what is written and not committed yet.
    """

    topic: str
    partition: int
    node: Node
    extent: Extent
    cluster: Cluster
    patience: float

    @property
    def name(self) -> str:
        """The partition for error texts."""
        return f"{self.topic}-{self.partition}"

    def boundary(self, offset: int) -> int | None:
        """Return where the first message at or behind ``offset`` begins, or where the log ends.

        Returns:
            None when ``offset`` lies inside the last message, or the log's tail is not committed in time.

        Raises:
            NsqError: The leader gave no usable answer; look it up again.
        """
        if offset <= self.extent.start:
            return self.extent.start
        if offset >= self.extent.end:
            return self.extent.end
        until = time.monotonic() + self.patience
        while True:
            try:
                return self.cluster.boundary(self.topic, self.partition, self.node, offset)
            except NsqError:
                # What is written and not committed yet is not found: that passes within moments.
                if time.monotonic() >= until:
                    return None
            time.sleep(survey.PAUSE)

    def before(self, offset: int) -> StoredMessage | None:
        """Return the last message that begins before ``offset``. None when none is kept or committed.

        Raises:
            NsqError: The leader gave no usable answer; look it up again.
        """
        if offset <= self.extent.start:
            return None
        number = self.extent.messages
        if offset < self.extent.end:
            first = self._find("virtual_offset", offset)
            if first is None:
                return None
            number = first.number - 1
        return self._find("count", number)

    def rows_behind(self, offset: int) -> int:
        """Return how many messages begin at or behind ``offset``, as far as they are counted."""
        if offset >= self.extent.end:
            return 0
        first = self._find("virtual_offset", offset)
        return 0 if first is None else max(0, self.extent.messages - first.number + 1)

    def after_rows(self, start: int, rows: int) -> int:
        """Return the boundary ``rows`` messages behind ``start``; the log's end when there are no more.

        Raises:
            NsqError: The leader gave no usable answer; look it up again.
        """
        if rows <= 0:
            return start
        until = time.monotonic() + self.patience
        while True:
            first = self._find("virtual_offset", start)
            if first is not None:
                if self.extent.messages - first.number + 1 <= rows:
                    return self.extent.end
                beyond = self._find("count", first.number + rows)
                if beyond is not None:
                    return min(beyond.offset, self.extent.end)
            # Written and not committed yet.
            if time.monotonic() >= until:
                return self.extent.end
            time.sleep(survey.PAUSE)

    def after_bytes(self, start: int, count: int) -> int:
        """Return the first boundary at least ``count`` bytes behind ``start``, so that one message fits at least.

        Raises:
            NsqError: The leader gave no usable answer; look it up again.
        """
        if count <= 0:
            return start
        wanted = start + count
        until = time.monotonic() + self.patience
        while wanted < self.extent.end:
            found = self._find("virtual_offset", wanted)
            if found is not None:
                return min(found.offset, self.extent.end)
            # Inside the last message nothing follows; else the tail is not committed yet.
            if self._find("count", self.extent.messages) is not None or time.monotonic() >= until:
                break
            time.sleep(survey.PAUSE)
        return self.extent.end

    def at_time(self, milliseconds: int) -> int | None:
        """Return where the first message that is not older begins. None when all are older.

        Raises:
            NsqError: The leader gave no usable answer; look it up again.
        """
        wanted = milliseconds * _NS_OF_MS
        low, high = self.extent.start, self.extent.end
        answer: int | None = None
        while low < high:
            middle = (low + high) // 2
            found = self._find("virtual_offset", middle)
            if found is None or found.timestamp_ns >= wanted:
                answer = answer if found is None else found.offset
                high = middle
            else:
                low = found.offset + 1
        return answer

    def cuts(self, start: int, end: int, pieces: int, rows: int | None) -> list[int]:
        """Return boundaries inside ``(start, end)`` that cut it into about ``pieces``, or by ``rows`` messages.

        Raises:
            NsqError: The leader gave no usable answer; look it up again.
        """
        found: set[int] = set()
        for number in range(1, pieces):
            stored = self._find("virtual_offset", start + (end - start) * number // pieces)
            if stored is not None:
                found.add(stored.offset)
        if rows is not None and (first := self._find("virtual_offset", start)) is not None:
            number = first.number + rows
            while (stored := self._find("count", number)) is not None and stored.offset < end:
                found.add(stored.offset)
                number += rows
        return sorted(cut for cut in found if start < cut < end)

    def _find(self, mode: Search, position: int) -> StoredMessage | None:
        return self.cluster.stored(self.topic, self.partition, self.node, mode, position)


def shares(limit: int, backlogs: Mapping[K, int]) -> dict[K, int]:
    """Divide ``limit`` by backlog, so that the sum is exactly it, or every backlog where all fit."""
    total = sum(backlogs.values())
    if total <= limit:
        return dict(backlogs)
    parts = {key: limit * backlog // total for key, backlog in backlogs.items()}
    rest = limit - sum(parts.values())
    by_remainder: Sequence[K] = sorted(backlogs, key=lambda key: limit * backlogs[key] % total, reverse=True)
    for key in by_remainder[:rest]:
        parts[key] += 1
    return parts
