"""``nsq-ha channel``, and the changes of topics, at an embedded cluster of either kind."""

import json
import re
import uuid
from collections.abc import Callable

import click
import httpx
import pytest
from click.testing import Result

from nsq_ha import StartFrom
from nsq_ha.admin import AdminClient
from nsq_ha.cli.start import described, position
from nsq_ha.devcluster import DevCluster
from nsq_ha.errors import DiscoveryError
from tests.cli.conftest import Invoke

NOW = 1_800_000_000.0

Call = Callable[..., Result]


@pytest.fixture
def call(invoke: Invoke, plain: DevCluster) -> Call:
    """Run a command at the plain cluster."""
    return lambda *arguments, **options: invoke(*arguments, lookupd=",".join(plain.lookupd), **options)


@pytest.fixture
def waiting(invoke: Invoke, topic: str) -> str:
    """A topic of two partitions with 4 messages in the channel ``billing``."""
    assert invoke("channel", "create", topic, "billing").exit_code == 0
    assert invoke("pub", topic, stdin="a\nb\nc\nd").exit_code == 0
    return topic


def listed(invoke: Call, topic: str) -> dict[str, dict[str, object]]:
    result = invoke("channel", "list", topic)
    assert (result.exit_code, result.stderr) == (0, "")
    return {entry.pop("channel"): entry for entry in map(json.loads, result.stdout.splitlines())}


def ok(result: Result, text: str) -> None:
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", text + "\n")


# ---------------------------------------------------------------- partitioned


def test_a_channel_from_its_creation_to_its_end(invoke: Invoke, waiting: str) -> None:
    assert listed(invoke, waiting)["billing"] | {"lag": 0} == {
        "depth": 4,
        "in_flight": 0,
        "deferred": 0,
        "clients": 0,
        "lag": 0,
        "paused": False,
        "skipped": False,
    }
    ok(invoke("channel", "pause", waiting, "billing"), f"paused billing of {waiting}")
    assert listed(invoke, waiting)["billing"]["paused"] is True
    ok(invoke("channel", "skip", waiting, "billing", "--yes"), f"skipping billing of {waiting}")
    assert listed(invoke, waiting)["billing"]["skipped"] is True
    ok(invoke("channel", "resume", waiting, "billing"), f"resumed billing of {waiting}")
    after = listed(invoke, waiting)["billing"]
    assert (after["paused"], after["skipped"]) == (False, False)
    ok(invoke("channel", "delete", waiting, "billing", "-y"), f"deleted billing of {waiting}")
    assert listed(invoke, waiting) == {}


