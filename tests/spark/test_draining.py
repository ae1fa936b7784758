"""When a plain nsqd has given all: its numbers, what was seen of it, and how long it may still be waited for."""

import itertools
import json
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
import respx

from nsq_ha.admin.description import Unfinished
from nsq_ha.errors import ResponseTimeoutError
from nsq_ha.policy.topology import Node
from nsq_ha.spark.ack import puller
from nsq_ha.spark.ack.puller import Draining, DrainVerdict, Puller, judge
from nsq_ha.spark.cluster import BlockingCluster

LIMIT = 61.0
SECOND_NS = 10**9


def unfinished(waiting: int = 0, held: int = 0, orphaned: int = 0, clients: int = 1) -> Unfinished:
    return Unfinished(waiting, held, orphaned, clients, paused=False)


@pytest.mark.parametrize(
    ("seconds", "flows", "caught_up", "numbers", "verdict"),
    [
        (0.9, False, False, unfinished(), "wait"),
        (1.0, False, False, unfinished(), "done"),
        # It has something, and may still give it.
        (60.0, False, False, unfinished(waiting=1), "wait"),
        (60.0, True, False, unfinished(waiting=1), "wait"),
        (60.0, False, False, unfinished(held=1), "wait"),
        (60.0, True, True, unfinished(orphaned=1), "wait"),
        # The topic is being written: what waits is newer than what was given.
        (1.0, True, True, unfinished(waiting=5, held=3), "done"),
        (60.0, True, True, unfinished(held=3, clients=2), "wait"),
        # What was under way to a client that is gone has come again by now.
        (61.0, True, False, unfinished(waiting=5, held=3, clients=2), "done"),
        (61.0, False, False, unfinished(waiting=1), "stuck"),
        (61.0, False, False, unfinished(held=1), "stuck"),
        (61.0, True, True, unfinished(orphaned=1), "stuck"),
        # It does not tell.
        (60.0, True, False, None, "wait"),
        (61.0, False, False, None, "done"),
    ],
)
def test_whether_a_server_may_still_give_an_old_message(
    seconds: float, flows: bool, caught_up: bool, numbers: Unfinished | None, verdict: DrainVerdict
) -> None:
    assert judge(seconds, numbers, LIMIT, flows=flows, caught_up=caught_up) is verdict


class Seen:
    """A puller as far as it is watched."""

    def __init__(self, http_port: int = 4151) -> None:
        self.topic, self.channel, self.node = "t", "c", Node("127.0.0.1", 4150, http_port)
        self.quiet_for = 0.0
        self.newest_ns = 0
        self.older_than_ns = 0
        self.is_drained = False

    def drain(self, older_than_ns: int) -> None:
        self.older_than_ns = older_than_ns

    @property
    def puller(self) -> Puller:
        return cast("Puller", self)


def stats(**channel: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    client = {"in_flight_count": channel.pop("held", 0)}
    return {
        "topics": [{"topic_name": "t", "depth": 0, "channels": [{"channel_name": "c", "clients": [client], **channel}]}]
    }


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time that passes; a second for each look at it."""
    ticks = itertools.count(1000.0)
    found = SimpleNamespace(monotonic=lambda: next(ticks), time_ns=time.time_ns)
    monkeypatch.setattr(puller, "time", found)
    return found


@pytest.fixture
def plain() -> Iterator[BlockingCluster]:
    with BlockingCluster(("http://127.0.0.1:4161",)) as cluster:
        yield cluster


@pytest.fixture
def nsqd(respx_mock: respx.MockRouter) -> Callable[..., respx.Route]:
    """Serve the numbers that are given, one answer after the other, at the port above."""
    respx_mock.get("http://127.0.0.1:4151/info").respond(json={"tcp_port": 4150})
    respx_mock.get("http://127.0.0.1:4151/ping").respond(text="OK", headers={"Date": "Sat, 01 Jan 2000 00:00:00 GMT"})

    def serve(*answers: Any) -> respx.Route:  # noqa: ANN401 - JSON
        found = [httpx.Response(200, json=each) if isinstance(each, dict) else httpx.Response(each) for each in answers]
        return respx_mock.get("http://127.0.0.1:4151/stats").mock(side_effect=found)

    return serve


def test_a_message_that_comes_while_the_server_is_asked_counts(
    clock: object, respx_mock: respx.MockRouter, nsqd: Callable[..., respx.Route], plain: BlockingCluster
) -> None:
    seen = Seen()

    def meanwhile(_: httpx.Request) -> httpx.Response:
        seen.quiet_for = 0.1
        return httpx.Response(200, json=stats())

    nsqd(stats()).mock(side_effect=meanwhile)
    watched = Draining(seen.puller, plain, LIMIT)
    seen.quiet_for = 2.0
    assert not watched.is_done()
    assert not seen.is_drained


def test_a_clock_that_is_ahead_makes_more_messages_old(respx_mock: respx.MockRouter, plain: BlockingCluster) -> None:
    respx_mock.get("http://127.0.0.1:4151/ping").respond(text="OK", headers={"Date": "Fri, 01 Jan 2100 00:00:00 GMT"})
    seen = Seen()
    Draining(seen.puller, plain, LIMIT)
    assert seen.older_than_ns == 4102444801 * SECOND_NS


@pytest.mark.parametrize("info", [{"tcp_port": 4160}, {"message": "none"}], ids=json.dumps)
def test_a_server_that_does_not_tell_is_waited_for_longer(
    clock: object, respx_mock: respx.MockRouter, info: dict[str, Any], plain: BlockingCluster
) -> None:
    asked = respx_mock.get("http://127.0.0.1:4151/info").respond(json=info)
    seen = Seen(0)
    watched = Draining(seen.puller, plain, LIMIT)
    seen.quiet_for = LIMIT - 1.0
    assert not watched.is_done()
    seen.quiet_for = LIMIT
    assert watched.is_done()
    assert asked.call_count == (1 if "tcp_port" in info else 3), "another server's numbers are not asked for again"


def test_a_paused_channel_fails_the_query(
    clock: object, nsqd: Callable[..., respx.Route], plain: BlockingCluster
) -> None:
    nsqd(stats(depth=7, paused=True, in_flight_count=2))
    seen = Seen()
    watched = Draining(seen.puller, plain, LIMIT)
    seen.quiet_for = LIMIT
    with pytest.raises(
        ResponseTimeoutError,
        match=r"topic 't', channel 'c': nsqd 127.0.0.1:4150 delivers nothing, but holds 7 messages, and 2 are "
        r"in flight to other clients; the channel is paused\. Resume",
    ):
        watched.is_done()
