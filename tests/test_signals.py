"""SIGTERM and SIGINT: the first one stops gently, the second one at once. Signals are real, most to other processes."""

import asyncio
import itertools
import signal
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import pytest

from nsq_ha import ConfigError, Consumer, Producer, sync
from nsq_ha.devcluster import DevCluster
from nsq_ha.message import Message
from nsq_ha.process.signals import StopSignals
from tests.support.programs import STRICT, Program
from tests.support.threads import in_thread
from tests.support.waiting import eventually, turn

LIMIT: Final = 60.0
NUMBER: Final = itertools.count()

NUMBERS = [signal.SIGTERM, signal.SIGINT]


@pytest.fixture
def before() -> Iterator[list[int]]:
    """Note the signals that arrive outside, as the application's own handlers would."""
    arrived: list[int] = []

    def note(number: int, frame: object) -> None:
        arrived.append(number)

    previous = {number: signal.signal(number, note) for number in NUMBERS}
    yield arrived
    for number, handler in previous.items():
        signal.signal(number, handler)


async def ignore(message: Message) -> None: ...


class Calls:
    """Notes what is called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def stop(self, name: str) -> None:
        self.calls.append(name)

    def hurry(self) -> None:
        self.calls.append("at once")


# ---------------------------------------------------------------- in this process


@pytest.mark.parametrize("number", NUMBERS)
async def test_signals_call_into_the_loop_and_the_third_one_acts_as_before(
    before: list[int], number: signal.Signals
) -> None:
    own, found = [signal.getsignal(each) for each in NUMBERS], Calls()
    with StopSignals(asyncio.get_running_loop(), found.stop, found.hurry):
        signal.raise_signal(number)
        await eventually(lambda: found.calls == [number.name])
        assert before == []
        signal.raise_signal(signal.SIGTERM)
        await eventually(lambda: found.calls == [number.name, "at once"])
        assert before == []
        signal.raise_signal(number)
        assert before == [number]
    assert [signal.getsignal(each) for each in NUMBERS] == own
    signal.raise_signal(signal.SIGINT)
    assert before == [number, signal.SIGINT]
    assert found.calls == [number.name, "at once"]


async def test_one_signal_is_for_all(before: list[int]) -> None:
    one, other, loop = Calls(), Calls(), asyncio.get_running_loop()
    with StopSignals(loop, one.stop, one.hurry), StopSignals(loop, other.stop, other.hurry):
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)
        await eventually(lambda: one.calls == other.calls == ["SIGINT", "at once"])
    assert before == [signal.SIGINT]


async def test_a_signal_that_stops_nothing_is_sent_again(before: list[int]) -> None:
    found = Calls()
    with StopSignals(asyncio.get_running_loop(), found.stop, found.hurry):
        signal.raise_signal(signal.SIGTERM)  # the loop has no turn before the block ends
    assert before == [signal.SIGTERM]
    await asyncio.sleep(0)  # one turn of the loop
    assert found.calls == []


def test_a_loop_that_is_closed_loses_no_signal(before: list[int]) -> None:
    loop, found = asyncio.new_event_loop(), Calls()
    loop.close()
    with StopSignals(loop, found.stop, found.hurry):
        signal.raise_signal(signal.SIGINT)
    assert (before, found.calls) == ([signal.SIGINT], [])


async def test_handlers_that_others_install_meanwhile_stay(before: list[int]) -> None:
    def other(number: int, frame: object) -> None: ...

    found = Calls()
    with StopSignals(asyncio.get_running_loop(), found.stop, found.hurry):
        signal.signal(signal.SIGTERM, other)
    assert signal.getsignal(signal.SIGTERM) is other
    assert signal.getsignal(signal.SIGINT) is not other
    assert before == []


def test_only_the_main_thread_may_ask() -> None:
    def handle(message: Message) -> None: ...

    with DevCluster() as cluster:
        topic = cluster.create_topic("orders")

        async def run() -> None:
            async with Consumer(topic, "ch", lookupd=cluster.lookupd) as consumer:
                await consumer.run(handle, install_signal_handlers=True)

        wanted = "install_signal_handlers=True works only in the main thread, and this is thread 'of a test'"
        with pytest.raises(ConfigError, match=wanted):
            in_thread(lambda: asyncio.run(run())).result(LIMIT)
        with sync.Consumer(topic, "ch", lookupd=cluster.lookupd) as consumer, pytest.raises(ConfigError, match=wanted):
            in_thread(lambda: consumer.run(handle, install_signal_handlers=True)).result(LIMIT)


async def test_a_run_leaves_signals_alone_unless_asked(before: list[int]) -> None:
    own = signal.getsignal(signal.SIGTERM)
    with DevCluster() as cluster:
        topic = cluster.create_topic("orders")
        async with Consumer(topic, "ch", lookupd=cluster.lookupd) as consumer:
            running = asyncio.create_task(consumer.run(ignore))
            await turn()
            assert signal.getsignal(signal.SIGTERM) is own
            await consumer.aclose()
            await running
    assert before == []


async def test_a_run_that_ends_otherwise_restores_them(before: list[int]) -> None:
    own = [signal.getsignal(each) for each in NUMBERS]
    with DevCluster() as cluster:
        topic = cluster.create_topic("orders")
        async with Consumer(topic, "ch", lookupd=cluster.lookupd) as consumer:
            running = asyncio.create_task(consumer.run(ignore, install_signal_handlers=True))
            await eventually(lambda: signal.getsignal(signal.SIGTERM) not in own)
            running.cancel()
            await asyncio.wait({running})
            assert [signal.getsignal(each) for each in NUMBERS] == own
            running = asyncio.create_task(consumer.run(ignore, install_signal_handlers=True))
            await eventually(lambda: signal.getsignal(signal.SIGTERM) not in own)
            await consumer.aclose()
            await running
    assert [signal.getsignal(each) for each in NUMBERS] == own
    assert before == []


async def test_a_signal_wakes_a_loop_that_is_about_to_sleep(before: list[int]) -> None:
    """Python only notes such a signal; its handler used to run when the loop woke for another reason."""

    def wakeup() -> int:
        found = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(found)
        return found

    found, loop = Calls(), asyncio.get_running_loop()
    assert wakeup() == -1
    with StopSignals(loop, found.stop, found.hurry):
        assert wakeup() != -1
    assert wakeup() == -1
    loop.add_signal_handler(signal.SIGUSR1, lambda: None)
    own = wakeup()
    with StopSignals(loop, found.stop, found.hurry):
        assert wakeup() == own  # asyncio's own wakes it, too
    assert wakeup() == own
    loop.remove_signal_handler(signal.SIGUSR1)
    with StopSignals(loop, found.stop, found.hurry):
        loop.add_signal_handler(signal.SIGUSR1, lambda: None)
        own = wakeup()
    assert wakeup() == own
    loop.remove_signal_handler(signal.SIGUSR1)
    assert (before, found.calls) == ([], [])


async def test_two_signals_at_the_same_time_close_at_once(before: list[int]) -> None:
    """The second one used to be lost when the close had not begun."""
    entered = asyncio.Event()

    async def hang(message: Message) -> None:
        entered.set()
        await asyncio.Event().wait()

    with DevCluster() as cluster:
        topic = cluster.create_topic("orders")
        async with (
            Consumer(topic, "ch", lookupd=cluster.lookupd, close_timeout=3600.0) as consumer,
            Producer(lookupd=cluster.lookupd) as producer,
        ):
            await producer.publish(topic, b"x")
            running = asyncio.create_task(consumer.run(hang, install_signal_handlers=True))
            await entered.wait()
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
            async with asyncio.timeout(LIMIT):
                await running
    assert before == []


# ---------------------------------------------------------------- in another process


HEAD = r"""
import asyncio, logging, os, signal, sys, threading, time
from nsq_ha import Consumer, Message
lookupd, topic = sys.argv[1:]

