"""Set up a run of the demo: cluster, topic and trace log; afterwards delete them and return the report.

On a real cluster a run creates at most one topic, and deletes only a topic that it
created. It causes no faults there: that is up to the operator.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from examples.flights import flights, spark_step
from examples.flights.delays import by_carrier, total
from examples.flights.faults import DemoEvent, FaultScript
from examples.flights.flight_stream import FlightStream, StreamReport, StreamState, described, watching
from examples.flights.job import Job, JobOptions
from nsq_ha import tracelog
from nsq_ha.admin import AdminClient
from nsq_ha.base.threads import in_thread
from nsq_ha.errors import (
    ConfigError,
    DiscoveryError,
    LookupUnavailableError,
    NsqError,
    SparkUnavailableError,
    TopicNotFoundError,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from examples.flights.audit import Audit
    from examples.flights.live import LivePage
    from examples.flights.spark_step import SparkReport
    from nsq_ha.devcluster import DevCluster

PARTITIONS: Final = 4
REPLICAS: Final = 3

_COUNTS: Final = ("published", "acknowledged", "consumed", "lost", "out_of_order", "repeated")
_RARE_COUNTS: Final = ("maybe_stored", "unanswered", "foreign", "keys")
"""Counts of the audit that a report has under the same names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What to run, and where.

    Attributes:
        lookupd: Addresses of a real cluster's nsqlookupds. Empty for an embedded cluster.
        topic: The topic; created if it does not exist. None for a unique name.
        keep_topic: Whether to keep a topic that this run created.
        months: Months of 2013, from 1 to 12.
        spark: What Spark does: nothing, read the topic back at the end, or also stream it meanwhile.
        report: Where to write Spark's page about every message. None for none.
        page: Whether a page shows the run live in the browser.
        job: The options of the job.
    """

    lookupd: tuple[str, ...] = ()
    topic: str | None = None
    keep_topic: bool = False
    months: tuple[int, ...] = (1,)
    spark: Literal["none", "batch", "stream"] = "batch"
    report: Path | None = None
    page: bool = False
    job: JobOptions = field(default_factory=JobOptions)


@dataclass(slots=True)
class Report:
    """The result of a run.

    Attributes:
        audit: The counts.
        topic: The topic.
        embedded: Whether the cluster was embedded.
        partitions: Number of the topic's partitions.
        replicas: Number of each partition's replicas.
        faults: The faults caused in the cluster. None on a real one.
        events: Everything that happened, in order.
        spark: Spark's result. None if Spark was not requested, is missing or failed.
        spark_missing: Why Spark cannot run here, and what to install. None otherwise.
        spark_error: Why Spark failed, or what it did not find. None otherwise.
        stream: The result of the streaming query. None if it was not requested or failed.
    """

    audit: Audit
    topic: str
    embedded: bool
    partitions: int
    replicas: int
    faults: FaultScript | None
    events: list[DemoEvent]
    spark: SparkReport | None = None
    spark_missing: str | None = None
    spark_error: str | None = None
    stream: StreamReport | None = None

    @property
    def is_clean(self) -> bool:
        """Whether nothing was lost or out of order, and there was no error; a missing Spark is not an error."""
        return self.audit.is_clean and self.spark_error is None

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values for JSON; times are in seconds."""
        audit, faults = self.audit, self.faults
        return {
            "ok": self.is_clean,
            **{name: getattr(audit, name) for name in _COUNTS},
            "errors": audit.failed,
            **{name: getattr(audit, name) for name in _RARE_COUNTS},
            "seconds": round(audit.seconds, 3),
            "messages_per_second": round(audit.messages_per_second, 1),
            "longest_receipt_wait": round(audit.receipts.longest, 3),
            "longest_publish_stall": round(audit.publish_stall.longest, 3),
            "longest_consume_stall": round(audit.consume_stall.longest, 3),
            "cluster": "embedded" if self.embedded else "real",
            "topic": self.topic,
            "partitions": self.partitions,
            "replicas": self.replicas,
            **{name: getattr(faults, name, 0) for name in ("leader_moves", "nodes_killed", "nodes_restarted")},
            "leader_changes_seen": audit.leader_changes,
            "events": [{"seconds": round(event.seconds, 3), "text": event.text} for event in self.events],
            "spark": self.spark.as_dict() if self.spark else None,
            "spark_missing": self.spark_missing,
            "spark_error": self.spark_error,
            "stream": self.stream.as_dict() if self.stream else None,
        }


