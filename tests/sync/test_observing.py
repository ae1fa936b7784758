"""Events, statistics and health of the clients for threads."""

import threading

import pytest

from nsq_ha.devcluster import DevCluster
from nsq_ha.errors import ResponseTimeoutError, TopicNotFoundError
from nsq_ha.events import Connected, Disconnected, Event
from nsq_ha.sync import Consumer, Producer


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


def test_a_consumer(cluster: DevCluster, topic: str) -> None:
    found: list[Event] = []
    consumer = Consumer(topic, "ch", lookupd=cluster.lookupd, on_event=found.append)
    assert (consumer.health().reason, consumer.is_healthy) == ("not started yet", False)
    assert consumer.stats().partitions == ()
    with consumer, Producer(lookupd=cluster.lookupd) as producer:
        consumer.wait_ready(timeout=60.0)
        assert (consumer.health().reason, consumer.is_healthy) == ("ok", True)
        producer.publish(topic, b"x")
        for message in consumer:
            with message:
                assert consumer.stats().delivered == 1
            break
    assert (consumer.health().reason, consumer.stats().finished) == ("closed", 1)
    assert {event.channel for event in found if isinstance(event, Connected)} == {"ch"}


def test_a_function_that_uses_the_client_in_its_own_thread_is_told_why_it_cannot_wait(
    cluster: DevCluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    def on_event(_: Event) -> None:
        producer.publish(topic, b"y")

    producer = Producer(lookupd=cluster.lookupd, on_event=on_event)
    with producer:
        producer.publish(topic, b"x")
    [line] = [record.getMessage() for record in caplog.records if record.name == "nsq_ha.events"]
    assert "would wait for itself" in line