def say(text):
    os.write(1, f"{text}\n".encode())  # one write: threads may say something at the same time

class Lines(logging.Handler):
    def emit(self, record):
        if "closing" in record.getMessage():
            say(record.getMessage())

signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
logging.getLogger("nsq_ha.consumer").setLevel(logging.INFO)
logging.getLogger("nsq_ha.consumer").addHandler(Lines())
own = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]

def returned():
    now = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    say(f"returned {now == own}")

async def handle(message):
    say("handling")
    await asyncio.to_thread(sys.stdin.readline)
    say("handled")

async def hang(message):
    say("handling")
    await asyncio.Event().wait()

async def block(message):
    say("handling")
    time.sleep(3600)  # blocks the loop until a signal ends the process

def handle_in_a_thread(message):
    say("handling")
    sys.stdin.readline()
    say("handled")

def hang_in_a_thread(message):
    say("handling")
    threading.Event().wait()
"""

ASYNC = """
async def main():
    global own
    async with Consumer(topic, "ch", lookupd=lookupd, close_timeout=CLOSE) as consumer:
        own = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
        await consumer.run(HANDLER, install_signal_handlers=True)
        returned()
    say("left")
asyncio.run(main())
"""

UVLOOP = ASYNC.replace("asyncio.run(main())", "import uvloop\nuvloop.run(main())")

SYNC = """
from nsq_ha import sync
with sync.Consumer(topic, "ch", lookupd=lookupd, close_timeout=CLOSE) as consumer:
    consumer.run(HANDLER, install_signal_handlers=True)
    returned()
