"""Whether a partition gets the channels of the others: what is asked, what is created, and what is said if it fails."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from nsq_ha.engine.http import new_client
from nsq_ha.engine.new_partitions import LEADS_WITHIN, PATIENCE, NewPartitions
from nsq_ha.engine.observe import Observer
from nsq_ha.engine.servers import Servers
from nsq_ha.errors import NoLeaderError
from nsq_ha.events import ChannelsMissing, Event
from nsq_ha.policy.growth import LedPartition
from nsq_ha.policy.topology import Node, TopicMeta, TopicView
from tests.engine.lookups.loopback import Fake, hang
from tests.support.waiting import dawdle, eventually

Serve = Callable[[], Awaitable[Fake]]

TOPIC = "orders"


def partition(
    number: int, *channels: str, messages: int = 5, paused: bool = False, leads: bool = True
) -> dict[str, Any]:
    """What ``/stats`` says of a partition."""
    return {
        "topic_name": TOPIC,
        "topic_partition": str(number),
        "is_leader": leads,
        "message_count": messages,
        "channels": [{"channel_name": name, "paused": paused} for name in channels],
    }


class Cluster:
    """One nsqlookupd and two nsqds, which lead the partitions in turn. Partition 1 is empty and has no channel."""

    def __init__(self, lookupd: Fake, one: Fake, two: Fake, servers: Servers) -> None:
        self.lookupd, self.nsqds = lookupd, (one, two)
        self.servers = servers
        self.nodes = tuple(Node("127.0.0.1", number, fake.port) for number, fake in enumerate(self.nsqds, 1))
        self.events: list[Event] = []
        self.observer = Observer(self.events.append)
        self.lists()
        self.has(0, partition(0, "billing"))
        self.has(1, partition(1, messages=0))
        for fake in self.nsqds:
            for action in ("create", "setorder", "pause", "unpause"):
                fake.answer(f"/channel/{action}", b"")

    def lists(self, *channels: str) -> None:
        """Say what the nsqlookupd lists for any partition."""
        self.lookupd.answer("/channels", {"channels": list(channels)})

    def has(self, nsqd: int, *partitions: dict[str, Any]) -> None:
        self.nsqds[nsqd].answer("/stats", {"topics": list(partitions)})

    def view(self, *channels: str, number: int = 2, **flags: bool) -> TopicView:
        leaders = {each: self.nodes[each % 2] for each in range(number)}
        return TopicView(
            TOPIC,
            TopicMeta(number, **flags),
            leaders,
            complete=True,
            exists=True,
            channels=frozenset(channels or ["billing"]),
        )

    def parts(self, **options: Any) -> NewPartitions:  # noqa: ANN401 - those of NewPartitions
        return NewPartitions(TOPIC, self.servers, self.observer, **options)

    async def check(self, parts: NewPartitions, number: int = 1, view: TopicView | None = None) -> None:
        """Check a partition as clients do."""
        view = view or self.view()
        check = parts.check(number, view.leaders[number], view)
        if check is not None and (error := await parts.passed(check)) is not None:
            raise error

    def asked(self) -> list[tuple[str, ...]]:
        """Return what the nsqds were asked for: path, partition, channel."""
        each = [(path, query) for fake in self.nsqds for _, path, query in fake.requests]
        return [(path, query["partition"], query["channel"]) if "channel" in query else (path,) for path, query in each]

    def created(self) -> list[tuple[str, ...]]:
        return [request for request in self.asked() if request[0] == "/channel/create"]

    def missing(self) -> list[ChannelsMissing]:
        self.observer.flush()
        return [event for event in self.events if isinstance(event, ChannelsMissing)]


@pytest.fixture
async def cluster(serve: Serve) -> AsyncIterator[Cluster]:
    client = new_client()
    lookupd, one, two = [await serve() for _ in range(3)]
    servers = Servers([lookupd.url], timeout=1.0, client=client)
    yield Cluster(lookupd, one, two, servers)
    await servers.aclose()
    await client.aclose()


# ---------------------------------------------------------------- what it costs


async def test_a_partition_that_has_them_costs_one_request_to_the_nsqlookupd(cluster: Cluster) -> None:
    cluster.lists("billing", "other")
    parts = cluster.parts()
    for _ in range(2):
        for number in (0, 1):
            await cluster.check(parts, number)
    assert cluster.lookupd.queries("/channels") == [{"topic": TOPIC, "partition": number} for number in "01"]
    assert cluster.asked() == []


async def test_of_many_partitions_each_leader_is_asked_once(cluster: Cluster) -> None:
    view = cluster.view(number=64)
    for nsqd in (0, 1):
        cluster.has(nsqd, *(partition(number, "billing") for number in range(nsqd, 64, 2)))
    parts = cluster.parts()
    await asyncio.gather(*(cluster.check(parts, number, view) for number in range(64)))
    assert cluster.asked() == [("/stats",), ("/stats",)]
    assert cluster.lookupd.requests == []
    assert cluster.nsqds[0].queries("/stats") == [
        {"topic": TOPIC, "format": "json", "leaderOnly": "true", "needClients": "false"}
    ]


@pytest.mark.parametrize(("number", "channel"), [(2, "replay#ephemeral"), (2, "own"), (1, "billing")])
async def test_one_partition_and_channels_of_nobody_else_cost_nothing(
    cluster: Cluster, number: int, channel: str
) -> None:
    await cluster.check(cluster.parts(channel="own"), number - 1, cluster.view(channel, number=number))
    assert cluster.lookupd.requests == []
    assert cluster.asked() == []


# ---------------------------------------------------------------- what is created


async def test_an_empty_partition_gets_the_channels_of_the_others(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    cluster.has(0, partition(0, "audit", "billing", "replay#ephemeral"))
    parts = cluster.parts()
    for _ in range(2):
        await cluster.check(parts, 1, cluster.view("audit", "billing", "replay#ephemeral"))
    assert cluster.asked() == [("/stats",), ("/stats",)] + [
        ("/channel/create", "1", name) for name in ("audit", "billing")
    ]
    assert caplog.messages == ["orders-1 gets the channels of the other partitions: audit, billing"]
    assert cluster.missing() == []


async def test_a_partition_in_use_is_left_alone_unless_it_came_while_the_client_ran(cluster: Cluster) -> None:
    cluster.has(1, partition(1, "other"))
    await cluster.check(cluster.parts())
    assert cluster.created() == []
    await cluster.check(cluster.parts(first=1))
    assert cluster.created() == [("/channel/create", "1", "billing")]


async def test_the_number_of_partitions_at_the_first_check_counts(cluster: Cluster) -> None:
    cluster.has(1, partition(1, "other"))
    cluster.lists("other")
    parts = cluster.parts()
    await cluster.check(parts, 0, cluster.view(number=1))
    await cluster.check(parts, 0)
    await cluster.check(parts, 1)
    assert cluster.created() == [("/channel/create", "1", "billing")]


@pytest.mark.parametrize("case", ["behind", "deleted", "silent", "unled", "own", "uncertain"])
async def test_it_gets_what_the_leaders_have_and_if_one_is_not_asked_what_the_nsqlookupd_lists(
    cluster: Cluster, case: str
) -> None:
    view, parts = cluster.view("billing", "deleted"), cluster.parts()
    created = ["billing"]
    if case == "behind":  # the nsqlookupd does not list it yet
        cluster.has(1, partition(1, "billing", messages=0))
        view, created = cluster.view(), []
    elif case == "silent":
        await cluster.nsqds[0].stop()
        created = ["billing", "deleted"]
    elif case == "unled":
        view, created = replace(view, leaders={1: cluster.nodes[1]}), ["billing", "deleted"]
    elif case == "own":  # the consumer creates it by subscribing
        cluster.has(0, partition(0, "billing", "own"))
        parts, view = cluster.parts(channel="own"), cluster.view("billing", "own")
    elif case == "uncertain":  # the number is not accepted yet
        view = replace(view, meta=TopicMeta(1))
    await cluster.check(parts, 1, view)
    assert cluster.created() == [("/channel/create", "1", name) for name in created]


async def test_a_deleted_topic_begins_again(cluster: Cluster) -> None:
    parts = cluster.parts(first=1)
    await cluster.check(parts)
    assert len(cluster.created()) == 1
    parts.forget()
    cluster.has(1, partition(1, "other"))
    await cluster.check(parts)
    assert cluster.lookupd.count("/channels") == 2
    assert len(cluster.created()) == 1, "it is as old as the others now"


async def test_so_does_the_time_within_which_its_leaders_must_lead(cluster: Cluster) -> None:
    """A partition that had waited for its leader before was used without its channels when the topic came back."""
    cluster.has(1)
    parts = cluster.parts()
    for _ in range(2):
        with pytest.raises(NoLeaderError):
            await cluster.check(parts)
        await dawdle(LEADS_WITHIN)
        parts.forget()


async def test_so_does_a_check_that_runs_meanwhile(cluster: Cluster) -> None:
    """Its outcome counted for the new topic, whose partition then never got the channels."""
    cluster.nsqds[1].behave = hang
    parts, view = cluster.parts(), cluster.view()
    check = parts.check(1, view.leaders[1], view)
    await eventually(lambda: cluster.lookupd.count("/channels"))
    parts.forget()
    cluster.nsqds[1].behave = None
    assert check is not None
    assert check.task is not None
    await asyncio.wait({check.task})
    await cluster.check(parts)
    assert cluster.created() == [("/channel/create", "1", "billing")]


@pytest.mark.parametrize(
    ("ordered", "paused", "actions"),
    [
        (False, False, ["create"]),
        (False, True, ["create", "pause"]),
        (True, False, ["create", "setorder", "unpause"]),
        (True, True, ["create", "setorder", "pause"]),
    ],
)
async def test_it_is_made_as_it_is_elsewhere(
    cluster: Cluster, actions: list[str], *, ordered: bool, paused: bool
) -> None:
    """Setting the state makes an ordered channel known to the replicas, which the leader alone does too late."""
    cluster.has(0, partition(0, "billing", paused=paused))
    await cluster.check(cluster.parts(), 1, cluster.view(ordered=ordered))
    assert cluster.asked()[2:] == [(f"/channel/{action}", "1", "billing") for action in actions]
    orders = [query.get("order") for _, path, query in cluster.nsqds[1].requests if path == "/channel/setorder"]
    assert orders == ["true"] * ordered


# ---------------------------------------------------------------- what fails

NOT_ALLOWED = {"message": "channel billing not registered. channel should be initialized before use."}


async def test_what_is_not_permitted_is_said_once_and_then_it_goes_on(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.has(1, partition(1, messages=0), partition(3, messages=0))
    cluster.nsqds[1].answer("/channel/create", NOT_ALLOWED, 403)
    parts = cluster.parts()
    for _ in range(2):
        for number in (1, 3):
            await cluster.check(parts, number, cluster.view(number=4))
    assert caplog.messages == [
        (
            "orders-1 lacks channels of the topic's other partitions, which cannot be created (channel billing not"
            " registered. channel should be initialized before use.): billing. They do not get what is published there"
            " before their consumers subscribe. This is said once for all partitions"
        )
    ]
    assert [(event.partition, event.missing, event.channel) for event in cluster.missing()] == [
        (1, ("billing",), None),
        (3, ("billing",), None),
    ]
    assert len(cluster.created()) == 2


async def test_without_nsqds_http_a_healthy_topic_is_silent(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """The nsqlookupd is asked instead, also where there are many partitions."""
    cluster.lists("billing")
    for fake in cluster.nsqds:
        await fake.stop()
    await cluster.check(cluster.parts(), 1, cluster.view(number=64))
    assert caplog.messages == []
    assert cluster.missing() == []


async def test_another_way_to_ask_nsqds_is_used_if_it_is_given(cluster: Cluster) -> None:
    """An administrator's client uses HTTPS where nsqd requires TLS."""
    asked: list[tuple[Node, str, str]] = []

    async def request(node: Node, method: str, path: str, params: dict[str, str]) -> bytes:
        asked.append((node, method, path))
        return b"" if method == "POST" else json.dumps({"topics": [partition(1, messages=0)]}).encode()

    await cluster.check(cluster.parts(request=request), 1, replace(cluster.view(), leaders={1: cluster.nodes[1]}))
    assert asked == [(cluster.nodes[1], "GET", "/stats"), (cluster.nodes[1], "POST", "/channel/create")]
    assert cluster.asked() == []


