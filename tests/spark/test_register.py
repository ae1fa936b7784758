"""Several queries in one session: they share no map of variables that Spark changes without a lock."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from nsq_ha.devcluster import DevCluster
from nsq_ha.spark import session
from nsq_ha.spark.pyspark_private import SPECULATES
from nsq_ha.spark.source import NsqDataSource
from tests.spark.conftest import Publish
from tests.spark.streams import Stream, numbered, spread


class Context:
    """Stands in for a SparkContext."""

    def __init__(self, master: str) -> None:
        self.master = master
        self.environment = {"SPARK_BUFFER_SIZE": "1", "OTHER": "kept"}
        self.pythonExec = "python3"

    def getConf(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        return {"spark.speculation": "true"}


class Session:
    """Stands in for a session; ``dataSource`` is itself."""

    def __init__(self, context: Context | None) -> None:
        if context is not None:
            self.sparkContext = context
        self.dataSource = self
        self.registered: list[object] = []

    def register(self, source: object) -> None:
        self.registered.append(source)

    def createDataFrame(self, data: object, schema: str) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""


@pytest.mark.parametrize(
    ("master", "variable", "python"),
    [
        ("local[2]", None, sys.executable),
        ("local[2]", "/usr/bin/python3.11", "python3"),
        ("spark://master:7077", None, "python3"),
    ],
)
def test_workers_of_a_local_session_run_this_interpreter(
    monkeypatch: pytest.MonkeyPatch, master: str, variable: str | None, python: str
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    if variable is not None:
        monkeypatch.setenv("PYSPARK_PYTHON", variable)
    context = Context(master)
    session.register(given := Session(context))  # type: ignore[arg-type]
    assert given.registered == [NsqDataSource]
    assert context.pythonExec == python
    assert context.environment["SPARK_BUFFER_SIZE"] == "1"
    assert context.environment[SPECULATES] == "true"
    assert context.environment["SPARK_PYTHON_RUNTIME"] == "PYTHON_WORKER"
    assert context.environment["OTHER"] == "kept"


def test_a_session_of_spark_connect_has_no_context() -> None:
    session.register(given := Session(None))  # type: ignore[arg-type]
    assert given.registered == [NsqDataSource]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_starting_a_stream_adds_no_variable_to_what_the_queries_of_a_session_share(
    spark: SparkSession, dev_cluster: DevCluster, publish: Publish, tmp_path: Path
) -> None:
    """With the format that Spark finds by itself there are four more after the first stream."""

    def shared() -> set[str]:
        manager = spark._jsparkSession.sessionState().dataSourceManager()
        return set(manager.lookupDataSource("nsq").dataSourceCls().envVars())

    before = shared()
    topic = dev_cluster.create_topic("register", 2)
    spread(publish, topic, numbered(100))
    stream = Stream(spark, dev_cluster, topic, tmp_path)
    stream.drain()
    assert stream.values() == numbered(100)
    assert shared() == before


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_thread_that_registers_the_format_starts_a_stream_that_writes(spark: SparkSession, tmp_path: Path) -> None:
    def start() -> None:
        session.register(spark)
        rows = spark.readStream.format("rate").load().selectExpr("cast(value as string) as value")
        writer = rows.writeStream.format("nsq").options(lookupd="http://127.0.0.1:1", topic="t")
        writer.option("checkpointLocation", str(tmp_path)).start().stop()

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(start).exception() is None
