"""The event loop's side of the demo's streaming query: run it beside the job, wait for it, and report its result."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from nsq_ha.demo.background import in_thread
from nsq_ha.demo.flight_stream import FlightStream, StreamReport, StreamState

if TYPE_CHECKING:
    from nsq_ha.demo.audit import Audit
    from nsq_ha.demo.delays import ByCarrier


class Watch:
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
) -> AsyncIterator[Watch]:
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
    watch = Watch(stream, audit, tell=tell)

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
