"""What a task of Spark does, as a program: reads a topic, lets go of each batch, and tells its peak of memory."""

import json
import resource
import sys
from pathlib import Path

from pyspark.sql.types import BinaryType, StructField, StructType

from nsq_ha.spark.cluster import BlockingCluster
from nsq_ha.spark.options import ReadOptions
from nsq_ha.spark.plan.batch_planner import plan
from nsq_ha.spark.read.columns import Projection
from nsq_ha.spark.read.range_reader import read_ranges


def peak() -> int:
    """Bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        # What getrusage tells there begins with the peak of the process that started this one.
        return 1024 * int(status.read_text().partition("VmHWM:")[2].split()[0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main(given: str) -> None:
    options = ReadOptions.parse(json.loads(given))
    with BlockingCluster(options.lookupd) as cluster:
        parts = plan(options, cluster)
    before, rows = peak(), 0
    for part in parts:
        for batch in read_ranges([part], options, Projection(StructType([StructField("value", BinaryType())]))):
            rows += batch.num_rows
    sys.stdout.write(json.dumps({"rows": rows, "before": before, "grown": peak() - before}))


if __name__ == "__main__":
    main(sys.argv[1])
