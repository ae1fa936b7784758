"""What a task of Spark does, as a program: reads a topic, lets go of each batch, and tells its peak of memory."""

import json
import sys

from pyspark.sql.types import BinaryType, StructField, StructType

from benchmarks.peers.clients.measure import peak_bytes
from nsq_ha.spark.cluster import BlockingCluster
from nsq_ha.spark.options import ReadOptions
from nsq_ha.spark.plan.batch_planner import plan
from nsq_ha.spark.read.columns import Projection
from nsq_ha.spark.read.range_reader import read_ranges


def main(given: str) -> None:
    options = ReadOptions.parse(json.loads(given))
    with BlockingCluster(options.lookupd) as cluster:
        parts = plan(options, cluster)
    before, rows = peak_bytes(), 0
    for part in parts:
        for batch in read_ranges([part], options, Projection(StructType([StructField("value", BinaryType())]))):
            rows += batch.num_rows
    sys.stdout.write(json.dumps({"rows": rows, "before": before, "grown": peak_bytes() - before}))


if __name__ == "__main__":
    main(sys.argv[1])
