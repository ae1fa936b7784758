"""Streams and writes in Spark that the tests of this folder share."""

import asyncio
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from nsq_ha.admin.nsqd_http import NsqdHttp
from nsq_ha.devcluster import DevCluster
from nsq_ha.policy.topology import Node
from nsq_ha.spark.cluster import BlockingCluster
from tests.spark.conftest import Publish
from tests.support.spark_queries import run_to_end


class Stream:
    """A stream of one topic into Parquet files, which can be stopped and begun again."""

    def __init__(self, spark: SparkSession, dev_cluster: DevCluster, topic: str, folder: Path, **options: str) -> None:
        self.spark = spark
        self.topic = topic
        self.folder = folder
        self.options = {
            "lookupd": ",".join(dev_cluster.lookupd),
            "topic": topic,
            "startingOffsets": "earliest",
            "fetchTimeout": "1s",
            **options,
        }

    def start(self, *, now: bool = False) -> StreamingQuery:
        frame = self.spark.readStream.format("nsq").options(**self.options).load()
        writer = frame.select("partition", "offset", "value").writeStream.format("parquet")
        writer = writer.option("checkpointLocation", f"{self.folder}/checkpoint").option("path", f"{self.folder}/out")
        return (writer.trigger(availableNow=True) if now else writer).start()

    def drain(self) -> list[dict[str, Any]]:
        """Read all that is there; gives the progress of each micro-batch."""
        return run_to_end(lambda: self.start(now=True))

    def values(self) -> list[bytes]:
        rows = self.spark.read.parquet(f"{self.folder}/out").select("value").collect()
        return sorted(bytes(row.value) for row in rows)


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%06d" % number for number in range(first, first + count)]


def spread(publish: Publish, topic: str, bodies: list[bytes], partitions: int = 2) -> None:
    for partition in range(partitions):
        publish(topic, partition, bodies[partition::partitions])


def write(frame: DataFrame, dev_cluster: DevCluster, topic: str, **options: str) -> None:
    writer = frame.write.format("nsq").mode("append").option("lookupd", dev_cluster.lookupd[0])
    writer.options(**({"topic": topic} if topic else {}), **options).save()


def read(spark: SparkSession, dev_cluster: DevCluster, topic: str, **options: str) -> DataFrame:
    return spark.read.format("nsq").options(lookupd=dev_cluster.lookupd[0], topic=topic, **options).load()


def channels_of(asked: BlockingCluster, topic: str) -> list[str]:
    """Return the channels of a topic, as its leaders name them."""

    async def ask(node: Node) -> list[str]:
        async with NsqdHttp(node) as nsqd:
            return [channel.name for each in await nsqd.stats(topic) for channel in each.channels]

    return [name for node in set(asked.view(topic).leaders.values()) for name in asyncio.run(ask(node))]
