"""What is acknowledged and not flushed yet: what nsqd says of it, and when it can be read.

The expected answers were taken from a real cluster, on a topic with ``syncdisk``.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from nsq_ha.devcluster import DevCluster
from tests.devcluster.probes import Probe, consumer, finish, topic_of, until
from tests.devcluster.wire import pub
from tests.support.inside import in_cluster, nsqd_of

NOTHING = (500, "INTERNAL_ERROR")
"""The answer about the end itself."""
BEHIND = (404, "disk reader move offset overflowed the end")


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    with DevCluster(nsqds=1, nsqlookupds=1, time_scale=0.02) as cluster:
        nsqd_of(cluster, "nsqd-0").next_flush = float("inf")  # the clock ticks when a test says so
        yield cluster


@pytest.fixture
def seen(cluster: DevCluster, request: pytest.FixtureRequest) -> Iterator[Probe]:
    """A topic of its own, with 10 readable rows of 32 bytes."""
    with topic_of(request, cluster, 1) as seen:
        publish(seen, *(b"m%d" % number for number in range(10)))
        clock(seen)
        yield seen


def publish(seen: Probe, *bodies: bytes) -> None:
    with seen.wire(seen.leader(), *(pub(seen.topic, body) for body in bodies)) as wire:
        for _ in bodies:
            assert wire.answer() == b"OK"


def publish_batch(seen: Probe, *bodies: bytes) -> None:
    url = seen.cluster.http_address(seen.leader()) + "/mpub"
    answer = seen.http.post(url, params={"topic": seen.topic, "partition": "0"}, content=b"\n".join(bodies))
    assert answer.text == "OK"


def clock(seen: Probe) -> None:
    """Let the clock flush the partition now."""
    node = nsqd_of(seen.cluster, seen.leader())
    replica = node.replicas[seen.topic, 0]

    def turn() -> None:
        replica.flushing.tick()
        replica.dispatch(node.host.now())

    in_cluster(seen.cluster, turn)


def get(seen: Probe, mode: str, position: int) -> tuple[Any, ...]:
    params = {"topic": seen.topic, "partition": "0", "search_mode": mode, "search_pos": str(position)}
    answer = seen.http.get(seen.cluster.http_address(seen.leader()) + "/message/get", params=params)
    given = answer.json()
    return (answer.status_code, given["message"]) if answer.status_code != 200 else (given["body"], given["offset"])


def call(seen: Probe, path: str, content: bytes = b"", channel: str = "billing") -> tuple[int, str]:
    params = {"topic": seen.topic, "partition": "0", "channel": channel}
    answer = seen.http.post(seen.cluster.http_address(seen.leader()) + path, params=params, content=content)
    return answer.status_code, answer.json()["message"] if answer.content else ""


def numbers(seen: Probe, channel: str = "billing") -> tuple[int, int, int]:
    """Messages of the topic, of the channel, and what the channel has not confirmed."""
    params = {"format": "json", "topic": seen.topic, "channel": channel}
    given = seen.http.get(seen.cluster.http_address(seen.leader()) + "/stats", params=params).json()["topics"][0]
    (its,) = given["channels"]
    return given["message_count"], its["message_count"], its["depth"]


def test_fresh_rows_are_answered_with_the_first_message_or_an_error(seen: Probe) -> None:
    publish(seen, b"n11", b"n12")
    publish_batch(seen, b"q13", b"q14", b"q15")
    first = ("m0", 0)
    assert [get(seen, "count", number) for number in (1, 10, 11, 12, 13, 14, 15, 16)] == [
        *(first, ("m9", 288), NOTHING, first, first, BEHIND, BEHIND, BEHIND)
    ]
    assert [get(seen, "virtual_offset", number) for number in (288, 289, 320, 321, 353, 386, 387, 485)] == [
        *(("m9", 288), NOTHING, NOTHING, NOTHING, first, first, BEHIND, BEHIND)
    ]
    assert [get(seen, "id", number) for number in (0, 11, 12, 13, 14, 15, 18)] == [
        *(first, ("m9", 288), NOTHING, first, first, first, first)
    ]
    clock(seen)
    assert [get(seen, "count", number) for number in (0, 11, 14, 15, 16)] == [
        *(first, ("n11", 320), ("q14", 419), ("q15", 452), NOTHING)
    ]
    # A batch has one entry in the commit log, and is found as its first message.
    assert [get(seen, "id", number) for number in (12, 15, 16, 99)] == [("n11", 320), *[("q13", 386)] * 3]
    assert [get(seen, "virtual_offset", number) for number in (-5, 353, 387, 486)] == [
        *(first, ("n12", 353), ("q14", 419), NOTHING)
    ]


def test_a_new_channel_starts_at_the_last_flushed_end_and_gets_what_is_behind_it(seen: Probe) -> None:
    publish(seen, b"fresh")
    assert call(seen, "/channel/create")[0] == 200
    assert numbers(seen) == (11, 11, 1)
    with consumer(seen, word="SUB") as consuming:
        assert consuming.message().endswith(b"fresh")


def test_only_a_channel_that_has_confirmed_everything_hurries_the_flush(seen: Probe) -> None:
    call(seen, "/channel/create")
    publish(seen, b"seen")
    assert numbers(seen) == (11, 11, 1)
    publish(seen, b"hidden")
    assert numbers(seen) == (12, 11, 1)
    assert call(seen, "/channel/empty") == (200, "")
    assert numbers(seen) == (12, 11, 0)  # it skips to its own end: what is behind comes later
    publish(seen, b"third")
    assert numbers(seen) == (13, 13, 2)


def test_a_message_behind_one_that_is_held_comes_with_its_answer_or_the_clock(seen: Probe) -> None:
    with consumer(seen, word="SUB", ready=5) as consuming:
        publish(seen, b"first")
        held = consuming.message()
        publish(seen, b"second")
        assert consuming.is_quiet(0.05)
        finish(consuming, held)
        held = consuming.message()
        assert held.endswith(b"second")
        publish(seen, b"third")
        assert consuming.is_quiet(0.05)
        clock(seen)
        assert consuming.message().endswith(b"third")


def test_unpausing_does_not_flush_what_came_meanwhile(seen: Probe) -> None:
    call(seen, "/channel/create")
    assert call(seen, "/channel/pause")[0] == 200
    publish(seen, b"a", b"b")
    assert call(seen, "/channel/unpause")[0] == 200
    assert numbers(seen) == (12, 10, 0)
    publish(seen, b"c")
    assert numbers(seen) == (13, 13, 3)


def test_a_channel_that_skips_follows_the_clock(seen: Probe) -> None:
    call(seen, "/channel/create")
    assert call(seen, "/channel/skip")[0] == 200
    publish(seen, b"a", b"b")
    assert numbers(seen) == (12, 10, 0)
    clock(seen)
    assert numbers(seen) == (12, 12, 0)
    publish(seen, b"c")
    assert call(seen, "/channel/unskip")[0] == 200
    assert numbers(seen) == (13, 13, 0)


def test_a_channel_cannot_be_sent_behind_its_end(seen: Probe) -> None:
    call(seen, "/channel/create")
    publish(seen, b"readable")
    publish(seen, b"n12", b"n13")
    assert call(seen, "/channel/setoffset", b"msgcount:12")[0] == 200
    assert numbers(seen) == (13, 11, 0)
    assert call(seen, "/channel/setoffset", b"virtual_queue:0")[0] == 200
    assert call(seen, "/channel/setoffset", b"msgcount:13")[0] == 200  # and ignored
    assert numbers(seen) == (13, 11, 11)
    assert call(seen, "/channel/setoffset", b"msgcount:14") == (500, BEHIND[1])
    assert call(seen, "/channel/setoffset", b"timestamp:9000000000")[0] == 200
    assert numbers(seen) == (13, 11, 0)


def test_a_position_is_searched_for_only_where_it_is_used(seen: Probe) -> None:
    command = f"SUB_ADVANCED {seen.topic} billing 0 timestamp:-1\n".encode()
    with consumer(seen, word="SUB"), seen.wire(seen.leader(), command) as second:
        assert second.answer() == b"OK"
    alone = command.replace(b"billing", b"another")
    with seen.wire(seen.leader(), alone) as wire:
        assert wire.answer() == b"E_INVALID Invalid timestamp -1"


def test_a_topic_that_flushes_each_message_hides_nothing(cluster: DevCluster) -> None:
    cluster.create_topic("synced", 1, 1, sync_every=0)
    seen = Probe(cluster, "synced")
    publish(seen, b"a", b"b")
    assert get(seen, "count", 2) == ("b", 31)
    cluster.create_topic("few", 1, 1, sync_every=3)
    few = Probe(cluster, "few")
    publish(few, b"a", b"b")
    assert get(few, "count", 1) == NOTHING
    publish(few, b"c")
    assert get(few, "count", 3) == ("c", 62)
    seen.http.close()
    few.http.close()


def test_the_clock_flushes_in_time() -> None:
    with DevCluster(nsqds=1, nsqlookupds=1) as cluster:
        cluster.create_topic("orders", 4, 1, multi_part=True)
        seen = Probe(cluster, "orders")
        for number in range(4):
            assert seen.publish(seen.leader(number), b"fresh", number) == b"OK"
            assert seen.stored(number) == [b"fresh"]
        seen.http.close()


def test_a_new_leader_has_flushed_everything() -> None:
    with DevCluster(nsqlookupds=1, time_scale=0.05) as cluster:
        cluster.create_topic("orders")
        seen = Probe(cluster, "orders")
        publish(seen, b"fresh")
        cluster.move_leader("orders")
        assert get(seen, "count", 1) == ("fresh", 0)
        until(lambda: seen.stored() == [b"fresh"])
        seen.http.close()
