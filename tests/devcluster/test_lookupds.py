"""nsqlookupds that die, hang, come back and disagree."""

from collections.abc import Iterator

import httpx
import pytest

from nsq_ha.devcluster import DevCluster
from tests.devcluster.clock import held
from tests.devcluster.probes import LIMIT, Probe, probe, until
from tests.support import web
from tests.support.threads import in_thread


@pytest.fixture(scope="module")
def plain() -> Iterator[Probe]:
    with probe() as seen:
        yield seen


def leading(seen: Probe, number: int) -> bool:
    answer = seen.http.get(seen.cluster.lookupd[number] + "/cluster/stats")
    return answer.status_code == 200


def listed(seen: Probe, number: int) -> tuple[str, list[str]]:
    answer = seen.http.get(seen.cluster.lookupd[number] + "/listlookup").json()
    port = answer["lookupdleader"]["HttpPort"]
    return port, sorted(node["HttpPort"] for node in answer["lookupdnodes"])


def test_lookups_go_on_while_the_leading_one_is_dead_and_another_takes_over() -> None:
    with probe(scale=0.1) as seen, held(seen.cluster) as clock:
        ports = [url.rpartition(":")[2] for url in seen.cluster.lookupd]
        leader = seen.leader()
        assert leading(seen, 0)
        seen.cluster.kill("nsqlookupd-0")
        with pytest.raises(httpx.ConnectError):
            seen.lookup("w", 0)
        assert seen.lookup("w", 1) == {0: leader}
        assert listed(seen, 1) == (ports[0], sorted(ports))  # the dead one is still named, as leader too
        assert not leading(seen, 1)
        refused = seen.http.post(
            seen.cluster.lookupd[1] + "/topic/create", params={"topic": "new", "partition_num": 1, "replicator": 1}
        )
        assert (refused.status_code, refused.json()) == (400, {"message": "E_FAILED_ON_NOT_LEADER"})
        clock.until(lambda: leading(seen, 1))
        assert listed(seen, 1) == (ports[1], [ports[1]])
        seen.cluster.start("nsqlookupd-0")
        assert seen.lookup("w", 0) == {}  # nothing has registered yet
        assert seen.partition_num(0) == 1
        clock.until(lambda: seen.lookup("w", 0) == {0: leader})
        assert not leading(seen, 0)


def test_a_leader_lost_while_no_nsqlookupd_leads_waits_for_the_next_check() -> None:
    with probe(scale=0.02) as seen:
        leader = seen.leader()
        with held(seen.cluster) as clock:
            seen.cluster.kill("nsqlookupd-0")
            stopping = in_thread(lambda: seen.cluster.stop(leader))
            clock.until(lambda: not seen.lookup("r", 1))
            clock.until(lambda: leading(seen, 1))
            assert seen.lookup("r", 1) == {}
        stopping.result(LIMIT)
        until(lambda: seen.lookup("w", 1))
        assert seen.cluster.leader("orders") != leader


def test_a_frozen_nsqlookupd_accepts_and_answers_when_it_wakes() -> None:
    with probe() as seen:
        seen.cluster.freeze("nsqlookupd-1")
        with pytest.raises(httpx.ReadTimeout):
            web.get(seen.cluster.lookupd[1] + "/ping", timeout=0.2)
        moved = seen.cluster.move_leader("orders")
        assert seen.lookup("w", 0) == {0: moved}
        seen.cluster.thaw("nsqlookupd-1")
        assert seen.lookup("w", 1) == {0: moved}


def test_requests_that_wait_for_a_frozen_node_end_quietly_with_the_cluster(caplog: pytest.LogCaptureFixture) -> None:
    with (
        DevCluster(nsqlookupds=1, nsqds=1, time_scale=0.02) as cluster,
        httpx.Client(verify=web.NO_CERTIFICATES) as client,
    ):
        url = cluster.lookupd[0] + "/ping"
        assert client.get(url).status_code == 200
        cluster.freeze("nsqlookupd-0")
        with pytest.raises(httpx.ReadTimeout):
            client.get(url, timeout=0.5)
    assert [record.getMessage() for record in caplog.records if record.name.startswith("uvicorn")] == []


def test_a_delayed_nsqlookupd_answers_late() -> None:
    with probe() as seen:
        seen.cluster.delay("nsqlookupd-0", 0.3)
        with held(seen.cluster), pytest.raises(httpx.ReadTimeout):
            web.get(seen.cluster.lookupd[0] + "/ping", timeout=0.1)
        assert web.get(seen.cluster.lookupd[0] + "/ping", timeout=30).text == "OK"


