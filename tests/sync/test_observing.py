"""Events, statistics and health of the clients for threads."""

import threading

import pytest

from nsq_ha.devcluster import DevCluster
from nsq_ha.errors import ResponseTimeoutError, TopicNotFoundError
from nsq_ha.events import Connected, Disconnected, Event
from nsq_ha.sync import Producer


def test_a_producer(cluster: DevCluster, topic: str) -> None:
    found: list[tuple[Event, int]] = []
    producer = Producer(lookupd=cluster.lookupd, on_event=lambda event: found.append((event, threading.get_ident())))
    assert (producer.health().reason, producer.is_healthy) == ("not started yet", False)
    assert producer.stats().partitions == ()
    with producer:
        producer.wait_ready(topic, timeout=60.0)
        assert {partition.state for partition in producer.stats().partitions} == {"connected"}
        assert (producer.health().reason, producer.is_healthy) == ("ok", True)
        producer.publish(topic, b"x")
        assert producer.stats().published == 1
        with pytest.raises((ResponseTimeoutError, TopicNotFoundError)):
            producer.wait_ready("absent", timeout=0.1)
    assert (producer.health().reason, producer.stats().published) == ("closed", 1)
    events = [event for event, _ in found]
    assert {event.partition for event in events if isinstance(event, Connected)} == {0, 1}
    assert {event.partition for event in events if isinstance(event, Disconnected)} == {0, 1}
    assert threading.get_ident() not in {thread for _, thread in found}


def test_on_event_may_use_the_client(cluster: DevCluster, topic: str) -> None:
    stored = threading.Event()

    def on_event(event: Event) -> None:
        if isinstance(event, Connected):
            producer.publish(topic, b"y", key="k")
            stored.set()

    with Producer(lookupd=cluster.lookupd, on_event=on_event) as producer:
        producer.publish(topic, b"x")
        assert stored.wait(60.0)
