"""``nsq-ha stat``: which columns fit, and its output at either kind of cluster."""

import asyncio
import dataclasses
import functools
import json
import time
import uuid
from typing import Any

import pytest
from click.testing import Result

from nsq_ha import Consumer
from nsq_ha.admin import AdminClient, ChannelStats, ClusterStats, NodeStats, PartitionStats
from nsq_ha.admin.memory import Memory, Sighting
from nsq_ha.admin.reading import FigureRow, Reading
from nsq_ha.cli import stat
from nsq_ha.cli.output import columns_of, fitting
from nsq_ha.devcluster import DevCluster
from nsq_ha.policy.topology import Node
from tests.cli.conftest import Invoke

NOW = 1_800_000_000.0
A, B = "10.0.0.1:4150", "10.0.0.2:4150"


def channel(name: str, depth: int = 0, **others: object) -> ChannelStats:
    values: dict[str, object] = {
        "depth_bytes": 0,
        "in_flight": 1,
        "deferred": 2,
        "requeued": 3,
        "timed_out": 4,
        "clients": 5,
        "paused": False,
        "skipped": False,
        "messages": 100,
    }
    return ChannelStats(name=name, depth=depth, **(values | others))  # type: ignore[arg-type]  # its fields


def partition(topic: str, number: int, *channels: ChannelStats, nsqd: str = A, unrouted: int = 0) -> PartitionStats:
    return PartitionStats(topic, number, True, 0, 0, 100, False, False, tuple(channels), unrouted=unrouted, nsqd=nsqd)


# ---------------------------------------------------------------- columns


@pytest.mark.parametrize("width", [36, 60, 80, 100, 120, 200])
def test_columns_fit(width: int) -> None:
    held = channel("billing", 12345, paused=True)
    rows = [FigureRow(topic="orders", channel=held, partition=1, nsqd=A, lag=3.0, in_rate=1.5)]
    columns = columns_of(rows, by_partition=True, rates=True)
    chosen = fitting(columns, rows, width)
    assert sum(max(len(column.name), len(column.text(rows[0]) or "-")) + 3 for column in chosen) - 3 <= max(width, 36)
    names = [column.name for column in chosen]
    assert names[:3] == ["topic", "channel", "part"]
    assert "depth" in names
    assert (names == [column.name for column in columns]) is (width >= 200)
    assert ("lag" in names) is (width >= 60)


# ---------------------------------------------------------------- the command


def lines(result: Result) -> list[dict[str, Any]]:
    assert (result.exit_code, result.stderr) == (0, "")
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_once(invoke: Invoke, topic: str) -> None:
    assert invoke("channel", "create", topic, "billing").exit_code == 0
    assert invoke("pub", topic, stdin="a\nb\nc").exit_code == 0
    [entry] = lines(invoke("stat", topic))
    assert (entry["topic"], entry["channel"], entry["depth"], entry["messages"]) == (topic, "billing", 3, 3)
    assert (entry["requeued"], entry["timed_out"], entry["clients"], entry["paused"]) == (0, 0, 0, False)
    by_partition = lines(invoke("stat", topic, "-p"))
    assert [each["partition"] for each in by_partition] == [0, 1]
    assert sum(each["depth"] for each in by_partition) == 3
    printed = invoke("stat", topic, "--table").stdout
    assert [line.split()[:3] for line in printed.splitlines() if "billing" in line] == [[topic, "billing", "3"]]
    assert any(each["topic"] == topic for each in lines(invoke("stat")))


def test_again_and_again(invoke: Invoke, topic: str) -> None:
    assert invoke("channel", "create", topic, "billing").exit_code == 0
    first, second = lines(invoke("stat", topic, "--watch", "--interval", "0.01", "--count", "2"))
    assert (first["in_rate"], second["in_rate"]) == (None, 0.0)
    assert first["at"] < second["at"]
    printed = invoke("stat", topic, "-w", "-i", "0.01", "-n", "2", "--table").stdout
    assert printed.count("out/s") == 2


def test_an_nsqd_that_does_not_answer_is_named(invoke: Invoke) -> None:
    with DevCluster(plain=True, nsqlookupds=1, nsqds=2) as lonely:
        address = lonely.nsqds["nsqd-1"]
        lonely.freeze("nsqd-1")
        result = invoke("stat", lookupd=lonely.lookupd[0])
        watched = invoke("stat", "--watch", "-n", "1", lookupd=lonely.lookupd[0])
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"warning: nsqd {address} hangs or is cut off" in result.stderr
    assert watched.exit_code == 0


def test_an_nsqd_that_the_nsqlookupds_have_forgotten_is_named(invoke: Invoke) -> None:
    """A dead one leaves the lists at once; only the memory of nodes knows that its messages are missing."""
    with DevCluster(plain=True, nsqlookupds=1, nsqds=2) as lonely:
        lookupd, address = lonely.lookupd[0], lonely.nsqds["nsqd-1"]
        assert invoke("pub", "orders", stdin="a", lookupd=lookupd).exit_code == 0
        assert invoke("node", "list", lookupd=lookupd).exit_code == 0
        lonely.kill("nsqd-1")
        until = time.monotonic() + 10
        while '"gone"' not in invoke("node", "list", lookupd=lookupd).stdout:
            assert time.monotonic() < until
        results = [invoke("stat", *also, lookupd=lookupd) for also in ((), ("--clients",))]
        assert invoke("node", "forget", address, lookupd=lookupd).exit_code == 0
        forgotten = invoke("stat", lookupd=lookupd)
    for result in results:
        assert result.exit_code == 1
        assert f"warning: nsqd {address} gone" in result.stderr
    assert (forgotten.exit_code, forgotten.stderr) == (0, "")