say("left")
"""

WORKER = """
from nsq_ha import Worker
async def main():
    global own
    own = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    worker = Worker(lookupd=lookupd, close_timeout=CLOSE)
    worker.add(topic, "ch", HANDLER)
    worker.add(topic, "other", HANDLER)
    await worker.run(install_signal_handlers=True)
    returned()
    say("left")
asyncio.run(main())
"""

SYNC_WORKER = """
from nsq_ha.sync import Worker
worker = Worker(lookupd=lookupd, close_timeout=CLOSE)
worker.add(topic, "ch", HANDLER)
worker.add(topic, "other", HANDLER)
worker.run(install_signal_handlers=True)
returned()
say("left")
"""

PROGRAMS = {"async": ASYNC, "uvloop": UVLOOP, "sync": SYNC, "worker": WORKER, "sync worker": SYNC_WORKER}


class Consuming(Program):
    """A program that consumes one message."""

    lines: list[str]

    def until(self, text: str) -> None:
        """Read what it prints until a line contains ``text``."""
        for line in self.stdout:
            self.lines.append(line.decode().rstrip("\n"))
            if text in self.lines[-1]:
                return
        raise AssertionError(f"it printed no {text!r} but {self.lines}")

    def enter(self) -> None:
        """Let a handler end."""
        self.stdin.write(b"\n")

    def ended(self) -> int:
        self.lines += self.stdout.read().decode().splitlines()
        return self.wait(LIMIT)

    def printed(self) -> list[str]:
        """Return the lines but for those of the log, which another thread writes."""
        return [line for line in self.lines if "closing" not in line]


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    with DevCluster() as cluster:
        yield cluster


@contextmanager
def program(cluster: DevCluster, kind: str, handler: str, close_timeout: float = 3600.0) -> Iterator[Consuming]:
    """Start a program whose handler has one message."""
    topic = cluster.create_topic(f"signals{next(NUMBER)}")
    with sync.Consumer(topic, "ch", lookupd=cluster.lookupd):
        pass  # the channel is there
    with sync.Producer(lookupd=cluster.lookupd) as producer:
        producer.publish(topic, b"x")
    text = HEAD + textwrap.dedent(PROGRAMS[kind]).replace("HANDLER", handler).replace("CLOSE", str(close_timeout))
    with Consuming(STRICT, text, cluster.lookupd[0], topic) as found:
        found.lines = []
        found.until("handling")
        yield found


TERM, INT = NUMBERS


@pytest.mark.parametrize(
    ("kind", "handler", "number"),
    [
        ("async", "handle", TERM),
        ("async", "handle_in_a_thread", INT),
        ("uvloop", "handle", INT),
        ("sync", "handle_in_a_thread", TERM),
        ("sync", "handle", INT),
        ("worker", "handle", TERM),
        ("sync worker", "handle_in_a_thread", INT),
    ],
)
def test_the_first_signal_lets_handlers_end(
    cluster: DevCluster, kind: str, handler: str, number: signal.Signals
) -> None:
    with program(cluster, kind, handler) as one:
        one.send_signal(number)
        one.until(f"closing after {number.name}; a second signal closes at once")
        one.enter()
        assert one.ended() == 0
    assert one.printed()[-3:] == ["handled", "returned True", "left"]


@pytest.mark.parametrize(
    ("kind", "handler", "first", "second"),
    [
        ("async", "hang", TERM, INT),
        ("async", "hang_in_a_thread", TERM, TERM),
        ("uvloop", "hang", INT, TERM),
        ("sync", "hang_in_a_thread", INT, INT),
        ("worker", "hang", TERM, INT),
        ("sync worker", "hang_in_a_thread", TERM, TERM),
    ],
)
def test_the_second_signal_ends_them(
    cluster: DevCluster, kind: str, handler: str, first: signal.Signals, second: signal.Signals
) -> None:
    with program(cluster, kind, handler) as one:
        one.send_signal(first)
        one.until("closing after")
        one.send_signal(second)
        one.until("closing at once: running handlers are cancelled")
        assert one.ended() == 0
    assert one.printed()[-2:] == ["returned True", "left"]


def test_handlers_have_close_timeout_to_end(cluster: DevCluster) -> None:
    with program(cluster, "async", "hang", close_timeout=0.2) as one:
        one.send_signal(signal.SIGTERM)
        assert one.ended() == 0
    assert one.printed()[-2:] == ["returned True", "left"]


def test_a_blocked_loop_is_ended_by_the_previous_handlers(cluster: DevCluster) -> None:
    with program(cluster, "async", "block") as one:
        code = None
        while code is None:  # two signals may arrive as one
            one.send_signal(signal.SIGTERM)
            with suppress(TimeoutError):
                code = one.wait(0.05)
    assert code == 7
