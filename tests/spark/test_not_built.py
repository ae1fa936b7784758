"""What is parsed and not built is refused by name, never taken for something else."""

import pytest
from pyspark.sql.types import StructType

from nsq_ha.errors import ConfigError
from nsq_ha.spark.source import NsqDataSource


def test_delivery_by_ack_is_refused_until_it_is_built() -> None:
    source = NsqDataSource({"lookupd": "h", "topic": "t", "delivery": "ack", "spool": "s", "channel": "c"})
    with pytest.raises(ConfigError, match="option 'delivery': 'ack' is not built yet"):
        source.streamReader(StructType())