class Demo:
    """One run of the demo.

    Args:
        options: What to run.
        show: Called in the event loop with each event, as it happens.
        session: The Spark session to use and leave running. None to start one.
        opened: Awaited with the URL of the live page before the job begins.

    Attributes:
        audit: The counts, for a display. None until the job is ready.
        events: What has happened so far.
        stream: What the streaming query has shown last, for a display. None until it runs.
    """

    def __init__(
        self,
        options: DemoOptions,
        *,
        show: Callable[[DemoEvent], None],
        session: SparkSession | None = None,
        opened: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        self.audit: Audit | None = None
        self.events: list[DemoEvent] = []
        self.stream: StreamState | None = None
        self._session = session
        self._options = options
        self._show = show
        self._opened = opened
        self._live: LivePage | None = None
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock()

    async def run(self) -> Report:
        """Run everything and return the report.

        Raises:
            NsqError: The cluster cannot be used, the topic is not ordered, the page cannot be written, or a stream
                is requested and Spark cannot run here.
            OSError: The flights are not installed, or a port or file cannot be used.

        If cancelled, it closes and deletes what it created.
        """
        _check_page(self._options)
        rows = await asyncio.to_thread(flights.read, self._options.months)
        async with contextlib.AsyncExitStack() as stack:
            cluster: DevCluster | None = None
            lookupd = self._options.lookupd
            if not lookupd:
                cluster = await stack.enter_async_context(_embedded())
                lookupd = tuple(cluster.lookupd)
                self._tell(f"embedded cluster: nsqlookupd at {', '.join(lookupd)}")
            admin = await stack.enter_async_context(AdminClient(lookupd))
            topic, partitions, replicas = await stack.enter_async_context(self._topic(admin))
            starting: Awaitable[SparkSession] | None = None
            if self._options.spark == "batch":
                starting = await stack.enter_async_context(_spark(self._session))
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nsq_ha_demo_")))
            job = Job(lookupd, topic, rows, self._options.job, tell=self._tell)
            faults = FaultScript(cluster, job, tell=self._tell) if cluster is not None else None
            watch = None
            if self._options.spark == "stream":
                self._tell("Spark starts a streaming query of the topic")
                checkpoint = folder / "checkpoint"
                stream = FlightStream(
                    lookupd, topic, job.run_id, flights=len(rows), folder=checkpoint, session=self._session
                )
                watch = await stack.enter_async_context(watching(stream, job.audit, tell=self._tell, show=self._follow))
            if self._options.page:
                await stack.enter_async_context(self._page(admin, job, cluster))
            self.audit, self._began = job.audit, self._clock()
            with tracelog.write_to(folder / "trace.jsonl", topic):
                await self._play(job, faults)
            report = Report(job.audit, topic, cluster is not None, partitions, replicas, faults, self.events)
            if watch is not None:
                report.spark_error = await watch.catch_up(self._options.job.stall_limit)
            session = watch.stream.session if watch is not None else starting
            if session is not None:
                await self._read_back(report, lookupd, folder / "trace.jsonl", job.run_id, session)
            if watch is not None and report.spark is not None:
                report.stream = watch.report(batch=report.spark.of_run, file=by_carrier(rows))
                report.spark_error = report.spark_error or report.stream.difference
            if self._live is not None:
                self._live.end(is_clean=report.is_clean, error=report.spark_error)
            return report

    def _follow(self, state: StreamState) -> None:
        self.stream = state

    def _tell(self, text: str, mark: str = "", /) -> None:
        event = DemoEvent(self._clock() - self._began if self.audit is not None else -1.0, text, mark, time.time())
        self.events.append(event)
        self._show(event)

    @contextlib.asynccontextmanager
    async def _page(self, admin: AdminClient, job: Job, cluster: DevCluster | None) -> AsyncIterator[None]:
        """Show a job in the browser until it ends."""
        try:
            from examples.flights.live import LivePage, shown  # needs starlette and uvicorn
        except ModuleNotFoundError as error:
            raise ConfigError(f"the live page needs {error.name}: pip install 'nsq_ha[cluster,cli]'") from error
        names = {address: name for name, address in cluster.nsqds.items()} if cluster is not None else {}
        self._live = LivePage(job.audit, job.topic, names, self.events)
        async with shown(admin, self._live) as url:
            self._tell(f"live page: {url}")
            if self._opened is not None:
                await self._opened(url)
            yield

    async def _play(self, job: Job, faults: FaultScript | None) -> None:
        script = asyncio.create_task(faults.run()) if faults is not None else None
        try:
            await job.run()
        finally:
            if script is not None:
                await script

    @contextlib.asynccontextmanager
    async def _topic(self, admin: AdminClient) -> AsyncIterator[tuple[str, int, int]]:
        """Yield the topic, its partitions and replicas; afterwards delete the topic if it was created here."""
        infos = await admin.nodes()
        if any(info.node.is_plain for info in infos):
            raise ConfigError(
                "the demo needs the partitioned server, and these nsqlookupds are of a plain (upstream) cluster: leave"
                " lookupd out to run it on an embedded cluster"
            )
        existing = await self._existing(admin)
        if existing is not None:
            yield existing
            return
        topic = self._options.topic or f"nsq_ha_demo_{secrets.token_hex(4)}"
        nodes = len(infos)
        if not nodes:
            raise LookupUnavailableError("no nsqd is registered at the nsqlookupds")
        replicas = min(REPLICAS, nodes)
        try:
            await admin.create_topic(topic, PARTITIONS, replicas, ordered=True)
        except (asyncio.CancelledError, DiscoveryError):
            # It may exist, without leaders so far.
            await self._delete(admin, topic)
            raise
        self._tell(f"created ordered topic {topic}: {PARTITIONS} partitions, {replicas} replicas on {nodes} nodes")
        try:
            yield topic, PARTITIONS, replicas
        finally:
            await self._delete(admin, topic)

    async def _existing(self, admin: AdminClient) -> tuple[str, int, int] | None:
        topic = self._options.topic
        if topic is None:
            return None
        try:
            meta = (await admin.describe(topic)).view.meta
        except TopicNotFoundError:
            return None
        if meta is None or not meta.ordered:
            raise ConfigError(f"topic {topic!r} is not ordered: the demo needs an ordered topic")
        return topic, meta.partition_num, meta.replica

    async def _delete(self, admin: AdminClient, topic: str) -> None:
        if not self._options.lookupd or self._options.keep_topic:
            return
        try:
            with contextlib.suppress(TopicNotFoundError):
                await admin.delete_topic(topic)
        except NsqError as error:
            self._tell(f"topic {topic} was not deleted, delete it later: {error}")

    async def _read_back(
        self,
        report: Report,
        lookupd: tuple[str, ...],
        trace_log: Path,
        run_id: str,
        session: SparkSession | Awaitable[SparkSession],
    ) -> None:
        self._tell("Spark reads the topic back")
        marks = tuple((event.at, event.mark) for event in self.events if event.mark)
        page = spark_step.PageOptions(self._options.report, self._options.job.rate, marks)
        try:
            spark = await session if isinstance(session, Awaitable) else session
            found = await in_thread(
                lambda: spark_step.run(spark, lookupd, report.topic, trace_log, page, run_id=run_id)
            )
        except SparkUnavailableError as error:
            report.spark_missing = str(error)
            return
        except Exception as error:  # noqa: BLE001 - Spark raises many kinds of errors; they are shown unchanged
            report.spark_error = report.spark_error or described(error)
            return
        report.spark = found
        flights_found = total(found.of_run).flights
        if flights_found < report.audit.acknowledged:
            missing = f"Spark read only {flights_found} of {report.audit.acknowledged} acknowledged flights"
            report.spark_error = report.spark_error or missing


def _check_page(options: DemoOptions) -> None:
    """Fail now if the page could not be written after the run."""
    if options.spark != "none" and options.report is not None:
        folder = options.report.parent
        if not folder.is_dir():
            raise ConfigError(f"there is no folder {str(folder)!r} for the page {options.report.name}")
        if not os.access(folder, os.W_OK):
            raise ConfigError(f"the folder {str(folder.resolve())!r} is not writable: choose another page")


@contextlib.asynccontextmanager
async def _embedded() -> AsyncIterator[DevCluster]:
    try:
        from nsq_ha.devcluster import DevCluster  # needs starlette and uvicorn, which a real cluster does not
    except ModuleNotFoundError as error:
        raise ConfigError(f"the embedded cluster needs {error.name}: pip install 'nsq_ha[cluster,cli]'") from error

    cluster = DevCluster(nsqlookupds=2, nsqds=3)
    await asyncio.to_thread(cluster.__enter__)
    try:
        yield cluster
    finally:
        await asyncio.to_thread(cluster.__exit__, None, None, None)


@contextlib.asynccontextmanager
async def _spark(session: SparkSession | None) -> AsyncIterator[Awaitable[SparkSession]]:
    """Start Spark while flights are published, unless it runs already, and stop it afterwards."""
    starting = asyncio.create_task(in_thread(lambda: session if session is not None else spark_step.start()))
    try:
        yield starting
    finally:
        # Whoever cancels does not wait for it: Spark ends with this process.
        starting.cancel()
        with contextlib.suppress(Exception, asyncio.CancelledError):
            started = await starting
            if session is None:
                await in_thread(started.stop)
