"""Several consumers in one worker for threads: handlers, and every way to stop."""

import threading
from typing import Any

import pytest

import nsq_ha
from nsq_ha import ClosedError, ConfigError, Message
from nsq_ha.devcluster import DevCluster
from nsq_ha.errors import WorkerError
from nsq_ha.sync import AdminClient, Producer, Worker
from tests.support.nsqd import LIMIT
from tests.support.threads import in_thread, until


def ignore(message: Message) -> None: ...


@pytest.fixture
def other(cluster: DevCluster, topic: str) -> str:
    """Return another topic with the channel ``ch``."""
    name = cluster.create_topic(f"{topic}b", 1, 1)
    with AdminClient(cluster.lookupd) as admin:
        admin.create_channel(name, "ch")
    return name


def test_each_topic_has_its_handler(cluster: DevCluster, topic: str, other: str) -> None:
    seen: list[tuple[str, bytes, bool]] = []
    worker = Worker(lookupd=cluster.lookupd, max_in_flight=50)

    def count(message: Message) -> None:
        seen.append((message.topic, message.body, threading.current_thread() is threading.main_thread()))
        if len(seen) == 2:
            worker.stop()

    @worker.handler(other, "ch", concurrency=2, max_in_flight=7)
    async def book(message: Message) -> None:
        count(message)

    one = worker.add(topic, "ch", count)
    assert worker.consumers[1] is one
    assert [each.max_in_flight for each in worker.consumers] == [7, 50]
    assert (worker.config.max_in_flight, worker.health().reason, worker.is_healthy) == (50, "not started yet", False)
    with Producer(lookupd=cluster.lookupd) as producer:
        producer.publish(topic, b"x")
        producer.publish(other, b"y")
    worker.run()
    assert sorted(seen) == [(topic, b"x", False), (other, b"y", False)]
    stats = worker.stats()
    assert (stats.delivered, stats.finished, stats.in_flight) == (2, 2, 0)
    assert [each.topic for each in stats.consumers] == [other, topic]
    assert (worker.health().reason, one.health().reason) == ("closed", "closed")
    with pytest.raises(ClosedError, match="a Worker can be run only once"):
        worker.run()
    worker.stop()


def test_its_consumers_can_be_used_while_it_runs(cluster: DevCluster, topic: str, other: str) -> None:
    worker = Worker(lookupd=cluster.lookupd)
    consumer = worker.add(topic, "ch", ignore)
    worker.add(other, "ch", ignore)
    consumer.set_max_in_flight(5)
    for use in (consumer.wait_ready, consumer.start, lambda: next(consumer)):
        with pytest.raises(ClosedError, match=r"its worker starts it, so call Worker\.run\(\) before"):
            use()
    consumer.stop()  # nothing has started
    running = in_thread(worker.run)
    until(lambda: worker.is_healthy and worker.health().reason == "ok")
    consumer.wait_ready(timeout=LIMIT)
    assert consumer.max_in_flight == 5
    consumer.set_max_in_flight(6)
    assert (consumer.max_in_flight, consumer.stats().max_in_flight) == (6, 6)
    with pytest.raises(ConfigError, match="run"):
        next(consumer)
    with pytest.raises(ConfigError, match="the worker runs already"):
        worker.add(topic, "later", ignore)
    consumer.stop()
    until(lambda: f"{topic}/ch: closed" in worker.health().reason)
    assert worker.is_healthy
    worker.stop()
    running.result(LIMIT)


def test_a_failure_is_raised_with_the_name_of_its_consumer(cluster: DevCluster, topic: str) -> None:
    worker = Worker(lookupd=cluster.lookupd)
    worker.add(topic, "ch", ignore, partitions=(7,))
    with pytest.raises(WorkerError, match=f"consumer of {topic}/ch failed: partitions: "):
        worker.run()
    assert worker.health().reason.startswith(f"consumer of {topic}/ch failed: partitions: ")


def test_a_stop_before_the_run_ends_it(cluster: DevCluster, topic: str) -> None:
    worker = Worker(lookupd=cluster.lookupd)
    worker.add(topic, "ch", ignore)
    worker.stop()
    worker.run()


def test_what_makes_no_sense_is_refused(cluster: DevCluster, topic: str) -> None:
    with pytest.raises(ConfigError, match="give lookupd="):
        Worker()
    worker = Worker(lookupd=cluster.lookupd)
    with pytest.raises(ConfigError, match="the worker has nothing to do"):
        worker.run()
    with pytest.raises(ConfigError, match="handler must be a function of a message"):
        worker.add(topic, "ch", 7)  # type: ignore[arg-type]
    options: dict[str, Any] = {"max_attempts": 1, "on_give_up": "republish"}
    with pytest.raises(ConfigError, match=r"must be a nsq_ha\.sync\.Producer"):
        worker.add(topic, "ch", ignore, producer=nsq_ha.Producer(lookupd=cluster.lookupd), **options)
    assert worker.consumers == ()
    worker.add(topic, "ch", ignore)
    with pytest.raises(ConfigError, match="works only in the main thread"):
        in_thread(lambda: worker.run(install_signal_handlers=True)).result(LIMIT)
    worker.stop()
    worker.run()  # nothing has begun, so it may still be run


def test_the_environment_has_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSQ_HA_LOOKUPD", "127.0.0.1:4161")
    monkeypatch.setenv("NSQ_HA_MAX_IN_FLIGHT", "9")
    assert Worker.from_env(msg_timeout=30.0).add("orders", "ch", ignore).config == nsq_ha.ConsumerConfig(
        lookupd=("http://127.0.0.1:4161",), max_in_flight=9, msg_timeout=30.0
    )
