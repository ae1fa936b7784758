"""Questions to one nsqd's HTTP, against recorded answers and refusals."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from nsq_ha.admin.description import ChannelStats, PartitionStats, Unfinished
from nsq_ha.admin.nsqd_http import NsqdHttp, Search
from nsq_ha.errors import (
    ChannelNotRegisteredError,
    ConnectError,
    InvalidCommandError,
    NotLeaderError,
    RemoteProtocolError,
    ResponseTimeoutError,
    ServerError,
    TopicNotExistError,
)
from nsq_ha.policy.topology import Node
from tests.engine.lookups.loopback import Fake, hang

Serve = Callable[[], Awaitable[Fake]]

VECTORS = Path(__file__).parents[1] / "vectors" / "nsqd_http.json"


def recorded(name: str) -> dict[str, Any]:
    exchanges = json.loads(VECTORS.read_text())["exchanges"]
    step: dict[str, Any] = next(exchange for exchange in exchanges if exchange["name"] == name)["steps"][0]
    return step


@pytest.fixture
async def fake(serve: Serve) -> Fake:
    return await serve()


async def test_recorded_stats_decode(fake: Fake) -> None:
    step = recorded("stats_json_topic")
    fake.answer("/stats", step["body"])
    async with NsqdHttp(Node("127.0.0.1", 1, fake.port), timeout=5.0) as nsqd:
        found = await nsqd.stats("proto_plain", leader_only=True)
    wanted = step["body"]["data"]["topics"][0]
    assert [(entry.topic, entry.partition, entry.is_leader) for entry in found] == [("proto_plain", 0, True)]
    assert (found[0].begin_offset, found[0].end_offset) == (wanted["backend_start"], wanted["backend_depth"])
    assert found[0].messages == wanted["message_count"]
    channel = found[0].channels[0]
    assert (channel.name, channel.depth, channel.depth_bytes, channel.in_flight) == ("hch", 1, 36, 2)
    assert fake.queries("/stats") == [
        {
            "format": "json",
            "needClients": "false",
            "leaderOnly": "true",
            "include_clients": "false",
            "include_mem": "false",
            "topic": "proto_plain",
        }
    ]


async def test_stats_are_in_order_and_leave_out_what_is_no_partition(fake: Fake) -> None:
    topics = [
        {"topic_name": "b", "topic_partition": "1", "channels": [{"channel_name": "y"}, {"channel_name": "x"}]},
        {"topic_name": "b", "topic_partition": "0", "is_multi_ordered": True, "is_ext": True, "channels": None},
        {"topic_name": "plain"},
        {"topic_name": "odd", "topic_partition": "-1"},
        {"topic_name": "odd", "topic_partition": "1024"},
        {"topic_name": "a", "topic_partition": "0"},
    ]
    fake.answer("/stats", {"topics": topics})
    async with NsqdHttp(fake.url) as nsqd:
        found = await nsqd.stats()
    assert [(entry.topic, entry.partition) for entry in found] == [("a", 0), ("b", 0), ("b", 1), ("plain", 0)]
    assert found[1] == PartitionStats(
        "b", 0, is_leader=False, begin_offset=0, end_offset=0, messages=0, ordered=True, extended=True, channels=()
    )
    assert [channel.name for channel in found[2].channels] == ["x", "y"]
    assert found[2].channels[0] == ChannelStats("x", 0, 0, 0, 0, 0, 0, 0, paused=False, skipped=False)
    assert "topic" not in fake.queries("/stats")[0]


async def test_a_recorded_message_decodes(fake: Fake) -> None:
    fake.answer("/message/get", recorded("message_get_by_offset")["body"])
    async with NsqdHttp(fake.url) as nsqd:
        found = await nsqd.message_get("proto_plain", 0, "virtual_offset", 3476)
    assert found is not None
    assert (found.internal_id, found.trace_id, found.offset, found.number) == (111, 9, 3476, 110)
    assert (found.body, found.headers, found.timestamp_ns) == ("findme", "", 1795231990307086240)
    assert fake.queries("/message/get") == [
        {
            "topic": "proto_plain",
            "partition": "0",
            "search_mode": "virtual_offset",
            "search_pos": "3476",
            "needext": "true",
        }
    ]


@pytest.mark.parametrize(
    ("mode", "position", "is_it"),
    [
        ("count", 110, True),
        ("count", 109, False),
        ("count", 111, False),
        ("virtual_offset", 3476, True),
        ("virtual_offset", 3440, True),
        ("virtual_offset", 3477, False),
        ("id", 111, True),
        ("id", 112, False),
    ],
)
async def test_a_message_that_was_not_asked_for_is_no_answer(
    fake: Fake, mode: Search, position: int, is_it: bool
) -> None:
    # Asked for what is not flushed yet the server gives the first message of the queue, with status 200.
    fake.answer("/message/get", recorded("message_get_by_offset")["body"])
    async with NsqdHttp(fake.url) as nsqd:
        assert (await nsqd.message_get("proto_plain", 0, mode, position) is not None) is is_it


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (404, "disk reader move offset overflowed the end"),
        (500, "INTERNAL_ERROR"),
        (404, "commit log end of file"),
        (404, "search commit log data not found"),
    ],
)
async def test_a_message_that_cannot_be_read_yet_is_none(fake: Fake, status: int, message: str) -> None:
    fake.answer("/message/get", {"message": message}, status)
    async with NsqdHttp(fake.url) as nsqd:
        assert await nsqd.message_get("orders", 0, "count", 7) is None
    fake.answer("/message/get", {"message": "topic does not exist"}, 400)
    async with NsqdHttp(fake.url) as nsqd:
        with pytest.raises(ServerError, match="topic does not exist"):
            await nsqd.message_get("orders", 0, "count", 7)


async def test_a_start_in_an_empty_partition_is_where_the_channel_stands(serve: Serve) -> None:
    fake = await serve()
    fake.answer("/channel/create", b"")
    fake.answer("/channel/setoffset", {"message": "commit log end of file"}, 500)
    async with NsqdHttp(fake.url) as nsqd:
        await nsqd.start_channel_from("orders", 0, "billing", "virtual_queue:0")
        fake.answer("/channel/setoffset", {"message": "CHANNEL_NOT_FOUND"}, 404)
        with pytest.raises(ServerError, match="CHANNEL_NOT_FOUND"):
            await nsqd.start_channel_from("orders", 0, "billing", "virtual_queue:0")
    assert fake.count("/channel/setoffset") == 2


@pytest.mark.parametrize(
    ("exchange", "wanted"),
    [
        ("channel_create_on_follower", NotLeaderError),
        ("channel_create_unknown_topic", TopicNotExistError),
        ("channel_create_noauto", ChannelNotRegisteredError),
        ("channel_setoffset_bad", ServerError),
        ("channel_pause_unknown", ServerError),
    ],
)
async def test_recorded_refusals_are_server_errors(fake: Fake, exchange: str, wanted: type[Exception]) -> None:
    step = recorded(exchange)
    fake.answer("/channel/create", step["body"], step["status"])
    async with NsqdHttp(fake.url) as nsqd:
        with pytest.raises(wanted) as caught:
            await nsqd.change_channel("create", "orders", 0, "billing")
    assert type(caught.value) is wanted
    assert step["body"]["message"] in str(caught.value)


@pytest.mark.parametrize("text", [None, "Invalid timestamp 253402214400"])
async def test_a_start_position_that_is_refused_for_good(fake: Fake, text: str | None) -> None:
    step = recorded("channel_setoffset_bad")
    fake.answer("/channel/setoffset", {"message": text} if text else step["body"], 500 if text else step["status"])
    async with NsqdHttp(fake.url) as nsqd:
        with pytest.raises(InvalidCommandError, match=text or "invalid consume offset:bogus:1") as caught:
            await nsqd.set_offset("orders", 0, "billing", "bogus:1")
    assert caught.value.code == "E_INVALID"


async def test_a_node_that_gives_no_answer_is_named(fake: Fake) -> None:
    async with NsqdHttp(fake.url, timeout=1.0) as nsqd:
        fake.answer("/stats", b"NO_TOPICS")
        with pytest.raises(RemoteProtocolError):
            await nsqd.stats()
        fake.behave = hang
        with pytest.raises(ResponseTimeoutError, match=fake.url):
            await nsqd.stats()
        await fake.stop()
        with pytest.raises(ConnectError, match=fake.url):
            await nsqd.stats()


def of_channel(**channel: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    held = channel.pop("held", ())
    return {"channel_name": "c", "clients": [{"in_flight_count": count} for count in held], **channel}


@pytest.mark.parametrize(
    ("topics", "wanted"),
    [
        # Upstream, a topic's own messages wait for all its channels, and what is under way is not in the depth.
        (
            [{"topic_name": "t", "depth": 3, "message_count": 90, "channels": [of_channel(depth=2, deferred_count=9)]}],
            Unfinished(waiting=5, held=0, orphaned=0, clients=0, paused=False, deferred=9),
        ),
        (
            [{"topic_name": "t", "channels": [of_channel(in_flight_count=7, held=(2, 3), paused=True)]}],
            Unfinished(waiting=0, held=5, orphaned=2, clients=2, paused=True),
        ),
        # The two numbers are not of one moment.
        (
            [{"topic_name": "t", "channels": [of_channel(in_flight_count=1, held=(2,))]}],
            Unfinished(waiting=0, held=2, orphaned=0, clients=1, paused=False),
        ),
        # A partition's channel does not show what is not flushed, and counts what is deferred.
        (
            [
                {
                    "topic_name": "t",
                    "topic_partition": str(number),
                    "depth": 5000,
                    "message_count": 30,
                    "channels": [
                        of_channel(
                            depth=4,
                            deferred_count=3,
                            delayed_queue_count=2,  # not in the depth
                            in_flight_count=4,
                            held=(1,),
                            message_count=28,
                        ),
                        {**of_channel(depth=9), "channel_name": "other"},
                    ],
                }
                for number in range(2)
            ],
            Unfinished(waiting=6, held=2, orphaned=0, clients=2, paused=False, deferred=10),
        ),
        ([{"topic_name": "t", "channels": None}, {"topic_name": "u", "channels": [of_channel(depth=1)]}], None),
        (None, None),
    ],
)
async def test_what_a_channel_still_has_to_deliver(
    fake: Fake, topics: list[dict[str, Any]] | None, wanted: Unfinished | None
) -> None:
    fake.answer("/stats", {"topics": topics})
    async with NsqdHttp(fake.url, timeout=5.0) as nsqd:
        assert await nsqd.unfinished("t", "c") == wanted
    ((_, _, query),) = fake.requests
    assert {"topic": "t", "channel": "c", "leaderOnly": "true"}.items() <= query.items()
