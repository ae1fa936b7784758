"""``nsq-ha node``: what it shows of nsqds of either kind, and tombstones."""

import pytest

from nsq_ha.admin import ClusterStats, NodeStats
from nsq_ha.admin.reading import NsqdView, Reading
from nsq_ha.cli.node import held_by
from nsq_ha.devcluster import DevCluster
from nsq_ha.engine.answers import NodeInfo
from nsq_ha.policy.topology import Node
from tests.cli.conftest import Invoke
from tests.cli.test_stat import lines

NODE = Node("10.0.0.1", 4150, 4151)
PLAIN = Node("10.0.0.2", 4150, 4151, is_plain=True)


def nsqd_of(listed: NodeInfo, said: NodeStats) -> NsqdView:
    now = Reading(0.0, stats=ClusterStats((said,)), infos={listed.node.address: listed})
    return now.nsqds[listed.node.address]


@pytest.mark.parametrize("node", [NODE, PLAIN])
def test_what_an_nsqd_that_does_not_answer_has_is_unknown(node: Node) -> None:
    listed = NodeInfo(node, "host", "1.3.0", {}, ("orders",))
    [entry] = held_by(nsqd_of(listed, NodeStats(node, error="no complete answer within 2 s")))
    assert entry["topic"] == "orders"
    assert {entry[name] for name in ("follows", "messages", "depth", "clients")} == {None}


# ---------------------------------------------------------------- the commands


def test_they_are_listed_and_shown(cluster: DevCluster, invoke: Invoke, topic: str) -> None:
    found = lines(invoke("node", "list"))
    assert [each["nsqd"] for each in found] == sorted(cluster.nsqds.values())
    assert {(each["health"], each["error"]) for each in found} == {("OK", None)}
    assert sorted(number for each in found for number in each["leads"].get(topic, [])) == [0, 1]
    assert sorted(number for each in found for number in each["follows"].get(topic, [])) == [0, 0, 1, 1]
    leader = cluster.nsqds[cluster.leader(topic, 0) or ""]
    (entry,) = [each for each in lines(invoke("node", "show", leader)) if each["topic"] == topic]
    assert (0 in entry["leads"], entry["tombstoned"]) == (True, False)
    for arguments in (("list",), ("show", leader)):
        assert leader in invoke("node", *arguments, "--table").stdout


def test_a_tombstone_hides_one_until_it_is_restored(cluster: DevCluster, invoke: Invoke, topic: str) -> None:
    leader = cluster.nsqds[cluster.leader(topic, 0) or ""]

    def tombstoned() -> dict[str, list[str]]:
        return {each["nsqd"]: each["tombstoned"] for each in lines(invoke("node", "list"))}

    refused = invoke("node", "tombstone", leader, topic)
    assert (refused.exit_code, "give --yes" in refused.stderr) == (2, True)
    assert topic not in tombstoned()[leader]
    done = invoke("node", "tombstone", leader, topic, "--yes")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", f"tombstoned {leader} for {topic}\n")
    assert topic in tombstoned()[leader]
    assert "tombstoned for" in invoke("node", "list", "--table").stdout
    assert invoke("node", "restore", leader, topic).exit_code == 0
    assert topic not in tombstoned()[leader]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("show", "10.9.9.9:1"), "the cluster has no nsqd 10.9.9.9:1; it has 127.0.0.1:"),
        (("tombstone", "10.9.9.9:1", "orders", "-y"), "the cluster has no nsqd 10.9.9.9:1; it has 127.0.0.1:"),
    ],
)
def test_what_cannot_be_done_is_one_line(invoke: Invoke, arguments: tuple[str, ...], reason: str) -> None:
    refused = invoke("node", *arguments)
    assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (1, "", 1)
    assert refused.stderr.startswith(f"Error: {reason}")


def test_a_plain_cluster(invoke: Invoke, name: str) -> None:
    with DevCluster(plain=True, nsqlookupds=1, nsqds=2) as plain:
        lookupd = plain.lookupd[0]
        assert invoke("pub", name, stdin="a", lookupd=lookupd).exit_code == 0
        (first,) = [each["nsqd"] for each in lines(invoke("node", "list", lookupd=lookupd)) if each["topics"] == [name]]
        assert [each["depth"] for each in lines(invoke("node", "show", first, lookupd=lookupd))] == [1]
        assert invoke("node", "restore", first, name, lookupd=lookupd).exit_code == 1
        assert invoke("node", "tombstone", first, name, "--delete", "-y", lookupd=lookupd).exit_code == 0
        assert lines(invoke("node", "show", first, lookupd=lookupd)) == []
        silent = plain.nsqds["nsqd-1"]
        plain.freeze("nsqd-1")
        result = invoke("node", "list", "--table", lookupd=lookupd)
        assert result.exit_code == 1
        assert result.stderr.startswith(f"nsqd {silent} hangs or is cut off")
        assert [line.split()[:2] for line in result.stdout.splitlines() if silent in line] == [[silent, "hangs"]]


def test_an_upgrade_begins_and_ends(cluster: DevCluster, invoke: Invoke) -> None:
    assert invoke("node", "begin-upgrade").exit_code == 0
    assert "the cluster is unstable" in invoke("node", "list").stderr
    assert invoke("node", "end-upgrade").exit_code == 0
    assert "the cluster is unstable" not in invoke("node", "list").stderr


def test_all_is_taken_from_a_node(invoke: Invoke) -> None:
    with DevCluster(nsqds=2, time_scale=0.02) as other:
        other.create_topic("orders", 1, 1)
        leader = other.nsqds[other.leader("orders", 0) or ""]
        done = invoke("node", "remove", leader, "--yes", lookupd=",".join(other.lookupd))
        assert (done.exit_code, f"nsq-ha node forget {leader}" in done.stderr) == (0, True)
        assert other.nsqds[other.leader("orders", 0) or ""] != leader


def test_a_name_that_may_be_meant_is_named(invoke: Invoke) -> None:
    with DevCluster(nsqds=1, nsqlookupds=1, time_scale=0.02) as other:
        other.create_topic("orders")
        for command in (("topic", "describe"), ("stat",), ("lookup",)):
            refused = invoke(*command, "ordres", lookupd=other.lookupd[0])
            assert "there is no topic 'ordres': did you mean orders? Otherwise create it" in refused.stderr