@pytest.mark.parametrize("lookupd", [True, False])
async def test_without_nsqds_http_a_lack_is_said(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, *, lookupd: bool
) -> None:
    for fake in (*cluster.nsqds, *([] if lookupd else [cluster.lookupd])):
        await fake.stop()
    await cluster.check(cluster.parts())
    said = "orders-1 lacks" if lookupd else "orders-1 may lack"
    assert said in caplog.messages[-1]
    assert "Connection refused" in caplog.messages[-1]
    assert len(cluster.missing()) == 1


async def test_tls_that_is_required_is_the_reason(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.nsqds[1].answer("/stats", {"message": "TLS_REQUIRED"}, 403)
    await cluster.check(cluster.parts())
    assert "(TLS_REQUIRED)" in caplog.messages[-1]


async def test_a_caller_waits_for_a_limited_time_and_once(cluster: Cluster) -> None:
    loop = asyncio.get_running_loop()
    cluster.nsqds[1].behave = hang
    parts = cluster.parts()
    for expected in (PATIENCE, 0.0):
        began = loop.time()
        await cluster.check(parts)
        assert loop.time() - began == pytest.approx(expected, abs=0.05)
    await eventually(cluster.missing)
    assert f"no complete answer within {PATIENCE:g} s" in cluster.missing()[0].reason
    assert parts.check(1, cluster.nodes[1], cluster.view()) is None
    await parts.aclose()


async def test_channels_are_created_even_if_nobody_waits_any_more(cluster: Cluster) -> None:
    for fake in cluster.nsqds:  # one is asked after the other
        fake.delay = 0.6 * PATIENCE
    parts = cluster.parts()
    await cluster.check(parts)
    assert cluster.created() == []
    await eventually(cluster.created)
    await parts.aclose()


async def test_a_node_that_does_not_lead_yet_is_an_error_that_passes(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A lookup names the leader of a new partition up to a minute before it takes the part."""
    cluster.has(1, partition(1, leads=False))
    parts = cluster.parts()
    for _ in range(2):
        with pytest.raises(NoLeaderError, match=r"127\.0\.0\.1:2 does not lead orders-1 yet"):
            await cluster.check(parts)
    cluster.has(1, partition(1, messages=0))
    cluster.nsqds[1].answer("/channel/create", {"message": "E_FAILED_ON_NOT_LEADER"}, 400)
    with pytest.raises(NoLeaderError):
        await cluster.check(parts)
    cluster.nsqds[1].answer("/channel/create", b"")
    await cluster.check(parts)
    assert len(cluster.created()) == 2
    assert caplog.messages == []


async def test_a_node_that_never_leads_does_not_hold_up_for_ever(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Another server may answer at the port that nsqlookupd names."""
    cluster.has(1)
    parts = cluster.parts()
    with pytest.raises(NoLeaderError):
        await cluster.check(parts)
    await dawdle(LEADS_WITHIN)
    await cluster.check(parts)
    assert "orders-1 may lack" in caplog.messages[-1]


async def test_closing_ends_the_checks(cluster: Cluster) -> None:
    cluster.nsqds[1].behave = hang
    parts = cluster.parts()
    check = parts.check(1, cluster.nodes[1], cluster.view())
    assert check is not None
    await eventually(lambda: cluster.lookupd.count("/channels"))
    await parts.aclose()
    assert check.task is not None
    assert check.task.cancelled()
    assert await parts.passed(check) is None


# ---------------------------------------------------------------- what a node has


async def test_what_makes_no_sense_is_left_out(cluster: Cluster) -> None:
    strange = [
        partition(0, "billing", "not a name"),
        partition(1) | {"topic_name": "others"},
        partition(2) | {"topic_partition": "x"},
        partition(3) | {"topic_partition": "٣"},
        partition(4) | {"channels": None},
    ]
    cluster.has(0, *strange)
    assert await cluster.parts().held(cluster.nodes[0]) == {
        0: LedPartition(5, {"billing": False}),
        4: LedPartition(5, {}),
    }
