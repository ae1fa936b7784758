"""Publishing from threads."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from nsq_ha import ClosedError, ConfigError, PublishError, Receipt
from nsq_ha.devcluster import DevCluster
from nsq_ha.process import loop_thread
from nsq_ha.sync import Consumer, Producer
from nsq_ha.sync.outstanding import OVERHEAD
from tests.support.nsqd import LIMIT
from tests.support.threads import at_once, in_thread, until


def read(cluster: DevCluster, topic: str, number: int) -> list[bytes]:
    """Return the bodies of ``number`` messages of the channel ``ch``."""
    bodies: list[bytes] = []
    with Consumer(topic, "ch", lookupd=cluster.lookupd) as consumer:
        for message in consumer:
            with message:
                bodies.append(message.body)
            if len(bodies) == number:
                break
    return bodies


def test_a_publish_returns_its_receipt(cluster: DevCluster, topic: str) -> None:
    with Producer(lookupd=cluster.lookupd) as producer:
        assert isinstance(producer.publish(topic, b"one", key="k"), Receipt)
        assert len(producer.publish_many(topic, [b"two", b"three"])) == 2
    assert sorted(read(cluster, topic, 3)) == [b"one", b"three", b"two"]


def test_an_iterator_of_messages_is_read_in_the_callers_thread(cluster: DevCluster, topic: str) -> None:
    """It may block, or publish itself."""
    threads: set[int] = set()
    with Producer(lookupd=cluster.lookupd) as producer:

        def bodies() -> Iterator[bytes]:
            threads.add(threading.get_ident())
            producer.publish(topic, b"first")
            yield b"second"

        assert len(producer.publish_many(topic, bodies())) == 1
        assert len(producer.publish_many(topic, messages=iter([b"third"]))) == 1
    assert threads == {threading.get_ident()}
    assert sorted(read(cluster, topic, 3)) == [b"first", b"second", b"third"]


def test_the_first_use_starts_it_once_whatever_thread_comes_first(cluster: DevCluster, topic: str) -> None:
    producer = Producer(lookupd=cluster.lookupd)
    receipts = at_once(8, lambda index: producer.publish(topic, b"%d" % index))
    assert all(isinstance(receipt, Receipt) for receipt in receipts)
    assert producer.start() is producer
    producer.stop()
    producer.stop()
    assert sorted(read(cluster, topic, 8)) == [b"%d" % number for number in range(8)]


def test_one_that_was_stopped_says_so(cluster: DevCluster, topic: str) -> None:
    with Producer(lookupd=cluster.lookupd) as producer:
        producer.publish(topic, b"x")
    for call in (lambda: producer.publish(topic, b"x"), producer.start, lambda: producer.publish_nowait(topic, b"x")):
        with pytest.raises(ClosedError, match="the Producer was stopped: create a new one"):
            call()
    producer.flush()


def test_one_that_was_never_started_may_be_stopped_and_used_later(cluster: DevCluster, topic: str) -> None:
    producer = Producer(lookupd=cluster.lookupd)
    producer.stop()
    with producer:
        assert producer.publish(topic, b"x").topic == topic


def test_wrong_options_and_arguments_are_refused_at_once(cluster: DevCluster, topic: str) -> None:
    with pytest.raises(ConfigError, match="did you mean 'window'"):
        Producer(lookupd=cluster.lookupd, windou=3)  # type: ignore[call-arg]
    with Producer(lookupd=cluster.lookupd) as producer:
        with pytest.raises(ConfigError):
            producer.publish(topic, b"")
        with pytest.raises(TypeError, match="body"):
            producer.publish(topic)  # type: ignore[call-arg]


def test_starting_may_fail_and_be_tried_again(cluster: DevCluster, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = Producer(lookupd=cluster.lookupd)

    async def fail(self: object) -> None:
        raise OSError("no descriptors left")

    with monkeypatch.context() as patch:
        patch.setattr("nsq_ha.engine.lookups.Lookups.start", fail)
        with pytest.raises(OSError, match="no descriptors left"):
            producer.publish(topic, b"x")
    with producer:
        assert producer.publish(topic, b"x").topic == topic


def test_publishes_without_waiting_keep_the_order_of_their_thread(cluster: DevCluster, topic: str) -> None:
    each = 200
    with Producer(lookupd=cluster.lookupd) as producer:

        def publish(index: int) -> None:
            for number in range(each):
                producer.publish_nowait(topic, b"%d %d" % (index, number), key=f"key-{index}")

        at_once(4, publish)
        producer.flush()
        bodies = read(cluster, topic, 4 * each)
    for index in range(4):
        mine = [body for body in bodies if body.startswith(b"%d " % index)]
        assert mine == [b"%d %d" % (index, number) for number in range(each)]


def test_flush_raises_the_errors_that_nobody_has_seen(cluster: DevCluster, topic: str) -> None:
    with Producer(lookupd=cluster.lookupd) as producer:
        producer.flush()
        good = producer.publish_nowait(topic, b"x")
        seen = producer.publish_nowait("nowhere", b"x", timeout=0.05)
        assert isinstance(seen.exception(LIMIT), PublishError)
        producer.flush()
        assert good.done()
        for _ in range(2):
            producer.publish_nowait("nowhere", b"x", timeout=0.05)
        with pytest.raises(PublishError, match="nowhere") as raised:
            producer.flush()
        assert raised.value.__notes__ == ["2 publishes by publish_nowait() have failed"]
        producer.flush()


def test_flush_waits_no_longer_than_its_limit(cluster: DevCluster, topic: str) -> None:
    with Producer(lookupd=cluster.lookupd) as producer:
        producer.publish(topic, b"x", partition=0)
        node = str(cluster.leader(topic, 0))
        cluster.refuse_writes(node)
        try:
            future = producer.publish_nowait(topic, b"held up", partition=0)
            with pytest.raises(TimeoutError, match="1 publishes are still under way"):
                producer.flush(0.01)
        finally:
            cluster.refuse_writes(node, refuse=False)
        producer.flush(LIMIT)
        assert future.result(LIMIT).partition == 0


def test_a_future_can_be_cancelled(cluster: DevCluster) -> None:
    with Producer(lookupd=cluster.lookupd) as producer:
        future = producer.publish_nowait("absent", b"x")
        assert future.cancel()
        producer.flush(LIMIT)
        assert future.cancelled()


def test_a_start_that_completes_as_its_wait_ends_is_kept(cluster: DevCluster, topic: str) -> None:
    """The client is used; before, it stayed open for ever beside a new one."""

    producer = Producer(lookupd=cluster.lookupd)
    client = producer._client
    real = Future.result

    def interrupted(future: Future[None], timeout: float | None = None) -> object:
        real(future, timeout)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop_thread.CallFuture, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            producer.start()
    with producer:
        assert producer._client is client
        assert producer.publish(topic, b"x").topic == topic


def test_errors_that_nobody_has_seen_are_logged_at_the_end(
    cluster: DevCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with Producer(lookupd=cluster.lookupd) as producer:
        future = producer.publish_nowait("nowhere", b"x", timeout=0.05)
        until(future.done)
    assert any("1 publishes by publish_nowait() failed" in record.message for record in caplog.records)


def test_publishes_that_nobody_waits_for_do_not_fill_the_memory(cluster: DevCluster, topic: str) -> None:
    body = b"x" * 1000
    most = 10 * (len(body) + OVERHEAD)
    with Producer(lookupd=cluster.lookupd, max_pending_bytes=most) as producer:
        producer.publish(topic, b"x", partition=0)
        node = str(cluster.leader(topic, 0))
        cluster.refuse_writes(node)
        pending = producer._outstanding._futures

        def publish() -> list[Future[Receipt]]:
            return [producer.publish_nowait(topic, body, partition=0) for _ in range(30)]

        publishing = in_thread(publish)
        until(lambda: len(pending) == 10 and producer._outstanding._waiters)
        assert not publishing.done()
        cluster.refuse_writes(node, refuse=False)
        assert len(publishing.result(LIMIT)) == 30
        producer.flush(LIMIT)
        assert not pending


@pytest.mark.parametrize("most", [0, -1, 10.5, 2**41, "1000", True])
def test_the_limit_of_what_nobody_waits_for_is_checked(most: Any) -> None:  # noqa: ANN401 - wrong ones, too
    with pytest.raises(ConfigError, match=r"^max_pending_bytes must be"):
        Producer(lookupd="127.0.0.1:4161", max_pending_bytes=most)


def test_a_callback_in_the_event_loop_may_publish_without_waiting_only(cluster: DevCluster, topic: str) -> None:
    errors: list[BaseException] = []
    done = threading.Event()
    with Producer(lookupd=cluster.lookupd) as producer:

        def publish_again(future: Future[Receipt]) -> None:
            future.result()
            producer.publish_nowait(topic, b"second")
            for call in (lambda: producer.publish(topic, b"third"), producer.flush, producer.stop, producer.start):
                try:
                    call()
                except ConfigError as error:
                    errors.append(error)
            done.set()

        producer.publish_nowait(topic, b"first").add_done_callback(publish_again)
        assert done.wait(LIMIT)
        producer.flush(LIMIT)
    assert len(errors) == 3
    assert "Producer.publish() was called in the background event loop" in str(errors[0])
    assert sorted(read(cluster, topic, 2)) == [b"first", b"second"]


def test_stopping_waits_for_publishes_that_nobody_waits_for(cluster: DevCluster, topic: str) -> None:
    producer = Producer(lookupd=cluster.lookupd)
    futures = [producer.publish_nowait(topic, b"%d" % number) for number in range(100)]
    producer.stop()
    assert all(isinstance(future.result(0), Receipt) for future in futures)


def test_stopping_while_it_starts_ends_the_start(
    cluster: DevCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = threading.Event()

    async def wait_forever(self: object) -> None:
        began.set()
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr("nsq_ha.engine.lookups.Lookups.start", wait_forever)
    producer = Producer(lookupd=cluster.lookupd)
    starting = in_thread(lambda: producer.publish(topic, b"x"))
    assert began.wait(LIMIT)
    producer.stop()
    assert isinstance(starting.exception(LIMIT), ClosedError)


def test_it_can_be_used_inside_another_event_loop(cluster: DevCluster, topic: str) -> None:
    """It blocks that loop, as any blocking call, but works."""

    async def main() -> Receipt:
        with Producer(lookupd=cluster.lookupd) as producer:
            return producer.publish(topic, b"x")

    assert asyncio.run(main()).topic == topic


def test_tracing_is_switched_as_on_the_async_one(cluster: DevCluster, topic: str) -> None:
    with Producer(lookupd=cluster.lookupd, trace=True) as producer:
        assert producer.trace is True
        assert producer.publish(topic, b"x").trace_id
        producer.trace = [topic + "x"]
        assert producer.trace == frozenset({topic + "x"})
        assert producer.publish(topic, b"x").trace_id is None


def test_a_client_that_fails_to_close_at_exit_holds_up_nothing() -> None:
    """What atexit calls, in a loop of the test's own: all clients close at the same time, within their limits."""
    portal = loop_thread.Portal("exits")
    closed: list[str] = []

    async def close(name: str, error: Exception | None) -> None:
        closed.append(name)
        if error is not None:
            raise error

    async def hang() -> None:
        await asyncio.get_running_loop().create_future()

    portal.close_at_exit("one", lambda: partial(close, "one", OSError("no")), 0.01)
    portal.close_at_exit("two", lambda: partial(close, "two", None), 0.01)
    portal.close_at_exit("three", lambda: partial(close, "three", None), 0.01)
    portal.forget("three")
    portal.close_clients()
    assert closed == ["one", "two"]
    portal.close_at_exit("four", lambda: hang, -loop_thread.GRACE)
    portal.close_clients()
    portal.close()
