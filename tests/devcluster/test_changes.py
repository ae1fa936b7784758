"""Topics that are made, moved, grown and deleted under their clients."""

import asyncio
import functools
from typing import Any

import httpx
import pytest

from nsq_ha import Consumer, Producer
from nsq_ha.admin import AdminClient
from nsq_ha.devcluster import ChangeRefusedError, DevCluster
from tests.devcluster.clock import held
from tests.devcluster.probes import LIMIT, NOT_LEADER, NOT_WRITABLE, Probe, consumer, finish, probe, until
from tests.devcluster.wire import attempts, identify, pub


def distributed_ids(seen: Probe) -> dict[str, str]:
    """Name of each node and the id that operators know it by."""
    answer = seen.http.get(seen.cluster.http_address(seen.leader()) + "/coordinator/stats")
    ids = [member["node_id"] for member in answer.json()["topic_coord_stats"][0]["isr_stats"]]
    return {
        name: found
        for name, address in seen.cluster.nsqds.items()
        for found in ids
        if found.split(":")[2] == address.rpartition(":")[2]
    }


def move(seen: Probe, former: str, to: str) -> httpx.Response:
    ids = distributed_ids(seen)
    params = {"topic": "orders", "partition": "0", "move_leader": "true", "move_from": ids[former], "move_to": ids[to]}
    return seen.http.post(seen.cluster.lookupd[0] + "/topic/partition/move", params=params)


def test_writes_stop_while_a_leader_moves_and_no_lookup_names_it() -> None:
    with probe() as seen:
        former, to = seen.leader(), seen.cluster.followers("orders")[0]
        with held(seen.cluster):
            assert move(seen, former, to).status_code == 200
            assert seen.publish(former, b"refused") == NOT_WRITABLE
            assert seen.lookup("w") == seen.lookup("r") == {}
            again = move(seen, former, to)
            assert (again.status_code, again.json()["message"]) == (400, "the cluster is unstable")
        until(lambda: seen.lookup("w") == {0: to})
        assert seen.publish(former, b"refused") == NOT_LEADER
        assert seen.publish(to, b"stored") == b"OK"
        assert seen.stored() == [b"stored"]


def test_a_leader_moves_to_a_node_that_held_nothing() -> None:
    with probe(nsqds=4) as seen:
        former = seen.leader()
        assert seen.publish(former, b"kept") == b"OK"
        (spare,) = set(seen.cluster.nsqds) - {former, *seen.cluster.followers("orders")}
        assert seen.cluster.move_leader("orders", to=spare) == spare
        assert seen.lookup("w") == {0: spare}
        assert former not in seen.cluster.followers("orders")
        assert seen.publish(former, b"gone") == b"E_TOPIC_NOT_EXIST "
        assert seen.publish(spare, b"stored") == b"OK"
        assert seen.stored() == [b"kept", b"stored"]


def test_a_move_that_cannot_be_done_is_refused() -> None:
    with probe() as seen:
        leader, follower = seen.leader(), seen.cluster.followers("orders")[0]
        assert seen.cluster.move_leader("orders", to=leader) == leader
        seen.cluster.kill(follower)
        with pytest.raises(ChangeRefusedError, match="unstable"):
            seen.cluster.move_leader("orders", to=follower)


def test_a_move_to_a_node_that_dies_under_way_leaves_the_leader_where_it_was() -> None:
    with probe() as seen:
        former, to = seen.leader(), seen.cluster.followers("orders")[0]
        with held(seen.cluster):
            assert move(seen, former, to).status_code == 200
            seen.cluster.kill(to)
        until(lambda: seen.publish(former, b"stored") == b"OK")
        assert seen.lookup("w") == {0: former}


