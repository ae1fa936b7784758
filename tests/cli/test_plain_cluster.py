"""The command line at a plain cluster: independent nsqlookupds, no partitions."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from click.testing import Result

from nsq_ha import Producer, Receipt
from nsq_ha.cli import lookup
from nsq_ha.protocol import Layout
from tests.admin.scripted import UNKNOWN, Plain
from tests.cli.conftest import Invoke
from tests.engine.lookups.loopback import Fake
from tests.support.stage import TOPIC, Stage
from tests.support.waiting import eventually

WAITING = f"waiting for {TOPIC}: no nsqd has the topic yet: the first publish creates it\n"


@pytest.fixture(autouse=True)
def without_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "PAUSE", 0.01)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    """One nsqlookupd, which knows no topic, and two nsqds; only their TCP protocol is real."""
    async with Stage(2) as stage:
        stage.list_plain(candidates=stage.nsqds)
        stage.lookupd.answer("/lookup", UNKNOWN, 404)
        yield stage


@pytest.fixture
async def plain() -> AsyncIterator[Plain]:
    """Two nsqlookupds and two nsqds, each nsqd registered at one; only their HTTP is real."""
    async with AsyncExitStack() as stack:
        fakes = [Fake() for _ in range(4)]
        for fake in fakes:
            await fake.start()
            stack.push_async_callback(fake.stop)
        yield Plain(fakes[:2], fakes[2:])


Call = Callable[..., Any]


@pytest.fixture
def call(invoke: Invoke) -> Call:
    """Run ``nsq-ha`` beside the test's loop, which runs the servers."""

    async def run(lookupds: Stage | Plain, *arguments: str, stdin: str | None = None) -> Result:
        fakes = [lookupds.lookupd] if isinstance(lookupds, Stage) else lookupds.lookupds
        urls = ",".join(fake.url for fake in fakes)
        return await asyncio.to_thread(invoke, *arguments, stdin=stdin, lookupd=urls)

    return run


# ---------------------------------------------------------------- pub


async def test_a_topic_that_nobody_has_is_published_to(stage: Stage, call: Call) -> None:
    told = await call(stage, "pub", TOPIC, "--receipts", stdin="a\nb\n")
    assert told.exit_code == 0
    assert told.stderr.startswith("published 2 of 2 lines")
    receipts = [json.loads(line) for line in told.stdout.splitlines()]
    assert {receipt["partition"] for receipt in receipts} == {None}
    assert {receipt["nsqd"] for receipt in receipts} <= {nsqd.node.address for nsqd in stage.nsqds}


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--key", "k"), "remove --key: it needs the partitioned server, and plain nsqd has no keys"),
        (("--key-field", "u"), "remove --key-field: it needs the partitioned server, and plain nsqd has no keys"),
        (("--partition", "0"), "remove --partition: it needs the partitioned server, and plain nsqd has no partitions"),
        (("--trace",), "remove --trace: it needs the partitioned server, and plain nsqd has no trace ids"),
        (("--header", "a=b"), "remove --header: it needs the partitioned server, and plain nsqd has no headers"),
        (("--tag", "t"), "remove --tag: it needs the partitioned server, and plain nsqd has no tags"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
async def test_options_of_the_partitioned_server_publish_nothing(
    stage: Stage, call: Call, arguments: tuple[str, ...], text: str
) -> None:
    refused = await call(stage, "pub", TOPIC, *arguments, stdin="a")
    assert (refused.exit_code, refused.stdout, refused.stderr) == (1, "", f"Error: {text}\n")
    assert not any(nsqd.commands for nsqd in stage.nsqds)


async def test_a_cluster_without_nsqd_is_named_at_once(stage: Stage, call: Call) -> None:
    stage.lookupd.answer("/nodes", {"producers": []})
    refused = await call(stage, "pub", TOPIC, stdin="a")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr == (
        "Error: no nsqlookupd lists an nsqd to publish to: start nsqd with the option -lookupd-tcp-address; one that"
        " already runs registers again within 30 s after nsqlookupd was restarted\n"
    )


async def test_messages_can_be_deferred(stage: Stage, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    delays: list[object] = []

    async def publish(_: Producer, topic: str, body: bytes, *, defer: float | None, **__: object) -> Receipt:
        delays.append((topic, body, defer))
        return Receipt(topic, 0, "127.0.0.1:4150", 1)

    monkeypatch.setattr(Producer, "publish", publish)
    assert (await call(stage, "pub", TOPIC, "--defer", "1.5", stdin="a")).exit_code == 0
    assert delays == [(TOPIC, b"a", 1.5)]


def test_the_partitioned_server_defers_nothing(invoke: Invoke, topic: str) -> None:
    refused = invoke("pub", topic, "--defer", "1", stdin="a")
    assert refused.exit_code == 1
    assert refused.stderr == "Error: remove --defer: the partitioned server cannot delay a message\n"


# ---------------------------------------------------------------- tail


@pytest.mark.parametrize("form", ["--table", "--json"])
async def test_it_waits_for_a_topic_that_nobody_has(stage: Stage, call: Call, form: str) -> None:
    tailing = asyncio.create_task(call(stage, "tail", TOPIC, "--consume", "--channel", "ch", "-n", "1", form))
    await eventually(lambda: stage.lookupd.count("/lookup") > 6)
    stage.list_plain(stage.nsqd)
    peer = await stage.nsqd.subscriber()
    peer.message(b"first", b"0123456789abcdef", layout=Layout.PLAIN)
    told = await tailing
    assert (told.exit_code, told.stderr) == (0, WAITING + "took 1 message out of channel ch\n")
    if form == "--table":
        assert told.stdout.endswith(f" [{stage.nsqd.node.address}] first\n")
    else:
        message = json.loads(told.stdout)
        assert (message["body"], message["partition"], message["nsqd"]) == ("first", None, stage.nsqd.node.address)


HAS_MESSAGES = {"topic_name": "orders", "depth": 1000}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"topics": [HAS_MESSAGES]}, "has no channel at nsqd {nsqd}: 1,000 messages wait there for the first one"),
        ({"topics": [HAS_MESSAGES | {"channels": []}]}, "1,000 messages wait there"),
        (None, "nsqd {nsqd} does not say whether topic 'orders' has a channel there"),
    ],
)
async def test_a_look_would_take_messages_away(plain: Plain, call: Call, answer: object, reason: str) -> None:
    """It used to print some of them, and to throw away the others."""
    for lookupd, nsqd in zip(plain.lookupds, plain.nsqds, strict=True):
        lookupd.answer("/lookup", {"channels": [], "producers": [plain.peer(nsqd)]})
        nsqd.answer("/stats", answer if answer is not None else "nothing", 200 if answer is not None else 500)
    told = await call(plain, "tail", "orders", "-n", "3")
    assert (told.exit_code, told.stdout) == (1, "")
    assert any(reason.format(nsqd=f"127.0.0.1:{nsqd.port + 1}") in told.stderr for nsqd in plain.nsqds)
    assert "take them: --consume --channel NAME" in told.stderr


