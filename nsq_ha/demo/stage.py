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
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nsq_ha import tracelog
from nsq_ha.admin import AdminClient
from nsq_ha.demo import flights, spark_step
from nsq_ha.demo.faults import Faults
from nsq_ha.demo.job import Job, JobOptions
from nsq_ha.errors import ConfigError, LookupUnavailableError, NsqError, SparkUnavailableError, TopicNotFoundError

if TYPE_CHECKING:
    from nsq_ha.demo.audit import Audit
    from nsq_ha.demo.spark_step import SparkReport
    from nsq_ha.devcluster import DevCluster

PARTITIONS: Final = 4
REPLICAS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What to run, and where.

    Attributes:
        lookupd: Addresses of a real cluster's nsqlookupds. Empty for an embedded cluster.
        topic: The topic; created if it does not exist. None for a unique name.
        keep_topic: Whether to keep a topic that this run created.
        months: Months of 2013, from 1 to 12.
        spark: Whether Spark reads the topic back.
        page: Where to write Spark's page about every message. None for no page.
        job: The options of the job.
    """

    lookupd: tuple[str, ...] = ()
    topic: str | None = None
    keep_topic: bool = False
    months: tuple[int, ...] = (1,)
    spark: bool = True
    page: Path | None = None
    job: JobOptions = field(default_factory=JobOptions)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened.

    Attributes:
        seconds: Time since the job began; negative for preparations.
        text: One line.
    """

    seconds: float
    text: str


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
    """

    audit: Audit
    topic: str
    embedded: bool
    partitions: int
    replicas: int
    faults: Faults | None
    events: list[Event]
    spark: SparkReport | None = None
    spark_missing: str | None = None
    spark_error: str | None = None

    @property
    def is_clean(self) -> bool:
        """Whether nothing was lost or out of order, and there was no error; a missing Spark is not an error."""
        return self.audit.is_clean and self.spark_error is None

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values for JSON; times are in seconds."""
        audit, faults = self.audit, self.faults
        return {
            "ok": self.is_clean,
            "published": audit.published,
            "acknowledged": audit.acknowledged,
            "consumed": audit.consumed,
            "lost": audit.lost,
            "out_of_order": audit.out_of_order,
            "repeated": audit.repeated,
            "errors": audit.failed,
            "maybe_stored": audit.maybe_stored,
            "unanswered": audit.unanswered,
            "foreign": audit.foreign,
            "keys": audit.keys,
            "seconds": round(audit.seconds, 3),
            "messages_per_second": round(audit.messages_per_second, 1),
            "longest_publish_stall": round(audit.publish_stall.longest, 3),
            "longest_consume_stall": round(audit.consume_stall.longest, 3),
            "cluster": "embedded" if self.embedded else "real",
            "topic": self.topic,
            "partitions": self.partitions,
            "replicas": self.replicas,
            "leader_moves": faults.leader_moves if faults else 0,
            "nodes_killed": faults.nodes_killed if faults else 0,
            "nodes_restarted": faults.nodes_restarted if faults else 0,
            "leader_changes_seen": audit.leader_changes,
            "events": [{"seconds": round(event.seconds, 3), "text": event.text} for event in self.events],
            "spark": self.spark.as_dict() if self.spark else None,
            "spark_missing": self.spark_missing,
            "spark_error": self.spark_error,
        }


class Demo:
    """One run of the demo.

    Args:
        options: What to run.
        show: Called in the event loop with each event, as it happens.

    Attributes:
        audit: The counts, for a display. None until the job is ready.
    """

    def __init__(self, options: DemoOptions, *, show: Callable[[Event], None]) -> None:
        self.audit: Audit | None = None
        self._options = options
        self._show = show
        self._events: list[Event] = []
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock()

    async def run(self) -> Report:
        """Run everything and return the report.

        Raises:
            NsqError: The cluster cannot be used, the topic is not ordered, or the page cannot be written.
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
            trace_log = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nsq_ha_demo_")), "trace.jsonl")
            job = Job(lookupd, topic, rows, self._options.job, tell=self._tell)
            faults = Faults(cluster, job, tell=self._tell) if cluster is not None else None
            self.audit, self._began = job.audit, self._clock()
            with tracelog.write_to(trace_log, topic):
                await self._play(job, faults)
            report = Report(job.audit, topic, cluster is not None, partitions, replicas, faults, self._events)
            if self._options.spark:
                await self._read_back(report, lookupd, trace_log)
            return report

    def _tell(self, text: str) -> None:
        event = Event(self._clock() - self._began if self.audit is not None else -1.0, text)
        self._events.append(event)
        self._show(event)

    async def _play(self, job: Job, faults: Faults | None) -> None:
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
        await admin.create_topic(topic, PARTITIONS, replicas, ordered=True)
        self._tell(f"created ordered topic {topic}: {PARTITIONS} partitions, {replicas} replicas on {nodes} nodes")
        try:
            yield topic, PARTITIONS, replicas
        finally:
            if self._options.lookupd and not self._options.keep_topic:
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
        try:
            await admin.delete_topic(topic)
        except NsqError as error:
            self._tell(f"topic {topic} was not deleted, delete it later: {error}")

    async def _read_back(self, report: Report, lookupd: tuple[str, ...], trace_log: Path) -> None:
        self._tell("Spark reads the topic back")
        try:
            found = await _in_thread(lambda: spark_step.run(lookupd, report.topic, trace_log, self._options.page))
        except SparkUnavailableError as error:
            report.spark_missing = str(error)
            return
        except Exception as error:  # noqa: BLE001 - Spark raises many kinds of errors; they are shown unchanged
            report.spark_error = f"{type(error).__name__}: {error}"
            return
        report.spark = found
        if found.flights < report.audit.acknowledged:
            report.spark_error = f"Spark read only {found.flights} of {report.audit.acknowledged} acknowledged flights"


def _check_page(options: DemoOptions) -> None:
    """Fail now if the page could not be written after the run."""
    if options.spark and options.page is not None:
        folder = options.page.parent
        if not folder.is_dir():
            raise ConfigError(f"there is no folder {str(folder)!r} for the page {options.page.name}")
        if not os.access(folder, os.W_OK):
            raise ConfigError(f"the folder {str(folder.resolve())!r} is not writable: choose another page")


async def _in_thread(work: Callable[[], SparkReport]) -> SparkReport:
    """Run a long call in a thread; a cancelled caller does not wait for it."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[SparkReport] = loop.create_future()

    def settle(found: SparkReport | None, error: Exception | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        elif found is not None:
            done.set_result(found)

    def run() -> None:
        found, error = None, None
        try:
            found = work()
        except Exception as caught:  # noqa: BLE001 - raised again where it is awaited
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop was closed in the meantime
            loop.call_soon_threadsafe(settle, found, error)

    threading.Thread(target=run, name="nsq_ha demo spark", daemon=True).start()
    return await done


@contextlib.asynccontextmanager
async def _embedded() -> AsyncIterator[DevCluster]:
    try:
        from nsq_ha.devcluster import DevCluster  # needs starlette and uvicorn, which a real cluster does not
    except ModuleNotFoundError as error:
        raise ConfigError(f"the embedded cluster needs {error.name}: pip install 'nsq_ha[demo]'") from error

    cluster = DevCluster(nsqlookupds=2, nsqds=3)
    await asyncio.to_thread(cluster.__enter__)
    try:
        yield cluster
    finally:
        await asyncio.to_thread(cluster.__exit__, None, None, None)
