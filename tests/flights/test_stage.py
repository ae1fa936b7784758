import asyncio
import uuid
from typing import Literal
from unittest.mock import Mock

import pytest

from examples.flights import spark_step
from examples.flights.delays import Delays
from examples.flights.faults import DemoEvent
from examples.flights.spark_step import SparkReport
from examples.flights.stage import Demo, DemoOptions, Report
from nsq_ha.admin import AdminClient
from nsq_ha.devcluster import DevCluster
from nsq_ha.errors import ConfigError, NoLeaderError
from tests.engine.lookups.loopback import Fake

pytestmark = pytest.mark.usefixtures("few_flights")


def on(
    cluster: DevCluster,
    topic: str | None = None,
    *,
    keep_topic: bool = False,
    spark: Literal["none", "batch", "stream"] = "none",
) -> DemoOptions:
    return DemoOptions(lookupd=tuple(cluster.lookupd), topic=topic, keep_topic=keep_topic, spark=spark)


async def report_of(options: DemoOptions, events: list[DemoEvent] | None = None) -> Report:
    return await Demo(options, show=(events if events is not None else []).append).run()


async def topics(cluster: DevCluster) -> set[str]:
    async with AdminClient(cluster.lookupd) as admin:
        return {info.name for info in await admin.topics()}


def spark_report(flights_found: int, of_others: int = 0) -> SparkReport:
    whole = flights_found + of_others
    return SparkReport("t", 4, whole, whole, 0, 0, {}, (), 1.0, "4", of_run={"UA": Delays(flights_found)})


async def test_on_a_real_cluster_the_topic_is_deleted_at_the_end(cluster: DevCluster) -> None:
    report = await report_of(on(cluster))
    assert report.is_clean
    assert report.faults is None
    assert report.as_dict()["cluster"] == "real"
    assert report.topic.startswith("nsq_ha_demo_")
    assert report.topic not in await topics(cluster)


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_a_topic_that_never_became_usable_is_deleted(
    cluster: DevCluster, monkeypatch: pytest.MonkeyPatch, *, is_cancelled: bool
) -> None:
    create, made = AdminClient.create_topic, asyncio.Event()

    async def without_end(self: AdminClient, topic: str, *arguments: int, ordered: bool) -> None:
        await create(self, topic, *arguments, ordered=ordered)
        made.set()
        if not is_cancelled:
            raise NoLeaderError(f"creating topic {topic} did not finish within 150 s")
        await asyncio.Event().wait()

    monkeypatch.setattr(AdminClient, "create_topic", without_end)
    before, events = await topics(cluster), list[DemoEvent]()
    running = asyncio.create_task(report_of(on(cluster), events))
    await made.wait()
    if is_cancelled:
        running.cancel()
    with pytest.raises(asyncio.CancelledError if is_cancelled else NoLeaderError):
        await running
    assert await topics(cluster) == before
    assert events == []


@pytest.mark.slow
async def test_a_topic_that_was_there_is_used_and_never_deleted(cluster: DevCluster, topic: str) -> None:
    report = await report_of(on(cluster, topic))
    assert (report.is_clean, report.partitions) == (True, 2)
    assert topic in await topics(cluster)


async def test_an_ordinary_topic_is_refused(cluster: DevCluster) -> None:
    name = cluster.create_topic(f"demo_{uuid.uuid4().hex[:10]}", 1, 3)
    with pytest.raises(ConfigError, match="not ordered"):
        await report_of(on(cluster, name))
    assert name in await topics(cluster)


async def test_a_plain_cluster_is_refused() -> None:
    lookupd = await Fake().start()
    lookupd.answer("/nodes", {"producers": [{"broadcast_address": "127.0.0.1", "tcp_port": 4150, "topics": []}]})
    try:
        with pytest.raises(ConfigError, match="the demo needs the partitioned server"):
            await report_of(DemoOptions(lookupd=(lookupd.url,)))
    finally:
        await lookupd.stop()


@pytest.mark.parametrize("of_others", [0, 400])
async def test_what_spark_does_not_find_is_a_failure(
    cluster: DevCluster, monkeypatch: pytest.MonkeyPatch, of_others: int
) -> None:
    """A topic that was kept has the flights of other runs, too."""
    spark = Mock()
    monkeypatch.setattr(spark_step, "start", lambda: spark)
    monkeypatch.setattr(spark_step, "run", lambda *_, **__: spark_report(399, of_others))
    report = await report_of(on(cluster, spark="batch"))
    assert report.spark_error == "Spark read only 399 of 400 acknowledged flights"
    assert not report.is_clean
    spark.stop.assert_called_once_with()
