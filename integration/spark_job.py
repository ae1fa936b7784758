"""A stream from a topic to Parquet files, as a program of its own that tests may kill.

The file sink keeps a log of its batches, so what it holds is exactly what the checkpoint says.
"""

import json
import sys

from nsq_ha.spark.session import local_session


def main(given: str) -> None:
    told = json.loads(given)
    spark = local_session("job", threads="2,4", config={"spark.driver.memory": "1g"})
    stream = spark.readStream.format("nsq").options(**told["options"]).load()
    writer = stream.select("partition", "offset", "value").writeStream.format("parquet").outputMode("append")
    writer = writer.option("path", told["out"]).option("checkpointLocation", told["checkpoint"])
    query = (writer.trigger(availableNow=True) if told["now"] else writer).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1])
