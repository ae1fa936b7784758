"""The cluster as a whole: it starts, answers, and leaves nothing behind."""

import socket
import threading

import pytest

from nsq_ha.devcluster import ChangeRefusedError, DevCluster
from nsq_ha.errors import ConfigError
from tests.support import web


def threads() -> set[threading.Thread]:
    """Without the one that logs: it stays as long as the process."""
    return {each for each in threading.enumerate() if each.name != "nsq_ha logs and reports"}


def test_it_starts_and_leaves_no_thread_behind() -> None:
    before = threads()
    with DevCluster(nsqds=1, nsqlookupds=1) as cluster:
        assert web.get(cluster.lookupd[0] + "/ping").text == "OK"
        port = int(cluster.nsqds["nsqd-0"].rpartition(":")[2])
    assert threads() == before
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), 1)


def test_controls_work_inside_a_running_loop_and_after_close() -> None:
    with DevCluster(nsqds=3) as cluster:
        assert cluster.create_topic("orders", 4, ordered=True) == "orders"
        assert cluster.leader("orders", 0) in cluster.nsqds
    cluster.close()
    with pytest.raises(RuntimeError, match="context manager"):
        cluster.kill("nsqd-0")


def test_an_unknown_node_is_named() -> None:
    with DevCluster(nsqds=1, nsqlookupds=1) as cluster, pytest.raises(KeyError, match="nsqd-7"):
        cluster.kill("nsqd-7")


def test_a_topic_needs_nodes_a_name_and_a_partition() -> None:
    with DevCluster(nsqds=1, nsqlookupds=1) as cluster:
        refused = "^topic 'orders' was not created with 1 partitions with 3 replicas on 1 nsqds: .*No node is available"
        with pytest.raises(ChangeRefusedError, match=refused):
            cluster.create_topic("orders", 1, 3, ordered=True)
        with pytest.raises(ConfigError, match="'two words' is not a valid topic name"):
            cluster.create_topic("two words")
        with pytest.raises(ValueError, match="topic 'orders' needs a partition, not 0"):
            cluster.create_topic("orders", 0)
