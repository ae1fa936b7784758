"""One pipeline on a standalone cluster and through Spark Connect: the exact rows, whoever runs the tasks."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from integration.jobs import numbered_topic
from integration.spark_servers import LOOPBACK, ROOT, connect, environment, standalone
from nsq_ha.policy.sharding import partition_for

if TYPE_CHECKING:
    from integration.cluster import ClusterUnderTest

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

PIPELINE = Path(__file__).with_name("spark_pipeline.py")
COUNT = 6000
PARTITIONS = 4
LIMIT = 400.0

ON_THE_CLUSTER = {
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.host": LOOPBACK,
    "spark.driver.memory": "1g",
    "spark.executor.memory": "512m",
    "spark.executorEnv.PYTHONPATH": str(ROOT),
    "spark.pyspark.python": sys.executable,
    # Both workers must be there: else the first one would run everything before the second has started.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
}


@pytest.fixture
async def stocked(cluster: ClusterUnderTest) -> str:
    """A topic of two partitions with numbered messages."""
    return await numbered_topic(cluster, COUNT)


@pytest.fixture
async def target(cluster: ClusterUnderTest) -> str:
    return await asyncio.to_thread(cluster.create_topic, PARTITIONS, 2, ordered=True)


def run(master: str, config: dict[str, str], cluster: ClusterUnderTest, topics: tuple[str, str], folder: Path) -> Any:  # noqa: ANN401
    job = {
        "master": master,
        "config": config,
        "lookupd": ",".join(cluster.lookupd),
        "from": topics[0],
        "to": topics[1],
        "partitions": PARTITIONS,
        "folder": str(folder),
    }
    command = [sys.executable, str(PIPELINE), json.dumps(job)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=environment(), check=False)
    assert ran.returncode == 0, ran.stderr[-6000:]
    return json.loads(ran.stdout.splitlines()[-1])


def assert_exact(result: Any) -> None:  # noqa: ANN401
    numbers = [f"{number:06}" for number in range(COUNT)]
    assert result["batch"] == {str(last): COUNT // 10 for last in range(10)}
    assert result["stream"] == numbers
    assert result["batches"] >= 3
    assert sorted(value for _, value in result["written"]) == numbers
    last: dict[str, str] = {}
    for partition, value in result["written"]:
        key = str(int(value) % 50)
        assert partition == partition_for(key, PARTITIONS)
        assert last.get(key, "") < value, "rows of one key are in order"
        last[key] = value


async def test_two_workers_of_a_standalone_cluster(
    cluster: ClusterUnderTest, stocked: str, target: str, tmp_path: Path
) -> None:
    def there() -> Any:  # noqa: ANN401
        with standalone(tmp_path) as master:
            return run(master, ON_THE_CLUSTER, cluster, (stocked, target), tmp_path)

    result = await asyncio.to_thread(there)
    assert_exact(result)
    assert len(result["processes"]) == 2, "both executors run tasks"


async def test_spark_connect(cluster: ClusterUnderTest, stocked: str, target: str, tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="Spark Connect needs pyspark[connect]")

    def there() -> Any:  # noqa: ANN401
        with connect(tmp_path) as server:
            return run(server, {}, cluster, (stocked, target), tmp_path)

    result = await asyncio.to_thread(there)
    assert_exact(result)
