"""Plain nsqds for ``python -m benchmarks.spark``: a backlog, without a limit and with a small spool."""

import os
import statistics
import tempfile
import time
from functools import partial
from typing import Any, Final, NamedTuple

from pyspark.sql import SparkSession

from benchmarks.peers.nsqd import BINARY_VARIABLE, Nsqd, running
from benchmarks.processes import Usage, listeners, used
from benchmarks.spark_rounds import Effort, interleaved

SIZES: Final = {200: 200_000, 16_384: 20_000}
"""Rows by size of the bodies."""
LIMITS: Final[dict[str, dict[str, str]]] = {"ack": {}, "ack, maxSpoolBytes=2m": {"maxSpoolBytes": "2m"}}
TIMEOUT: Final = 600


def ack(spark: SparkSession, lookupd: str, effort: Effort) -> dict[str, Any]:
    """Measure reading a backlog to its end, with all that a query costs once; empty without ``UPSTREAM_NSQD_BIN``."""
    found: dict[str, Any] = {}
    if BINARY_VARIABLE not in os.environ:
        return found
    with running() as nsqd:
        for size, count in SIZES.items():
            rows = effort.of(count)
            seen: dict[str, list[_Seen]] = {label: [] for label in LIMITS}
            backlog = _Backlog(nsqd, rows, size)
            kinds = {
                label: partial(_drained, spark, backlog, options, seen[label]) for label, options in LIMITS.items()
            }
            rates = interleaved(kinds, effort)
            # Without those of the round that warms up.
            last = {label: seen[label][-len(each) :] for label, each in rates.items()}
            found[str(size)] = {
                "rows": rows,
                "rates": rates,
                "cpu": {label: [each.cpu for each in of] for label, of in last.items()},
                "batches": {label: [each.batch for each in of] for label, of in last.items()},
            }
    return found


class _Backlog(NamedTuple):
    nsqd: Nsqd
    rows: int
    size: int


class _Seen(NamedTuple):
    """CPU of a query, and the median of the rows of its micro-batches."""

    cpu: Usage
    batch: float


def _drained(spark: SparkSession, backlog: _Backlog, options: dict[str, str], seen: list[_Seen]) -> float:
    """Fill a topic, read it by ``availableNow``, and return rows a second; the query ends a second after its last row.

    Args:
        spark: The session.
        backlog: The server, and the messages.
        options: Of the read.
        seen: Takes the rest of what is measured.
    """
    nsqd, rows, size = backlog
    topic = f"ack{time.monotonic_ns()}"
    nsqd.create(topic, ["spark"])
    nsqd.fill(topic, rows, b"x" * size)
    with tempfile.TemporaryDirectory() as folder:
        given = {"nsqd": nsqd.address, "topic": topic, "channel": "spark", "delivery": "ack", **options}
        frame = spark.readStream.format("nsq").options(spool=f"{folder}/spool", **given).load()
        writer = frame.writeStream.format("noop").option("checkpointLocation", f"{folder}/checkpoint")
        servers = listeners(frozenset({int(nsqd.address.rpartition(":")[2])}))
        before, began = used(servers), time.perf_counter()
        query = writer.trigger(availableNow=True).start()
        if not query.awaitTermination(TIMEOUT):
            raise RuntimeError(f"{rows} rows were not read within {TIMEOUT} s")
        seconds, spent = time.perf_counter() - began, used(servers).since(before)
        counts = [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]
    nsqd.delete(topic)
    if sum(counts) < rows:
        raise RuntimeError(f"read {sum(counts)} of {rows} rows")
    # The nsqd is a process below this one, too.
    cpu = spent._replace(ours=spent.ours - spent.servers)
    seen.append(_Seen(cpu, statistics.median(counts)))
    return rows / seconds
