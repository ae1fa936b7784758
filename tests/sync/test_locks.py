"""A thread that calls a client while it holds a lock, or while something blocks the event loop, goes on."""

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from nsq_ha import PublishError
from nsq_ha.devcluster import DevCluster
from nsq_ha.errors import ResponseTimeoutError
from nsq_ha.events import Event
from nsq_ha.sync import AdminClient, Consumer, Producer, facade, outstanding
from tests.support.nsqd import LIMIT


def in_time(work: Callable[[], object]) -> None:
    """Call ``work`` in a thread, which must end."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:  # noqa: BLE001 - raised below
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LIMIT)
    assert found, "the call hangs"
    if isinstance(found[0], BaseException):
        raise found[0]


class Publishing(logging.Handler):
    """Publishes the lines of the application, while it holds the lock of every handler."""

    def __init__(self, producer: Producer, topic: str, timeout: float) -> None:
        super().__init__()
        self.producer, self.topic, self.timeout = producer, topic, timeout
        self.lines: list[str] = []
        self.outcomes: list[object] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.name)
        if record.name == "app":
            try:
                self.outcomes.append(
                    self.producer.publish(self.topic, record.getMessage().encode(), timeout=self.timeout)
                )
            except PublishError as error:
                self.outcomes.append(error)


@pytest.fixture
def attached() -> Iterator[Callable[[Publishing], None]]:
    """Return a function that attaches a handler to the root, where everything is logged."""
    root, ours = logging.getLogger(), logging.getLogger("nsq_ha")
    added: list[Publishing] = []

    def attach(handler: Publishing) -> None:
        added.append(handler)
        root.addHandler(handler)
        ours.setLevel(logging.DEBUG)

    yield attach
    for handler in added:
        root.removeHandler(handler)
    ours.setLevel(logging.NOTSET)


def test_a_log_handler_publishes(cluster: DevCluster, topic: str, attached: Callable[[Publishing], None]) -> None:
    with Producer(lookupd=cluster.lookupd) as producer:
        handler = Publishing(producer, topic, LIMIT)
        attached(handler)
        for number in range(3):
            in_time(lambda number=number: logging.getLogger("app").error("line %d", number))  # type: ignore[misc]
    assert [type(each).__name__ for each in handler.outcomes] == ["Receipt"] * 3
    assert any(name.startswith("nsq_ha") for name in handler.lines), "the loop's lines arrive, too"


def test_on_event_may_need_the_lock_of_a_thread_that_publishes(cluster: DevCluster, topic: str) -> None:
    lock = threading.Lock()
    events: list[Event] = []

    def on_event(event: Event) -> None:
        with lock:
            events.append(event)

    with Producer(lookupd=cluster.lookupd, on_event=on_event) as producer, lock:
        in_time(lambda: producer.publish(topic, b"x"))
        assert not events
    assert events, "stop() waits until all is reported"


@pytest.fixture
def others() -> list[Consumer | AdminClient]:
    """Return a list of clients to stop when the loop is free again."""
    return []


@pytest.fixture
def blocked(cluster: DevCluster, topic: str, others: list[Consumer | AdminClient]) -> Iterator[Producer]:
    """Return a producer whose event loop a callback of the application blocks."""
    free, began = threading.Event(), threading.Event()

    def block(_: object) -> None:
        began.set()
        free.wait(LIMIT)

    with Producer(lookupd=cluster.lookupd, close_timeout=0.1, max_pending_bytes=65536, publish_timeout=0.5) as producer:
        producer.publish(topic, b"x", timeout=LIMIT)
        producer.publish_nowait(topic, b"x").add_done_callback(block)
        assert began.wait(LIMIT)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(facade, "MOMENT", 0.2)
            patch.setattr(outstanding, "MOMENT", 0.2)
            patch.setattr(facade, "START_LIMIT", 0.2)
            yield producer
        free.set()
        for each in others:
            each.stop()


def test_a_publish_ends_though_the_loop_is_blocked(blocked: Producer) -> None:
    for call in (
        lambda: blocked.publish("orders", b"x"),
        lambda: blocked.publish("orders", b"x", timeout=0.1),
        lambda: blocked.publish_many("orders", [b"x"]),
    ):
        with pytest.raises(PublishError, match="event loop does not answer") as caught:
            in_time(call)
        assert (caught.value.topic, caught.value.maybe_stored) == ("orders", True)
        assert isinstance(caught.value.__cause__, ResponseTimeoutError)


def test_so_do_other_calls(blocked: Producer, cluster: DevCluster, others: list[Consumer | AdminClient]) -> None:
    admin = AdminClient(cluster.lookupd, question_timeout=0.01)
    consumer = Consumer("orders", "ch", lookupd=cluster.lookupd, start_timeout=0.1, close_timeout=0.1)
    others += [admin, consumer]
    for call in (
        lambda: blocked.wait_ready("orders", timeout=0.1),
        admin.topics,
        lambda: admin.describe("orders", timeout=0.1),
        lambda: next(consumer),
        lambda: consumer.wait_ready(timeout=0.1),
        blocked.stop,
        lambda: blocked.__exit__(None, None, None),
    ):
        with pytest.raises(ResponseTimeoutError, match="event loop does not answer"):
            in_time(call)


def test_so_do_publishes_that_nobody_waits_for(blocked: Producer) -> None:
    future = blocked.publish_nowait("orders", bytes(65536), timeout=0.1)
    with pytest.raises(TimeoutError, match="still under way"):
        in_time(blocked.flush)
    with pytest.raises(ResponseTimeoutError, match="max_pending_bytes=65536"):
        in_time(lambda: blocked.publish_nowait("orders", b"x", timeout=0.1))
    assert not future.done()


FORKS = """
import os, sys
from nsq_ha.errors import PublishError

def before():
    try:
        producer.publish({topic!r}, b"x", timeout=0.2)
    except PublishError as error:
        print("late", flush=True)

os.register_at_fork(before=before)  # runs after what nsq_ha registers later
from nsq_ha.sync import Producer
producer = Producer(lookupd={lookupd!r})
producer.publish({topic!r}, b"x", timeout=60)
if os.fork() == 0:
    os._exit(0)
os.wait()
producer.publish({topic!r}, b"x", timeout=60)
print("stored")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
def test_a_publish_before_a_fork_ends(cluster: DevCluster, topic: str) -> None:
    program = FORKS.format(topic=topic, lookupd=cluster.lookupd[0])
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=6 * LIMIT
    )
    assert done.stdout.split() == ["late", "stored"]


LOGS = """
import logging
from nsq_ha.sync import Producer

class Publishing(logging.Handler):
    lines, errors = [], []

    def emit(self, record):
        if not record.name.startswith("nsq_ha"):
            self.lines.append(record.name)
            try:
                producer.publish_nowait({topic!r}, record.getMessage().encode(), timeout=60)
            except Exception as error:
                self.errors.append(error)

producer = Producer(lookupd={lookupd!r})
logging.basicConfig(level=logging.DEBUG, handlers=[Publishing()])
logging.getLogger("app").info("its first line")
producer.flush(timeout=60)
logging.getLogger().handlers.clear()
print(Publishing.errors, "asyncio" in Publishing.lines)
"""


def test_a_log_handler_starts_its_producer_though_asyncio_logs_that(cluster: DevCluster, topic: str) -> None:
    """The line "Using selector" came to the handler inside the start, which began again, up to a RecursionError."""
    program = LOGS.format(topic=topic, lookupd=cluster.lookupd[0])
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=6 * LIMIT
    )
    assert done.stdout.split() == ["[]", "True"]
