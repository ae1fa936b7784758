"""nsqd's HTTP beyond the recorded requests: limits, waits, and what operators do to channels."""

import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
import pytest

from nsq_ha import Consumer, ExtFilter
from nsq_ha.devcluster import DevCluster
from tests.devcluster.probes import Probe, consumer, finish, topic_of, until
from tests.support import web

V1 = {"Accept": "application/vnd.nsq; version=1.0"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    with DevCluster(nsqds=2) as cluster:
        cluster.create_topic("extended", 1, 1, extended=True)
        cluster.create_topic("closed", 1, 1, disable_channel_auto_create=True)
        yield cluster


@pytest.fixture
def seen(cluster: DevCluster, request: pytest.FixtureRequest) -> Iterator[Probe]:
    """An ordinary topic of its own for each test."""
    with topic_of(request, cluster, 2) as seen:
        yield seen


def call(seen: Probe, path: str, content: bytes = b"", **params: str) -> httpx.Response:
    params = {"topic": seen.topic, "partition": "0", **params}
    return seen.http.post(seen.cluster.http_address(seen.leader()) + path, params=params, content=content)


def stats(seen: Probe, **params: str) -> dict[str, Any]:
    params = {"format": "json", "topic": seen.topic, **params}
    answer = seen.http.get(seen.cluster.http_address(seen.leader()) + "/stats", params=params)
    topics: list[dict[str, Any]] = answer.json()["topics"]
    return topics[0]


def said(answer: httpx.Response) -> tuple[int, str]:
    """Status and message; nsqd does not escape the message, so a quote in it makes it no JSON."""
    return answer.status_code, answer.text.removeprefix('{"message":"').removesuffix('"}')


def test_names_and_numbers_are_checked(seen: Probe) -> None:
    assert said(call(seen, "/channel/create", topic="")) == (400, "MISSING_ARG_TOPIC")
    assert said(call(seen, "/channel/create", topic="bad!")) == (400, "INVALID_ARG_TOPIC")
    assert said(call(seen, "/channel/create", partition="x")) == (400, "INVALID_ARG_TOPIC_PARTITION")
    assert said(call(seen, "/channel/create")) == (400, "MISSING_ARG_CHANNEL")
    assert said(call(seen, "/channel/create", channel="bad!")) == (400, "INVALID_ARG_CHANNEL")
    assert said(call(seen, "/channel/empty", channel="none")) == (404, "CHANNEL_NOT_FOUND")
    assert said(call(seen, "/channel/setoffset", b"special:-1", channel="none")) == (404, "CHANNEL_NOT_FOUND")


def test_a_closed_topic_takes_channels_at_the_nsqlookupd_only(cluster: DevCluster) -> None:
    seen = Probe(cluster, "closed")
    assert said(call(seen, "/channel/create", channel="new"))[0] == 403
    assert said(call(seen, "/channel/delete", channel="new"))[0] == 403
    seen.http.close()


def test_the_next_leader_knows_a_channel_that_was_created(cluster: DevCluster) -> None:
    """``/channel/create`` tells the followers at once, on ordered topics, too."""
    cluster.create_topic("in_order", 1, 2, ordered=True)
    seen = Probe(cluster, "in_order")
    with seen.http:
        assert call(seen, "/channel/create", channel="billing").status_code == 200
        cluster.move_leader("in_order")
        assert call(seen, "/channel/setorder", channel="billing", order="true").status_code == 200


def test_an_operator_moves_and_deletes_a_channel(seen: Probe) -> None:
    assert call(seen, "/channel/create", channel="billing").status_code == 200
    for number in range(4):
        assert call(seen, "/pub", b"m%d" % number).text == "OK"
    with consumer(seen, word="SUB", ready=1) as consuming:
        held = consuming.message()
        finish(consuming, held)
        assert consuming.message().endswith(b"m1")
        assert call(seen, "/channel/setoffset", b"msgcount:4", channel="billing").status_code == 200
        stray = consuming.message()
        assert stray.endswith(b"m2")  # it was under way when the offset was set
        finish(consuming, stray)
        last = consuming.message()
        assert last.endswith(b"m3")
        until(lambda: stats(seen, channel="billing")["channels"][0]["in_flight_count"] == 1)
        finish(consuming, last)
        until(lambda: stats(seen)["channels"][0]["depth"] == 0)
        assert said(call(seen, "/channel/setoffset", b"timestamp:abc", channel="billing"))[0] == 400
        assert call(seen, "/channel/setorder", channel="billing", order="true").status_code == 200
        assert call(seen, "/channel/delete", channel="billing").status_code == 200
        assert consuming.ends()
    assert stats(seen)["channel_num"] == 0


def test_pause_skip_and_delays_over_http(seen: Probe) -> None:
    with consumer(seen, word="SUB", ready=1) as consuming:
        assert call(seen, "/channel/pause", channel="billing").status_code == 200
        assert call(seen, "/pub", b"paused").text == "OK"
        assert consuming.is_quiet(0.1)
        assert call(seen, "/channel/unpause", channel="billing").status_code == 200
        data = consuming.message()
        consuming.send(b"REQ " + data[10:26] + b" 60000\n")
        until(lambda: stats(seen)["channels"][0]["deferred_count"] == 1)
        assert stats(seen)["channels"][0]["in_flight_count"] == 1
        assert call(seen, "/channel/empty", channel="billing").status_code == 200
        until(lambda: stats(seen)["channels"][0]["depth"] == 0)
        assert call(seen, "/pub", b"later").text == "OK"
        consuming.send(b"REQ " + consuming.message()[10:26] + b" 1000000\n")
        names = ("depth", "deferred_count", "delayed_queue_count")
        until(lambda: [stats(seen)["channels"][0][name] for name in names] == [0, 0, 1])


def test_a_message_that_is_not_there_is_not_found(seen: Probe) -> None:
    url = seen.cluster.http_address(seen.leader()) + "/message/get"

    def search(**params: str) -> tuple[int, str]:
        return said(seen.http.get(url, params={"topic": seen.topic, "partition": "0", **params}))

    for mode in ("count", "id", "virtual_offset"):
        assert search(search_mode=mode, search_pos="1") == (404, "commit log end of file")
    assert search(search_mode="virtual_offset", search_pos="x")[0] == 400
    assert search(search_mode="count", search_pos="1", partition="x")[0] == 400
    assert search(search_mode="count", search_pos="1", topic="unknown")[0] == 400


def test_each_answer_tells_the_time(seen: Probe) -> None:
    sent = seen.http.get(seen.cluster.http_address(seen.leader()) + "/ping").headers["date"]
    assert abs(parsedate_to_datetime(sent).timestamp() - time.time()) < 30.0


def test_cleaning_moves_the_start_and_the_channels_that_stood_there(seen: Probe) -> None:
    assert call(seen, "/channel/create", channel="billing").status_code == 200
    for number in range(5):
        assert call(seen, "/pub", b"m%d" % number).text == "OK"
    seen.cluster.clean(seen.topic, 0, 3)
    numbers = stats(seen)
    assert (numbers["backend_start"], numbers["backend_depth"], numbers["message_count"]) == (96, 160, 5)
    with consumer(seen, word="SUB") as consuming:
        assert consuming.message().endswith(b"m3")


async def test_stats_show_a_clients_filter_without_its_empty_fields(cluster: DevCluster) -> None:
    wanted = ExtFilter.any_of({"a": "1"}, inverse=True)
    async with Consumer("extended", "filtered", lookupd=cluster.lookupd, ext_filter=wanted):
        leader = cluster.leader("extended")
        assert leader is not None
        async with httpx.AsyncClient(verify=web.NO_CERTIFICATES) as http:
            answer = await http.get(cluster.http_address(leader) + "/stats?format=json&topic=extended", headers=V1)
    channels = {each["channel_name"]: each for each in answer.json()["topics"][0]["channels"]}
    assert [client["ext_filter"] for client in channels["filtered"]["clients"]] == [
        {
            "type": 4,
            "inverse": True,
            "filter_ext_key": "any",
            "filter_data_list": [{"filter_ext_key": "a", "filter_data": "1"}],
        }
    ]
