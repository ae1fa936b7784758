"""The demo's streaming query: keep a table of delays by carrier up to date while flights are published.

Spark reads the topic as a stream, drops repeated flights, and adds each micro-batch to its
sums. :class:`FlightStream` starts that query and keeps its newest table and lag; the sums are
those of ``spark_step``, so a batch read of the same topic must give the same. :class:`StreamWatch` is the
event loop's side: it runs the query beside the job, waits for it, and reports its result.
It needs the extra ``nsq_ha[spark]`` and Java.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from examples.flights.delays import ByCarrier, Delays, differing, total
from examples.flights.spark_step import SESSION_CONFIG, delay_sums, delays_of, flights_of
from nsq_ha.base.threads import in_thread
from nsq_ha.spark.session import local_session

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from examples.flights.audit import Audit
    from nsq_ha.spark.lag import LagListener, StreamLag


_CHECK_INTERVAL: Final = 1.0
_BATCHES: Final = 20
_SMALLEST_BATCH: Final = 100


@dataclass(frozen=True, slots=True)
class StreamState:
    """What the query has shown last.

    Attributes:
        sums: The delays by carrier.
        flights: Number of flights in them.
        batches: Number of micro-batches so far.
        lag: How far the query was behind the logs when Spark planned its last micro-batch. None before the first.
    """

    sums: ByCarrier = field(default_factory=dict)
    flights: int = 0
    batches: int = 0
    lag: StreamLag | None = None


@dataclass(frozen=True, slots=True)
class StreamReport:
    """The same sums from three sources.

    Attributes:
        batches: Number of micro-batches.
        most_behind: The largest number of acknowledged flights that were not in the table after a micro-batch.
        catch_up_seconds: Time from the end of the job until the table had all flights.
        streamed: Delays by carrier of the streaming query.
        batch: Those of a batch read of the whole topic.
        file: Those of the data file.
    """

    batches: int
    most_behind: int
    catch_up_seconds: float
    streamed: ByCarrier
    batch: ByCarrier
    file: ByCarrier

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain dicts, lists and numbers, for JSON."""
        return {**asdict(self), "differing": self.differing}

    @property
    def results(self) -> dict[str, ByCarrier]:
        """The three results by name."""
        return {"streaming query": self.streamed, "batch read": self.batch, "data file": self.file}

    @property
    def differing(self) -> list[str]:
        """Carriers whose sums are not the same in all three."""
        return differing(self.results.values())

    @property
    def difference(self) -> str | None:
        """What differs, in words. None if nothing does."""
        if not self.differing:
            return None
        flights = ", ".join(f"{name} {total(sums).flights:,}" for name, sums in self.results.items())
        return f"the sums of {', '.join(self.differing)} differ (flights: {flights})"


