"""One pipeline through Spark Connect: the exact rows, whoever runs the tasks."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from integration.cluster import ClusterUnderTest
from integration.jobs import numbered_topic
from integration.spark_servers import connect, environment
from nsq_ha.policy.sharding import partition_for

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

PIPELINE = Path(__file__).with_name("spark_pipeline.py")
COUNT = 6000
PARTITIONS = 4
LIMIT = 400.0


async def test_spark_connect(cluster: ClusterUnderTest, tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="Spark Connect needs pyspark[connect]")
    source = await numbered_topic(cluster, COUNT)
    target = await asyncio.to_thread(cluster.create_topic, PARTITIONS, 2, ordered=True)

    def there() -> dict[str, Any]:
        with connect(tmp_path) as server:
            lookupd = ",".join(cluster.lookupd)
            job = {"server": server, "lookupd": lookupd, "from": source, "to": target, "partitions": PARTITIONS}
            command = [sys.executable, str(PIPELINE), json.dumps(job | {"folder": str(tmp_path)})]
            ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=environment(), check=False)
        assert ran.returncode == 0, ran.stderr[-6000:]
        found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
        return found

    result = await asyncio.to_thread(there)
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