def test_two_nsqlookupds_disagree_while_a_topic_grows() -> None:
    with probe(2, scale=0.2) as seen, consumer(seen, partition=0):
        with held(seen.cluster) as clock:
            seen.cluster.expand("orders", 4)
            clock.until(lambda: seen.partition_num(0) == 4)
            assert len(seen.lookup("w", 0)) == 2  # it names the number before the leaders
            clock.until(lambda: len(seen.lookup("w", 1)) == 4)
            assert seen.partition_num(1) == 2  # the other one names it after them
        until(lambda: seen.partition_num(1) == 4)


def test_an_upgrade_stops_writing_and_ends_consumers_that_cannot_read_headers() -> None:
    with probe(ordered=False) as seen:
        leader = seen.leader()
        with consumer(seen, word="SUB") as before:
            params = {"topic": "orders", "upgradeext": "true"}
            with held(seen.cluster):
                assert seen.http.post(seen.cluster.lookupd[0] + "/topic/meta/update", params=params).status_code == 200
                assert seen.publish(leader, b"refused") == NOT_WRITABLE
            until(lambda: seen.publish(leader, b"next") == b"OK")
            assert before.ends()
        with seen.wire(leader, b"SUB orders billing 0\n") as refused:
            assert refused.answer().startswith(b"E_SUB_EXTEND_NEED ")
        with seen.wire(leader, identify(extend_support=True), b"SUB orders billing 0\nRDY 1\n") as after:
            after.answer()
            assert after.answer() == b"OK"
            data = after.message()
            assert (attempts(data), data[26:]) == (1, b"\0next")


async def test_a_consumer_reads_on_when_its_topic_is_upgraded() -> None:
    with await asyncio.to_thread(DevCluster(nsqds=1, time_scale=0.02).__enter__) as cluster:
        await asyncio.to_thread(cluster.create_topic, "orders", 1, 1)
        options: dict[str, Any] = {"lookupd": cluster.lookupd, "lookup_timeout": LIMIT, "connect_timeout": LIMIT}
        async with Consumer("orders", "billing", **options) as consuming, Producer(**options) as producing:
            for number in range(3):
                if number == 1:
                    async with AdminClient(cluster.lookupd) as admin:
                        await admin.update_topic("orders", extended=True, timeout=LIMIT)
                await producing.publish("orders", b"%d" % number, timeout=LIMIT)
                async with asyncio.timeout(LIMIT), await anext(consuming) as message:
                    assert message.body == b"%d" % number


def test_a_topic_that_has_grown_works() -> None:
    with probe(2, scale=0.02) as seen, consumer(seen, partition=0):
        seen.cluster.expand("orders", 4)
        until(lambda: seen.partition_num(0) == seen.partition_num(1) == 4)
        until(lambda: len(seen.lookup("w", 0)) == len(seen.lookup("w", 1)) == 4)
        assert seen.publish(seen.leader(3), b"new", 3) == b"OK"
        assert seen.stored(3) == [b"new"]
        # The new partition knows no channel; what was published there before is not delivered.
        with consumer(seen, partition=3) as late:
            assert late.is_quiet(0.05)
            assert seen.publish(seen.leader(3), b"newer", 3) == b"OK"
            assert late.message().endswith(b"newer")
        with pytest.raises(ChangeRefusedError):
            seen.cluster.expand("orders", 3)
        with pytest.raises(ChangeRefusedError, match="Key not found"):
            seen.cluster.expand("unknown", 3)


def test_an_ordinary_topic_grows_only_where_each_partition_has_nodes_of_its_own() -> None:
    with DevCluster(time_scale=0.02) as cluster:
        cluster.create_topic("ordinary")
        with pytest.raises(ChangeRefusedError, match="No node is available for topic"):
            cluster.expand("ordinary", 2)
        for name, options in (("ordered", {"ordered": True}), ("shared", {"multi_part": True})):
            cluster.create_topic(name, **options)
            cluster.expand(name, 2)
            until(functools.partial(_has_leader, cluster, name, 1))


def _has_leader(cluster: DevCluster, topic: str, partition: int) -> bool:
    try:
        return cluster.leader(topic, partition) is not None
    except KeyError:
        return False


