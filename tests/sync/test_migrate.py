"""The producer for threads that publishes to two clusters."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator

import pytest

from nsq_ha import ClosedError, ConfigError, OutgoingMessage, Receipt, migrate, sync
from nsq_ha.devcluster import DevCluster

LIMIT = 60.0


@pytest.fixture(scope="module")
def other() -> Iterator[DevCluster]:
    with DevCluster(nsqlookupds=1, nsqds=1) as cluster:
        yield cluster


def test_threads_publish_to_both(cluster: DevCluster, other: DevCluster, topic: str) -> None:
    other.create_topic(topic, 1, 1)
    producers = sync.Producer(lookupd=cluster.lookupd), sync.Producer(lookupd=other.lookupd)
    found: dict[int, list[str]] = {}
    with sync.MigratingProducer(*producers, share=0) as producer:

        def publish(key: int) -> None:
            found[key] = []
            for number in range(20):
                if key == 0 and number == 10:
                    producer.set_share(100, topic)
                found[key].append(producer.publish(topic, b"%d" % number, key=key, timeout=LIMIT).nsqd)

        threads = [threading.Thread(target=publish, args=(key,)) for key in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert producer.share_of(topic) == 100
        assert producer.moving == 0
        assert producer.is_healthy
        assert producer.health().reason == "ok"
        many = producer.publish_many(topic, (OutgoingMessage(b"x", key=n) for n in range(3)), timeout=LIMIT)
    assert len({outcome.nsqd for outcome in many if isinstance(outcome, Receipt)}) == 1
    nodes = found[0]
    assert nodes[9] != nodes[10]
    current = nodes[10]
    for key, each in found.items():
        assert len(each) == 20, key
        moved_at = each.index(current) if current in each else 20
        assert set(each[moved_at:]) <= {current}, f"key {key} went back"
    with pytest.raises(ClosedError):
        producer.publish(topic, b"x")


def test_wrong_arguments_are_refused() -> None:
    producer = sync.Producer(lookupd="127.0.0.1:1")
    with pytest.raises(ConfigError, match="same producer"):
        sync.MigratingProducer(producer, producer, share=0)
    with pytest.raises(ConfigError, match=r"current must be a nsq_ha\.sync\.Producer"):
        sync.MigratingProducer(producer, object(), share=0)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="share must be"):
        sync.MigratingProducer(producer, sync.Producer(lookupd="127.0.0.1:1"), share=101)


def test_its_calls_are_those_of_the_async_one() -> None:
    def parameters(kind: type) -> dict[str, inspect.Parameter]:
        return dict(inspect.signature(kind).parameters)

    assert parameters(sync.MigratingProducer) == parameters(migrate.MigratingProducer)
    for name in ("publish", "publish_many", "set_share", "share_of", "health"):
        ours, theirs = (getattr(kind, name) for kind in (sync.MigratingProducer, migrate.MigratingProducer))
        assert inspect.signature(ours, eval_str=True) == inspect.signature(theirs, eval_str=True)
        assert inspect.getdoc(ours) == inspect.getdoc(theirs)
