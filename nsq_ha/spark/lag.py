"""How far a streaming query is behind the logs it reads, from Spark's own progress.

Spark reports after each micro-batch where the query is and where the logs end. It shows the source under a name such
as ``PythonMicroBatchStream...@28231755``, which a source in Python cannot change, and adds nothing up.
:func:`lag_of` reads such a report, and :class:`LagListener` passes each one to a function.

**Source:** PySpark's ``StreamingQueryProgress``; ``checkpoint`` for the form of offsets.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from nsq_ha.errors import ConfigError
from nsq_ha.spark import logger
from nsq_ha.spark.checkpoint import OLD, PLANNED, from_json, special_in

_MOST_ENDS: Final = 1000


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a query is behind the log of one partition.

    Attributes:
        topic: The topic.
        partition: The partition.
        read_to: Offset in the partition's log up to which the query has read, in bytes.
        log_end: Offset of the log's end when the micro-batch was planned. The query may have read further since.
        is_old: Whether the partition's leader did not answer then: ``log_end`` is what was known before, and the log
            may hold more.
    """

    topic: str
    partition: int
    read_to: int
    log_end: int
    is_old: bool = False

    @property
    def behind_bytes(self) -> int:
        """Bytes of the log that the query has not read, as far as its end is known."""
        return max(0, self.log_end - self.read_to)


@dataclass(frozen=True, slots=True)
class StreamLag:
    """How far a query was behind after a micro-batch.

    Attributes:
        query_name: The query's name. None if it has none.
        query_id: The query's id, the same after each restart from its checkpoint.
        batch_id: Number of the micro-batch.
        timestamp: When it began, in ISO 8601, as Spark reports it.
        rows: Number of rows of the micro-batch, of all sources.
        row_bytes: Bytes of the log for each row of the micro-batch. None if it read nothing.
        partitions: Each partition of ``format("nsq")`` that the query reads, sorted.
        behind_seconds: Age of the oldest message that the query has not read, at least: the time since a report in
            which the log already held it. 0 if it has caught up. None in the result of :func:`lag_of`, which knows one
            report only.
    """

    query_name: str | None
    query_id: str
    batch_id: int
    timestamp: str
    rows: int
    row_bytes: float | None
    partitions: tuple[PartitionLag, ...]
    behind_seconds: float | None = None

    @property
    def source_name(self) -> str:
        """A readable name of the source, such as ``nsq[flights, orders]``, in place of Spark's description."""
        return f"nsq[{', '.join(dict.fromkeys(each.topic for each in self.partitions))}]"

    @property
    def behind_bytes(self) -> int:
        """Bytes of all logs that the query has not read."""
        return sum(each.behind_bytes for each in self.partitions)

    @property
    def has_caught_up(self) -> bool:
        """Whether the query has read all there was; not while the leader of a partition is away."""
        return not self.behind_bytes and not any(each.is_old for each in self.partitions)

    @property
    def behind_rows(self) -> int | None:
        """Estimated number of messages that the query has not read, at the size of those it just read.

        None if the micro-batch read nothing and the query is behind, so that the size is unknown.
        """
        if not self.behind_bytes:
            return 0
        return None if not self.row_bytes else round(self.behind_bytes / self.row_bytes)

    def __str__(self) -> str:
        """Describe it in one line."""
        behind = [
            f"{each.topic}-{each.partition} {each.behind_bytes:,}{' or more, its leader is away' * each.is_old}"
            for each in self.partitions
            if each.behind_bytes or each.is_old
        ]
        rows = "" if not self.behind_rows else f", about {self.behind_rows:,} messages"
        where = f" ({', '.join(behind)})" if behind else ""
        name = self.query_name or self.query_id
        return f"query {name} batch {self.batch_id}: {self.behind_bytes:,} bytes behind{rows}{where}"


