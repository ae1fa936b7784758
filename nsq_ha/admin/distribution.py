"""How the sizes and times of messages are spread, as a partitioned nsqd counts them since its start. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, NamedTuple

from nsq_ha.admin.words import brief, size

if TYPE_CHECKING:
    from nsq_ha.admin.description import TopicStats

_SIZES: Final = ("100 B", *(size(1024 << n) for n in range(15)))
_WRITES: Final = tuple(brief(0.001 * 2**n) for n in range(16))
_TIMES: Final = tuple(brief(0.016 * 2**n) for n in range(11))


class Distribution(NamedTuple):
    """How many messages were below some limits.

    Attributes:
        topic: The topic.
        partition: The partition.
        channel: The channel; empty for the sizes, and the times to write.
        of: What is counted.
        counts: The number of messages of each class, such as ``< 2 ms``, that has some.
    """

    topic: str
    partition: int
    channel: str
    of: str
    counts: dict[str, int]

    @property
    def text(self) -> str:
        """The counts in one line."""
        return ", ".join(f"{name}: {count:,}" for name, count in self.counts.items())


def distributions(topic: TopicStats) -> Iterator[Distribution]:
    """Yield what is counted of a topic; nothing of a plain one."""
    for entry in topic.partitions:
        found = [("", "size", entry.sizes, _SIZES), ("", "write", entry.written_within, _WRITES)]
        for each in entry.channels:
            found.append((each.name, "publish to FIN", each.finished_within, _TIMES))
            found.append((each.name, "delivery to FIN", each.delivered_within, _TIMES))
        for channel, of, counts, limits in found:
            pairs = zip_longest(counts, limits[: len(counts)], fillvalue="")
            named = {f"< {limit}" if limit else "longer": int(count) for count, limit in pairs if count}
            if named:
                yield Distribution(entry.topic, entry.partition, channel, of, named)
