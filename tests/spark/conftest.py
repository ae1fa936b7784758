"""A dev cluster, filled topics and one Spark session for the tests of this folder."""

import socket
import struct
from collections.abc import Callable, Iterator, Sequence

import pytest
from pyspark.sql import SparkSession

from nsq_ha.devcluster import DevCluster
from nsq_ha.protocol.encoding import MAGIC, encode_mpub, encode_mpub_ext
from nsq_ha.spark.cluster import BlockingCluster
from nsq_ha.spark.session import local_session
from tests.devcluster.probes import until
from tests.support.spark_queries import PATIENT

Publish = Callable[[str, int, Sequence[bytes]], None]


@pytest.fixture(scope="session")
def dev_cluster() -> Iterator[DevCluster]:
    # Elections take 0.44 s instead of 22.
    with DevCluster(time_scale=0.02) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def asked(dev_cluster: DevCluster) -> Iterator[BlockingCluster]:
    """The blocking questions, as Spark's processes ask them."""
    with BlockingCluster(tuple(dev_cluster.lookupd)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def publish(dev_cluster: DevCluster) -> Publish:
    """Publish bodies to one partition, in order; with a header ``n`` on an extended topic. From any thread."""

    def send(topic: str, partition: int, bodies: Sequence[bytes]) -> None:
        with BlockingCluster(tuple(dev_cluster.lookupd)) as cluster:
            until(lambda: cluster.view(topic).meta is not None)  # a topic has just grown: they differ for a moment
            view = cluster.view(topic)
        assert view.meta is not None
        address = view.leaders[partition].host, view.leaders[partition].tcp_port
        with socket.create_connection(address, 10) as connection, connection.makefile("rb") as answers:
            connection.sendall(MAGIC)
            for start in range(0, len(bodies), 1000):
                lot = bodies[start : start + 1000]
                if view.meta.extend_support:
                    headed = [(b'{"n":"%d"}' % number, body) for number, body in enumerate(lot, start)]
                    connection.sendall(encode_mpub_ext(topic, partition, headed))
                else:
                    connection.sendall(encode_mpub(topic, partition, lot))
                (size,) = struct.unpack(">i", answers.read(4))
                assert answers.read(size) == b"\x00\x00\x00\x00OK"

    return send


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for all: starting one takes seconds. The second number lets a failed task run again."""
    session = local_session("tests", threads="2,4", config=PATIENT)
    yield session
    session.stop()