class FlightStream:
    """One run of the query.

    Args:
        lookupd: Addresses of nsqlookupds.
        topic: The topic; its messages are as for :func:`examples.flights.spark_step.run`.
        run_id: Only flights of this run of the demo count.
        flights: The number of flights that are expected; a micro-batch reads a twentieth of them at most.
        folder: An empty folder for the checkpoint.
        session: The Spark session to use and leave running. None to start one.
    """

    def __init__(
        self,
        lookupd: Sequence[str],
        topic: str,
        run_id: str,
        *,
        flights: int,
        folder: Path,
        session: SparkSession | None = None,
    ) -> None:
        self.state: StreamState = StreamState()
        self.session = session
        self._options = {
            "lookupd": ",".join(lookupd),
            "topic": topic,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(max(flights // _BATCHES, _SMALLEST_BATCH)),
        }
        self._run_id = run_id
        self._folder = folder
        self._changed: Callable[[StreamState], object] = lambda _: None
        self._is_ours = session is None
        self._news = threading.Condition()
        self._query: StreamingQuery | None = None
        self._listener: LagListener | None = None

    def start(self, changed: Callable[[StreamState], object]) -> None:
        """Start Spark, if there is no session, and the query. Blocks for some seconds.

        Args:
            changed: Called with each new state, in a thread of Spark's; it must not block.

        Raises:
            SparkUnavailableError: Java or PySpark is missing; the text says what to install.
            pyspark.errors.PySparkException: The query could not be started.
        """
        self._changed = changed
        if self.session is None:
            # The second number lets a task run again that a fault has ended.
            self.session = local_session("flights", threads="*,4", config=SESSION_CONFIG)
        from nsq_ha.spark.lag import LagListener  # imports pyspark, which may be missing

        self._listener = LagListener(self._lagged)
        self.session.streams.addListener(self._listener)
        rows = self.session.readStream.format("nsq").options(**self._options).load()
        own = flights_of(rows).where(f"run = '{self._run_id}' and number is not null")
        table = delay_sums(own.dropDuplicates(["number"]))
        writer = table.writeStream.outputMode("complete").foreachBatch(self._take).queryName(f"flights {self._run_id}")
        self._query = writer.option("checkpointLocation", str(self._folder)).start()

    def wait(self, flights: int, limit: float) -> None:
        """Wait until the table has this number of flights.

        Raises:
            TimeoutError: No flight was added for ``limit`` seconds.
            pyspark.errors.PySparkException: The query failed.
        """
        known, until = -1, time.monotonic() + limit
        while self.state.flights < flights:
            if self.state.flights > known:
                known, until = self.state.flights, time.monotonic() + limit
            if time.monotonic() > until:
                raise TimeoutError(f"the streaming query has {known:,} of {flights:,} flights and adds none")
            query = self._query
            if query is None or not query.isActive:
                raise (query and query.exception()) or RuntimeError("the streaming query has ended")
            with self._news:
                self._news.wait(_CHECK_INTERVAL)

    def stop(self) -> None:
        """Stop the query. Spark stays, for the batch read."""
        if self._query is not None:
            self._query.stop()

    def close(self) -> None:
        """Stop the query, and Spark if this object started it."""
        self.stop()
        if self.session is None:
            return
        if self._is_ours:
            self.session.stop()
        elif self._listener is not None:
            self.session.streams.removeListener(self._listener)

    def _take(self, table: DataFrame, batch: int) -> None:
        sums: dict[str, Delays] = {row["carrier"]: delays_of(row) for row in table.collect()}
        self._show(sums=sums, flights=total(sums).flights, batches=batch + 1)

    def _lagged(self, lag: StreamLag) -> None:
        if self._query is not None and lag.query_id == self._query.id:
            self._show(lag=lag)

    def _show(self, **news: Any) -> None:  # noqa: ANN401 - fields of StreamState
        # Spark calls from two threads.
        with self._news:
            self.state = replace(self.state, **news)
            self._changed(self.state)
            self._news.notify_all()


class StreamWatch:
    """What a run knows of its streaming query.

    Args:
        stream: The query.
        audit: The counts of the job.
        tell: Called with each event, as one line.

    Attributes:
        stream: The query.
        behind: Number of acknowledged flights that were not in the table after the last micro-batch.
    """

    def __init__(self, stream: FlightStream, audit: Audit, *, tell: Callable[[str], None]) -> None:
        self.stream = stream
        self.behind: int = 0
        self._most_behind = 0
        self._catch_up_seconds = 0.0
        self._audit = audit
        self._tell = tell
        self._quarters = 0

    def take(self, state: StreamState) -> None:
        """Record a new state of the query; report when another quarter of the flights is in its table."""
        self.behind = max(0, self._audit.acknowledged - state.flights)
        self._most_behind = max(self._most_behind, self.behind)
        quarters = 4 * state.flights // self._audit.total
        if quarters > self._quarters:
            self._quarters = quarters
            self._tell(f"the stream has {state.flights:,} flights and is {self.behind:,} behind")

    async def catch_up(self, limit: float) -> str | None:
        """Wait until the query has read all acknowledged flights, then stop it.

        Args:
            limit: Give up after this many seconds without a new flight.

        Returns:
            Why the query failed. None if it did not.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            await in_thread(lambda: self.stream.wait(self._audit.acknowledged, limit))
            await in_thread(self.stream.stop)
        except Exception as error:  # noqa: BLE001 - Spark raises many kinds of errors; they are shown unchanged
            return described(error)
        finally:
            self._catch_up_seconds = clock() - began
        return None

    def report(self, *, batch: ByCarrier, file: ByCarrier) -> StreamReport:
        """Return the query's result beside those of a batch read and of the data file."""
        state = self.stream.state
        return StreamReport(
            batches=state.batches,
            most_behind=self._most_behind,
            catch_up_seconds=round(self._catch_up_seconds, 3),
            streamed=state.sums,
            batch=batch,
            file=file,
        )


@contextlib.asynccontextmanager
async def watching(
    stream: FlightStream, audit: Audit, *, tell: Callable[[str], None], show: Callable[[StreamState], None]
) -> AsyncIterator[StreamWatch]:
    """Run a streaming query while the block runs.

    Args:
        stream: The query, not started.
        audit: The counts of the job.
        tell: Called in the event loop with each event, as one line.
        show: Called in the event loop with each state.

    Raises:
        SparkUnavailableError: Spark cannot run here.
    """
    loop = asyncio.get_running_loop()
    watch = StreamWatch(stream, audit, tell=tell)

    def take(state: StreamState) -> None:
        show(state)
        watch.take(state)

    def changed(state: StreamState) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed in the meantime
            loop.call_soon_threadsafe(take, state)

    try:
        await in_thread(lambda: stream.start(changed))
        yield watch
    finally:
        await in_thread(stream.close)


def described(error: Exception) -> str:
    """Return the kind and text of an error."""
    return f"{type(error).__name__}: {error}"