async def test_a_channel_of_a_topic_that_no_nsqd_has_yet_is_listed(plain: Plain, call: Call) -> None:
    """`channel create` said that it had created it, and `channel list` that there is none."""
    for lookupd in plain.lookupds:
        lookupd.answer("/lookup", {"channels": ["billing"], "producers": []})
        lookupd.answer("/channels", {"channels": ["billing"]})
    told = await call(plain, "channel", "list", "orders", "--json")
    assert (told.exit_code, told.stderr) == (0, "")
    listed = json.loads(told.stdout)
    assert (listed["channel"], listed["depth"], listed["clients"]) == ("billing", 0, 0)


async def test_dead_letters_of_a_missing_channel_say_how_to_create_it(plain: Plain, call: Call) -> None:
    for lookupd, nsqd in zip(plain.lookupds, plain.nsqds, strict=True):
        lookupd.answer("/lookup", {"channels": [], "producers": [plain.peer(nsqd)]})
        nsqd.answer("/stats", {"topics": [HAS_MESSAGES]})
    told = await call(plain, "dead-letters", "list", "orders", "--channel", "dead")
    assert (told.exit_code, told.stdout) == (1, "")
    assert "it has none. If the name is right: nsq-ha channel create orders dead" in told.stderr


async def test_no_command_is_the_first_channel_of_messages_that_wait(plain: Plain, call: Call) -> None:
    for lookupd in plain.lookupds:
        lookupd.answer("/lookup", {"channels": [], "producers": []})
    calling = asyncio.create_task(call(plain, "tail", "orders", "-n", "3"))
    await eventually(lambda: plain.lookupds[0].count("/lookup") > 4)  # it waits until an nsqd has the topic
    for lookupd, nsqd in zip(plain.lookupds, plain.nsqds, strict=True):
        nsqd.answer("/stats", {"topics": [HAS_MESSAGES]})
        lookupd.answer("/lookup", {"channels": [], "producers": [plain.peer(nsqd)]})
    told = await calling
    said = " ".join((told.stdout + told.stderr).split())
    assert "1,000 messages wait there for the first one" in said
    assert "nsq-ha channel create orders CHANNEL" in said
    assert told.exit_code == 1