def test_an_nsqd_that_hangs_delays_no_resume(invoke: Invoke, waiting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole topic was described first, only to know the kind of the cluster."""

    async def describe(*_: object, **__: object) -> None:
        raise DiscoveryError("describing it did not finish within 5 s")

    ok(invoke("channel", "pause", waiting, "billing"), f"paused billing of {waiting}")
    with monkeypatch.context() as hanging:
        hanging.setattr(AdminClient, "describe", describe)
        ok(invoke("channel", "resume", waiting, "billing"), f"resumed billing of {waiting}")
    assert listed(invoke, waiting)["billing"]["paused"] is False


def test_a_channel_is_emptied_and_moved_back(invoke: Invoke, waiting: str) -> None:
    ok(invoke("channel", "empty", waiting, "billing", "--yes"), f"emptied billing of {waiting}")
    assert listed(invoke, waiting)["billing"]["depth"] == 0
    moved = invoke("channel", "set-offset", waiting, "billing", "--to", "beginning", "--yes")
    ok(moved, f"moved billing of {waiting} to beginning")
    # The servers move the channel soon after they confirmed it.
    assert any(listed(invoke, waiting)["billing"]["depth"] == 4 for _ in range(200))
    moved = invoke("channel", "set-offset", waiting, "billing", "--to", "count:1", "-p", "0", "--yes")
    ok(moved, f"moved billing of {waiting} to count:1 in partition 0")


def test_what_does_not_exist_is_one_line(invoke: Invoke, topic: str) -> None:
    name = "no_such_topic"
    for arguments, text in (
        (("list", name), f"there is no topic '{name}': create it (nsq-ha topic create {name})"),
        (("pause", topic, "none"), f"topic '{topic}' has no channel 'none' (see nsq-ha channel list {topic})"),
        (("create", name, "c"), f"there is no topic '{name}': create it (nsq-ha topic create {name})"),
    ):
        refused = invoke("channel", *arguments)
        assert (refused.exit_code, refused.stdout, refused.stderr) == (1, "", f"Error: {text}\n")


def test_a_topic_is_expanded_and_updated(invoke: Invoke, name: str) -> None:
    assert invoke("topic", "create", name, "--multi-part", "--replicas", "1").exit_code == 0
    assert invoke("topic", "expand", name, "2").exit_code == 2
    expanded = invoke("topic", "expand", name, "2", "--yes")
    assert expanded.exit_code == 0, expanded.stderr
    assert sorted(json.loads(expanded.stdout)["leaders"]) == ["0", "1"]
    assert invoke("topic", "update", name).exit_code == 2
    assert invoke("topic", "update", name, "--extended").exit_code == 2
    assert invoke("topic", "update", name, "--register-channels").exit_code == 2
    updated = invoke("topic", "update", name, "--extended", "--retention-days", "2", "--yes")
    assert updated.exit_code == 0, updated.stderr
    assert json.loads(updated.stdout) == {
        "topic": name,
        "partitions": 2,
        "replicas": 1,
        "ordered": False,
        "extended": True,
        "register_channels": False,
    }
    printed = invoke("topic", "update", name, "--retention-days", "0", "--table").stdout
    assert f"updated {name}" in printed


def test_a_leader_is_moved(invoke: Invoke, topic: str, cluster: DevCluster) -> None:
    before = cluster.leader(topic, 1)
    moved = invoke("topic", "move-leader", topic, "1")
    assert moved.exit_code == 0, moved.stderr
    leader = json.loads(moved.stdout)["leader"]
    assert leader != cluster.nsqds[str(before)]
    assert leader == cluster.nsqds[str(cluster.leader(topic, 1))]
    unknown = invoke("topic", "move-leader", topic, "1", "--to", "127.0.0.1:1")
    assert (unknown.exit_code, "Error: the cluster has no nsqd 127.0.0.1:1; it has " in unknown.stderr) == (1, True)


# ---------------------------------------------------------------- plain


def test_channels_of_a_plain_cluster(call: Call) -> None:
    topic = f"cli_{uuid.uuid4().hex[:10]}"
    assert call("pub", topic, stdin="a\nb").exit_code == 0
    ok(call("channel", "create", topic, "billing"), f"created billing of {topic}")
    assert listed(call, topic)["billing"]["depth"] == 2
    ok(call("channel", "pause", topic, "billing"), f"paused billing of {topic}")
    assert listed(call, topic)["billing"]["paused"] is True
    ok(call("channel", "resume", topic, "billing"), f"resumed billing of {topic}")
    ok(call("channel", "empty", topic, "billing", "--yes"), f"emptied billing of {topic}")
    assert listed(call, topic)["billing"]["depth"] == 0
    for arguments in (("skip",), ("set-offset", "--to", "beginning")):
        action, *options = arguments
        refused = call("channel", action, topic, "billing", *options, "--yes")
        assert (refused.exit_code, "plain nsqd" in refused.stderr) == (1, True)
    ok(call("channel", "delete", topic, "billing", "--yes"), f"deleted billing of {topic}")


def test_emptying_a_plain_topic_says_what_its_channels_keep(call: Call) -> None:
    topic = f"cli_{uuid.uuid4().hex[:10]}"
    assert call("pub", topic, stdin="a\nb\nc").exit_code == 0
    ok(call("channel", "create", topic, "billing"), f"created billing of {topic}")
    ok(
        call("topic", "empty", topic, "--yes"),
        f"emptied {topic}: dropped 0 messages that no channel had; channels keep theirs: billing 3"
        " (nsq-ha channel empty drops them)",
    )


def test_a_channel_that_one_nsqd_of_two_holds_back_is_not_said_to_be_paused(call: Call, plain: DevCluster) -> None:
    """Consumers got messages from the other one."""
    topic = f"cli_{uuid.uuid4().hex[:10]}"
    urls = [plain.http_address(node) for node in plain.nsqds]
    for url in urls:
        for path in ("topic/create?", "channel/create?channel=billing&"):
            httpx.post(f"{url}/{path}topic={topic}").raise_for_status()
    httpx.post(f"{urls[0]}/channel/pause?topic={topic}&channel=billing").raise_for_status()
    httpx.post(f"{urls[1]}/topic/pause?topic={topic}").raise_for_status()
    found = json.loads(call("stat", topic, "--json").stdout)
    assert (found["paused"], found["state"]) == (True, "paused on 1 of 2")
    assert "paused on 1 of 2" in call("stat", topic, "--table").stdout
    described = call("topic", "describe", topic, "--table").stdout
    assert re.match(rf"{topic}: 2 nsqds, paused on 1 of 2 *\n", described)
    ok(call("channel", "pause", topic, "billing"), f"paused billing of {topic}")
    assert json.loads(call("stat", topic, "--channel", "billing", "--json").stdout)["state"] == "paused"


# ---------------------------------------------------------------- positions


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("beginning", StartFrom.beginning()),
        ("end", StartFrom.end()),
        ("-1h", StartFrom.timestamp(NOW - 3600)),
        ("2026-01-31T09:00Z", StartFrom.timestamp(1769850000)),
        ("offset:1000", StartFrom.offset(1000)),
        ("count:5", StartFrom.count(5)),
    ],
)
def test_positions(text: str, start: StartFrom) -> None:
    assert position(text, NOW) == start
    assert position(described(start), NOW) == start


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("soon", "'soon' is no position: give beginning, end, a time before now"),
        ("offset:-1", "the position must be"),
        ("count:" + "9" * 30, "the position: a start count must be"),
    ],
)
def test_wrong_positions(text: str, reason: str) -> None:
    with pytest.raises(click.BadParameter, match=reason):
        position(text, NOW)


def test_a_place_in_one_partition_needs_the_partition(invoke: Invoke) -> None:
    refused = invoke("channel", "set-offset", "a", "c", "--to", "offset:1", "--yes")
    assert (refused.exit_code, "is a place in one partition: give the partition, too" in refused.stderr) == (2, True)