def test_default_settings_demand_a_channel_before_writing() -> None:
    with DevCluster(write_without_channels=False, nsqds=1, nsqlookupds=1) as cluster:
        cluster.create_topic("orders", 2, 1, ordered=True)
        seen = Probe(cluster, "orders")
        params = {"topic": "orders", "access": "w"}
        answer = seen.http.get(cluster.lookupd[0] + "/lookup", params=params)
        assert (answer.status_code, answer.json()["message"]) == (
            404,
            "Topic has no channel, should init at least one for the new topic",
        )
        channel = {"topic": "orders", "partition": "0", "channel": "billing"}
        assert seen.http.post(cluster.http_address("nsqd-0") + "/channel/create", params=channel).status_code == 200
        assert seen.lookup("w") == {0: "nsqd-0"}  # each partition needs one of its own
        assert seen.lookup("r") == {0: "nsqd-0", 1: "nsqd-0"}
        seen.http.close()


@pytest.mark.parametrize(
    ("path", "params", "status", "message"),
    [
        ("partition/expand", {"partition_num": "1000"}, 400, "INVALID_ARG_TOPIC_PARTITION_NUM"),
        ("partition/expand", {"topic": "unknown", "partition_num": "3"}, 500, "Key not found"),
        ("partition/move", {}, 400, "MISSING_ARG_TOPIC_PARTITION"),
        ("partition/move", {"partition": "7"}, 400, "Key not found"),
        ("partition/move", {"partition": "0", "move_to": "x", "move_from": "y"}, 400, "the node is not found"),
        ("meta/update", {"topic": "unknown"}, 400, "topic is not created"),
        ("meta/update", {"replicator": "9"}, 400, "INVALID_ARG_TOPIC_REPLICATOR"),
        ("meta/update", {"retention": "90"}, 400, "max retention days allowed exceed"),
        ("meta/update", {"syncdisk": "9000"}, 400, "max sync every allowed exceed"),
        ("tombstone", {}, 400, "MISSING_ARG_NODE"),
    ],
)
def test_orders_are_checked(path: str, params: dict[str, str], status: int, message: str, plain: Probe) -> None:
    got = plain.http.post(f"{plain.cluster.lookupd[0]}/topic/{path}", params={"topic": "orders", **params})
    assert (got.status_code, got.json()["message"]) == (status, message)


def test_only_the_leading_one_takes_orders(plain: Probe) -> None:
    for path, params, answer in (
        ("/topic/delete", {"topic": "orders", "partition": "**"}, (500, "Not nsqlookup leader")),
        ("/topic/partition/expand", {"topic": "orders", "partition_num": "2"}, (500, "Not nsqlookup leader")),
        ("/topic/partition/move", {"topic": "orders", "partition": "0"}, (400, "E_FAILED_ON_NOT_LEADER")),
        ("/topic/meta/update", {"topic": "orders"}, (400, "Not nsqlookup leader")),
    ):
        got = plain.http.post(plain.cluster.lookupd[1] + path, params=params)
        assert (got.status_code, got.json()["message"]) == answer


def test_orders_over_http_take_effect(plain: Probe) -> None:
    url = plain.cluster.lookupd[0]
    plain.cluster.create_topic("grown", 1, 1, ordered=True)
    grown = Probe(plain.cluster, "grown")
    assert (
        plain.http.post(url + "/topic/partition/expand", params={"topic": "grown", "partition_num": "2"}).status_code
        == 200
    )
    until(lambda: len(grown.lookup("w")) == 2)
    plain.cluster.create_topic("closed", 1, 1, disable_channel_auto_create=True)
    channel = {"topic": "closed", "channel": "billing"}
    assert plain.http.post(url + "/channel/create", params=channel).status_code == 200
    assert plain.http.get(url + "/channels", params=channel).json() == {"channels": ["billing"]}
    assert plain.http.post(url + "/channel/delete", params=channel).status_code == 200
    assert plain.http.get(url + "/channels", params=channel).json() == {"channels": []}
    consistent = plain.http.get(url + "/lookup", params={"topic": "orders", "consistent": "true"}).json()
    assert list(consistent["partitions"]) == ["0"]
    grown.http.close()


def test_a_partition_that_is_added_has_no_registered_channel_until_the_next_registration(plain: Probe) -> None:
    """Seen on the real server, which also refuses to register a channel again."""
    url = plain.cluster.lookupd[0]
    plain.cluster.create_topic("strict", 1, 1, ordered=True, disable_channel_auto_create=True)

    def listed(partition: int) -> list[str]:
        asked = {"topic": "strict", "partition": str(partition)}
        return list(plain.http.get(url + "/channels", params=asked).json()["channels"])

    def register(path: str, channel: str) -> int:
        return plain.http.post(url + path, params={"topic": "strict", "channel": channel}).status_code

    assert register("/channel/create", "billing") == 200
    plain.cluster.expand("strict", 2)
    strict = Probe(plain.cluster, "strict")
    until(
        lambda: len(strict.lookup("w")) == 2
    )  # a channel that is registered before would be one of the new partition's
    strict.http.close()
    assert (listed(0), listed(1)) == (["billing"], [])
    assert register("/channel/create", "billing") == 400
    assert listed(1) == []
    assert register("/channel/create", "other") == 200
    assert register("/channel/delete", "other") == 200
    assert listed(1) == ["billing"]