async def test_waiting_for_a_topic_ends_when_nothing_comes(stage: Stage, call: Call) -> None:
    told = await call(stage, "tail", TOPIC, "--idle", "0.2")
    assert (told.exit_code, told.stdout, told.stderr) == (0, "", WAITING)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ("--from", "beginning"),
            "remove --from: it needs the partitioned server, and plain nsqd has no start positions",
        ),
        (("--partition", "0"), "remove --partition: it needs the partitioned server, and plain nsqd has no partitions"),
    ],
    ids=["from", "partition"],
)
async def test_places_to_read_from_are_refused(stage: Stage, call: Call, arguments: tuple[str, ...], text: str) -> None:
    refused = await call(stage, "tail", TOPIC, *arguments)
    assert (refused.exit_code, refused.stdout, refused.stderr) == (1, "", f"Error: {text}\n")


# ---------------------------------------------------------------- lookup


async def test_independent_nsqlookupds_may_differ(plain: Plain, call: Call) -> None:
    plain.has_topic(0)
    told = await call(plain, "lookup", "orders")
    nsqd = f"127.0.0.1:{plain.nsqds[0].port + 1}"
    assert told.exit_code == 0
    assert [json.loads(line) for line in told.stdout.splitlines()] == [
        {"lookupd": plain.lookupds[0].url, "error": None, "exists": True, "nsqds": [nsqd]},
        {"lookupd": plain.lookupds[1].url, "error": None, "exists": False, "nsqds": []},
    ]
    plain.has_topic(1)
    told = await call(plain, "lookup", "orders", "--table")
    assert told.exit_code == 0
    rows = [line.split() for line in told.stdout.splitlines() if line.startswith(" 127.0.0.1:")]
    assert sorted(rows) == sorted(
        [nsqd, "listed", "-"] if number == 0 else [f"127.0.0.1:{plain.nsqds[1].port + 1}", "-", "listed"]
        for number in range(2)
    )
    assert "differs" not in told.stdout


# ---------------------------------------------------------------- topic


async def test_a_topic_is_created_and_deleted_at_all(plain: Plain, call: Call) -> None:
    for lookupd in plain.lookupds:
        lookupd.answer("/lookup", {"channels": [], "producers": []})
    created = await call(plain, "topic", "create", "orders")
    assert created.exit_code == 0
    told = json.loads(created.stdout)
    assert told == {"topic": "orders", "nsqds": []}  # those that may create it were named
    table = await call(plain, "topic", "create", "orders", "--table")
    assert table.stdout == "created orders\norders: no nsqd has the topic yet: the first publish creates it\n"
    assert [len(queries) for queries in plain.asked("/topic/create")] == [2, 2, 0, 0]

    plain.has_topic(0)
    plain.then_deleted()
    deleted = await call(plain, "topic", "delete", "orders", "--yes")
    assert (deleted.exit_code, deleted.stdout, deleted.stderr) == (0, "", "deleted orders\n")


async def test_a_description_shows_each_nsqd(plain: Plain, call: Call) -> None:
    plain.has_topic(0, 1)
    channel = {"channel_name": "billing", "depth": 4, "in_flight_count": 2, "deferred_count": 3, "client_count": 7}
    topic = {"topic_name": "orders", "channels": [channel], "depth": 8, "message_count": 100}
    published = {"remote_address": "10.0.0.9:5", "pub_counts": [{"topic": "orders", "count": 3}]}
    plain.nsqds[0].answer("/stats", {"topics": [topic], "producers": [published]})
    addresses = [f"127.0.0.1:{nsqd.port + 1}" for nsqd in plain.nsqds]
    producers = await call(plain, "topic", "producers", "orders")
    (entry,) = map(json.loads, producers.stdout.splitlines())
    assert (producers.exit_code, entry["address"], entry["messages"]) == (1, "10.0.0.9:5", 3)
    assert (entry["nsqd"], entry["partition"]) == (addresses[0], None)

    described = await call(plain, "topic", "describe", "orders")
    assert (described.exit_code, f"no statistics of {addresses[1]}" in described.stderr) == (1, True)
    assert (await call(plain, "channel", "list", "orders")).exit_code == 1
    told = json.loads(described.stdout)
    nsqds = {entry.pop("nsqd"): entry for entry in told.pop("nsqds")}
    assert told == {"topic": "orders", "depth": {"billing": 4}}
    billing = {"depth": 4, "in_flight": 2, "deferred": 3, "clients": 7, "paused": False}
    assert nsqds == {
        addresses[0]: {"messages": 100, "without_channel": 8, "channels": {"billing": billing}},
        addresses[1]: {"messages": None, "without_channel": None, "channels": {}},
    }

    table = (await call(plain, "topic", "describe", "orders", "--table")).stdout
    rows = [line.split() for line in table.splitlines()]
    assert "orders: 2 nsqds" in table
    assert [addresses[0], "100", "8"] in rows
    assert [addresses[1], "-", "-"] in rows
    assert ["orders", "billing", "4", "2", "-", "7"] in [row[:6] for row in rows]