def lag_of(progress: StreamingQueryProgress | Mapping[str, Any]) -> StreamLag | None:
    """Return how far a query is behind, from one report of its progress.

    Args:
        progress: ``query.lastProgress``, an element of ``query.recentProgress``, or the progress of an event.

    Returns:
        The lag. None if no source of the query is ``format("nsq")`` with offsets; ``delivery=ack`` has none.
        None also for the first micro-batch after a restart if it repeats one that was planned before: Spark has
        not asked where the logs end, so that nobody knows how far the query is behind. The next one has the lag.
    """
    report: dict[str, Any] = json.loads(progress.json) if hasattr(progress, "json") else dict(progress)
    found: list[PartitionLag] = []
    read = 0
    rows = 0
    for source in report.get("sources") or ():
        begun, ended, known = (_decoded(source.get(f"{name}Offset")) for name in ("start", "end", "latest"))
        if not ended or PLANNED not in ended or known is None:
            continue
        try:
            starts, ends, latest = map(from_json, (begun or {}, ended, known))
            old = special_in(known, OLD)
        except ConfigError:
            continue
        rows += int(source.get("numInputRows") or 0)
        for place in ends.keys() | latest.keys():
            end = ends.get(place, 0)  # without one it was never read so far
            found.append(PartitionLag(*place, read_to=end, log_end=latest.get(place, end), is_old=place in old))
            # A partition that the batch read first, or that went back, has no start to count from.
            read += max(0, end - starts.get(place, end))
    if not found:
        return None
    return StreamLag(
        query_name=report.get("name"),
        query_id=str(report.get("id")),
        batch_id=int(report.get("batchId") or 0),
        timestamp=str(report.get("timestamp")),
        rows=rows,
        row_bytes=read / rows if read and rows else None,
        partitions=tuple(sorted(found, key=lambda each: (each.topic, each.partition))),
    )


def _decoded(offset: object) -> Mapping[str, Any] | None:
    """Return the offsets of a source, which are JSON as text or decoded. None if they are no JSON object."""
    with contextlib.suppress(ValueError):
        offset = json.loads(offset) if isinstance(offset, str) else offset
    return offset if isinstance(offset, Mapping) else None


class LagListener(StreamingQueryListener):
    """Passes the lag of every query of a session to a function, after each micro-batch.

    Add it with ``spark.streams.addListener(LagListener(report))``. Spark calls it in a thread of its own, one report
    after the other; a function that takes long delays the next reports, not the queries.

    Args:
        report: Called with each :class:`StreamLag`. Its errors are logged. None logs each lag at level INFO.
    """

    def __init__(self, report: Callable[[StreamLag], object] | None = None) -> None:
        self._report = report or (lambda lag: logger.info("%s", lag))
        # Times of reports and ends of the log that the query has not reached, by query and partition.
        self._ends: dict[tuple[str, str, int], list[tuple[float, int]]] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's names, here and below
        """Do nothing: there is no progress yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Report the lag of a query that reads ``format("nsq")``."""
        try:
            lag = lag_of(event.progress)
            if lag is not None:
                self._report(dataclasses.replace(lag, behind_seconds=self._age(lag)))
        except Exception:  # noqa: BLE001 - logged
            logger.exception("the lag of query %s could not be reported", event.progress.id)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Forget the query; its last progress was reported."""
        for place in [place for place in self._ends if place[0] == str(event.id)]:
            del self._ends[place]

    def _age(self, lag: StreamLag) -> float:
        """Remember where the logs end, and return the age of the oldest message that was not read."""
        now = datetime.fromisoformat(lag.timestamp).timestamp()
        oldest = now
        for part in lag.partitions:
            place = lag.query_id, part.topic, part.partition
            ends = self._ends.get(place, [])
            if ends and part.log_end < ends[-1][1] and not part.is_old:
                ends = []  # Of another log: the topic was re-created.
            ends = [(at, end) for at, end in ends if end > part.read_to]
            if part.log_end > (ends[-1][1] if ends else part.read_to):
                ends.append((now, part.log_end))
            if len(ends) > _MOST_ENDS:
                del ends[1::2]
            self._ends[place] = ends
            oldest = min([oldest, *(at for at, _ in ends[:1])])
        return now - oldest
