"""What Spark shows of an error: the reason in the first line, and no traceback."""

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from nsq_ha.devcluster import DevCluster
from nsq_ha.errors import DataLossError, NoLeaderError
from nsq_ha.spark.pyspark_private import reason_first
from tests.support.spark_queries import LIMIT

Options = Mapping[str, str]


def read(spark: SparkSession, given: Options, _: str) -> None:
    spark.read.format("nsq").options(**given).load().count()


def stream(spark: SparkSession, given: Options, checkpoint: str) -> None:
    rows = spark.readStream.format("nsq").options(**given).load()
    query = rows.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination(int(LIMIT))


def write(spark: SparkSession, given: Options, _: str) -> None:
    spark.range(2).select(f.lit("").alias("value")).write.format("nsq").options(**given).mode("append").save()


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("call", "given", "reason"),
    [
        (read, {"topik": "x"}, "nsq_ha.errors.ConfigError: option 'topik': is unknown"),
        (read, {"topic": "none"}, "nsq_ha.errors.TopicNotFoundError: option 'topic': there is no topic 'none'"),
        (read, {"failOnDataLoss": "perhaps"}, "nsq_ha.errors.ConfigError: option 'failOnDataLoss'"),
        (stream, {"topik": "x"}, "nsq_ha.errors.ConfigError: option 'topik': is unknown"),
        (
            stream,
            {"lookupd": "127.0.0.1:1"},
            "nsq_ha.errors.LookupUnavailableError: no nsqlookupd gave a usable answer",
        ),
        (write, {}, "nsq_ha.errors.ConfigError: row 0 of the task has no value"),
    ],
)
def test_the_reason_comes_first_and_alone(  # noqa: PLR0917 - three are fixtures
    spark: SparkSession,
    dev_cluster: DevCluster,
    tmp_path: Path,
    call: Callable[[SparkSession, Options, str], None],
    given: Options,
    reason: str,
) -> None:
    topic = dev_cluster.create_topic(f"reasons_{call.__name__}_{len(reason)}", 1)
    short = {"fetchTimeout": "1s", "fetchRetries": "0"} if call is not write else {}
    with pytest.raises(Exception, match="nsq_ha") as raised:
        call(spark, {"lookupd": ",".join(dev_cluster.lookupd), "topic": topic, **short, **given}, str(tmp_path))
    text = str(raised.value)
    assert reason in "\n".join(text.splitlines()[:2])
    assert "Traceback" not in text
    assert ".py" not in text


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    found: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", found)
    return found


@reason_first()
def fail(error: Exception) -> None:
    raise error


def test_an_error_is_logged_in_one_line(environment: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    cause = NoLeaderError("orders-0 has no leader")
    error = DataLossError("orders-0: gone")
    error.__cause__ = cause
    with caplog.at_level(logging.INFO, "nsq_ha.spark"), pytest.raises(DataLossError) as raised:
        fail(error)
    assert caplog.messages == ["DataLossError: orders-0: gone"]
    assert raised.value.__cause__ is cause  # for who catches it in Python
    assert "SPARK_HIDE_TRACEBACK" not in environment  # this is no worker of Spark


@pytest.mark.parametrize("variable", ["PYTHON_WORKER_FACTORY_SECRET", "PYTHON_WORKER_FACTORY_SOCK_PATH"])
def test_only_our_errors_in_a_worker_hide_their_traceback(environment: dict[str, str], variable: str) -> None:
    environment[variable] = "x"
    with pytest.raises(ZeroDivisionError):
        fail(ZeroDivisionError())
    assert "SPARK_HIDE_TRACEBACK" not in environment
    with pytest.raises(DataLossError):
        fail(DataLossError("gone"))
    assert environment["SPARK_HIDE_TRACEBACK"] == "1"