def test_nobody_leads_what_one_that_is_gone_led(capsys: pytest.CaptureFixture[str]) -> None:
    node, other, now = Node("10.0.0.1", 4150, 4151), Node("10.0.0.2", 4150, 4151), time.time()
    memory = Memory(
        {A: Sighting(now, node, frozenset({("orders", 0), ("moved", 0)})), B: Sighting(now, other)}, at=now - 1
    )
    held = (partition("moved", 0, nsqd=B), partition("orders", 1, nsqd=B))
    reading = Reading(now, stats=ClusterStats((NodeStats(other, "0.3.7", "OK", 1, held),)), memory=memory)
    assert [stat.tell_lacking(reading, topic) for topic in (None, "orders", "moved")] == [True, True, False]
    text = f"warning: nsqd {A} gone for 0 s; 1 partition led by others after 0 s; 1 partition has no leader"
    assert capsys.readouterr().err.count(text) == 2


def test_a_plain_cluster(invoke: Invoke, plain: DevCluster) -> None:
    topic, lookupd = f"cli_{uuid.uuid4().hex[:10]}", plain.lookupd[0]
    assert invoke("pub", topic, stdin="a\nb", lookupd=lookupd).exit_code == 0
    entries = lines(invoke("stat", topic, lookupd=lookupd))
    assert [(each["channel"], each["depth"], each["messages"]) for each in entries] == [(None, 2, 2)]
    entries = lines(invoke("stat", topic, "--partitions", lookupd=lookupd))
    assert {each["partition"] for each in entries} == {None}
    assert {each["nsqd"] for each in entries} <= set(plain.nsqds.values())


async def test_connections(cluster: DevCluster, invoke: Invoke, topic: str) -> None:
    call = functools.partial(asyncio.to_thread, invoke, "stat", topic, "--clients")
    assert (await call("--table")).stdout == "no connection consumes\n"
    async with Consumer(topic, "billing", lookupd=cluster.lookupd, client_id="me", max_in_flight=10) as consumer:
        await consumer.wait_subscribed()
        entries = lines(await call())
        printed = (await call("--table")).stdout
    assert [(each["channel"], each["client_id"], each["in_flight"]) for each in entries] == [("billing", "me", 0)] * 2
    assert {each["nsqd"] for each in entries} <= set(cluster.nsqds.values())
    assert [line.split()[:3] for line in printed.splitlines() if "billing" in line] == [[topic, "billing", "me"]] * 2


def nsqd_holds(monkeypatch: pytest.MonkeyPatch, held: PartitionStats) -> None:
    """Let each look find one nsqd with this partition."""

    async def look(*_: object, **__: object) -> Reading:
        return Reading(NOW, stats=ClusterStats((NodeStats(Node("10.0.0.1", 4150, 4151), partitions=(held,)),)))

    monkeypatch.setattr(AdminClient, "look", look)


def test_an_nsqd_with_too_many_connections_to_list_is_named(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its statistics are read without them, and the list looked like a whole one."""
    held = partition("orders", 0, channel("billing", connections=()))
    nsqd_holds(monkeypatch, held)
    result = invoke("stat", "--clients", "--table")
    assert (result.exit_code, result.stdout) == (1, "no connection is listed\n")
    assert result.stderr == f"warning: too many connections to list are at nsqd {A}\n"


def test_sizes_and_times_are_spread(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    held = dataclasses.replace(
        partition("orders", 0, channel("billing", finished_within=(0, 5), delivered_within=(0,) * 11 + (1,))),
        sizes=(3, 0, 2),
    )
    nsqd_holds(monkeypatch, held)
    entries = lines(invoke("stat", "orders", "--distributions"))
    assert [(each["channel"], each["of"], each["counts"]) for each in entries] == [
        ("", "size", {"< 100 B": 3, "< 2 kB": 2}),
        ("billing", "publish to FIN", {"< 32 ms": 5}),
        ("billing", "delivery to FIN", {"longer": 1}),
    ]
    assert "< 100 B: 3, < 2 kB: 2" in invoke("stat", "-d", "--table").stdout
    assert {each["channel"] for each in lines(invoke("stat", "-d", "--channel", "billing"))} == {"billing"}
    assert "only partitioned ones do" in invoke("stat", "-d", "--channel", "x", "--table").stdout


def test_a_channel_that_does_not_exist(invoke: Invoke, topic: str) -> None:
    """A row without a channel used to be shown, as if it had been found."""
    for arguments in ((topic,), (topic, "--clients"), (topic, "--partitions")):
        refused = invoke("stat", *arguments, "--channel", "absent")
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert refused.stderr == f"Error: {topic} has no channel 'absent'\n"
    anywhere = invoke("stat", "--channel", "absent")
    assert (anywhere.exit_code, anywhere.stderr) == (1, "Error: no topic has a channel 'absent'\n")
    watched = invoke("stat", topic, "--channel", "absent", "--watch", "--count", "1")
    assert (watched.exit_code, watched.stdout) == (0, "")
    assert watched.stderr == f"warning: {topic} has no channel 'absent'\n"


def test_a_channel_of_some_topics(invoke: Invoke, topic: str, ordered: str) -> None:
    assert invoke("channel", "create", topic, f"of_{topic}").exit_code == 0
    rows = [json.loads(line) for line in invoke("stat", "--channel", f"of_{topic}").stdout.splitlines()]
    assert [(row["topic"], row["channel"]) for row in rows] == [(topic, f"of_{topic}")]
    assert ordered not in invoke("stat", "--table", "--channel", f"of_{topic}").stdout


def test_what_does_not_exist(invoke: Invoke) -> None:
    refused = invoke("stat", "no_such_topic")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr == "Error: there is no topic 'no_such_topic': create it (nsq-ha topic create no_such_topic)\n"