def test_a_deleted_topic_is_gone_for_clients_and_comes_back_empty() -> None:
    with probe() as seen:
        leader = seen.leader()
        assert seen.publish(leader, b"old") == b"OK"
        assert seen.stored() == [b"old"]
        with consumer(seen) as consuming, seen.wire(leader) as publishing, held(seen.cluster) as clock:
            seen.cluster.delete_topic("orders")
            assert consuming.ends()
            publishing.send(pub("orders", b"late"))
            assert publishing.answer() == b"E_TOPIC_NOT_EXIST "
            assert publishing.ends()
            clock.until(lambda: seen.partition_num(0) == 0)
            assert seen.partition_num(1) == 1  # the other one hears of it later
        until(lambda: seen.partition_num(1) == 0)
        with pytest.raises(ChangeRefusedError, match="Key not found"):
            seen.cluster.delete_topic("orders")
        seen.cluster.create_topic("orders", 1, ordered=True)
        with consumer(seen) as late:
            assert late.is_quiet(0.05)
            assert seen.publish(seen.leader(), b"new") == b"OK"
            data = late.message()
            assert data.endswith(b"new")
            finish(late, data)
        assert seen.stored() == [b"new"]


def test_a_new_topic_is_named_before_it_can_be_used() -> None:
    with DevCluster(time_scale=0.2) as cluster:
        seen = Probe(cluster, "orders")
        with held(cluster) as clock:
            cluster.create_topic("orders", 2, ordered=True, wait=False)
            clock.until(lambda: seen.partition_num() == 2)
            assert seen.lookup("w") == {}
            leader = clock.until(lambda: seen.lookup("r").get(0))
            assert seen.publish(leader, b"early") == NOT_WRITABLE
        until(seen.is_whole)
        assert seen.publish(leader, b"stored") == b"OK"
        seen.http.close()


def test_an_ordinary_topic_takes_a_node_for_each_replica_unless_asked_otherwise() -> None:
    with DevCluster(nsqds=3) as cluster:
        with pytest.raises(ChangeRefusedError, match="No node is available"):
            cluster.create_topic("orders", 2, 3, multi_part=False)
        cluster.create_topic("orders", 2, 3)
        with pytest.raises(ChangeRefusedError, match="already exist"):
            cluster.create_topic("orders", 3, 3)
        cluster.create_topic("spread", 3, 1)
        assert len({cluster.leader("spread", number) for number in range(3)}) == 3


def test_a_new_ordered_channel_is_lost_with_its_leader() -> None:
    with probe() as seen:
        with consumer(seen, replicated=False) as consuming:
            assert seen.publish(seen.leader(), b"first") == b"OK"
            consuming.message()
            seen.cluster.move_leader("orders")
        assert depths(seen) == {}


def test_an_ordered_channel_survives_once_its_state_was_set() -> None:
    with probe() as seen, consumer(seen, replicated=False) as consuming:
        assert seen.publish(seen.leader(), b"first") == b"OK"
        consuming.message()
        url = seen.cluster.http_address(seen.leader())
        asked = {"topic": "orders", "partition": "0", "channel": "billing"}
        assert seen.http.post(url + "/channel/unpause", params=asked).status_code == 200
        seen.cluster.move_leader("orders")
        assert depths(seen) == {"billing": 1}


def test_an_ordered_channel_survives_once_a_message_was_finished() -> None:
    with probe() as seen, consumer(seen, replicated=False) as consuming:
        assert seen.publish(seen.leader(), b"first") == b"OK"
        finish(consuming, consuming.message())
        until(lambda: depths(seen) == {"billing": 0})
        seen.cluster.move_leader("orders")
        assert depths(seen) == {"billing": 0}


def depths(seen: Probe) -> dict[str, int]:
    asked = {"format": "json", "topic": "orders"}
    answer = seen.http.get(seen.cluster.http_address(seen.leader()) + "/stats", params=asked)
    return {channel["channel_name"]: channel["depth"] for channel in answer.json()["topics"][0]["channels"]}
