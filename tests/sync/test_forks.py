"""Forks at unfortunate moments: the child works, or says within its limit why it cannot."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from nsq_ha.devcluster import DevCluster
from tests.support.nsqd import LIMIT

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")

ROOT = Path(__file__).parents[2]

HEAD = """
import logging, os, random, select, signal, sys, threading, time, traceback
import nsq_ha, nsq_ha.tracelog
from nsq_ha import NsqError
from nsq_ha.sync import AdminClient, Consumer, Producer, Worker
lookupd, topic, *arguments = sys.argv[1:]

def child(work, limit):
    '''Run work in a forked process, and kill that after the limit; return how it ended.'''
    near, far = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            text = work()
        except BaseException:
            text = traceback.format_exc().splitlines()[-1]
        os.write(far, (text or 'fine').encode())
        os._exit(0)
    os.close(far)
    if not select.select([near], [], [], limit)[0]:
        os.kill(pid, signal.SIGKILL)
    ended = os.read(near, 65536).decode() or 'hung'
    os.close(near)
    os.waitpid(pid, 0)
    return ended
"""


def run(cluster: DevCluster, topic: str, text: str, *arguments: str, limit: float = 8 * LIMIT) -> list[str]:
    """Run a program; return the lines that it prints."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", HEAD + textwrap.dedent(text)]
    ran = subprocess.run(
        [*command, cluster.lookupd[0], topic, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout.splitlines()


# -- nothing is loaded once there are threads


def test_what_functions_of_the_clients_import_is_loaded_with_the_package() -> None:
    """Whether or not a test comes past them."""
    late = {
        module
        for package in ("admin", "consumer", "dead_letters", "engine", "policy", "producer")
        for path in (ROOT / "nsq_ha" / package).rglob("*.py")
        # The linter wants this comment.
        for module in re.findall(r"^ +from (\S+) import .*# noqa: PLC0415", path.read_text("utf-8"), re.MULTILINE)
    }
    assert "nsq_ha.engine.quiet" in late
    program = "import sys; import nsq_ha.sync; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=6 * LIMIT, check=True
    )
    assert not late - set(loaded.stdout.split())


# -- a fork waits for the loop


HOLD = """
from nsq_ha.process import loop_thread
held, release = threading.Event(), threading.Event()
lock = threading.Lock()  # as one of OpenSSL

async def hold():
    with lock:
        held.set()
        release.wait()

portal = loop_thread.shared()
holding = portal.submit(hold)
held.wait()

def work():
    return str(lock.acquire(timeout=0))
"""


@pytest.mark.slow
def test_a_fork_waits_until_the_loop_holds_no_lock(cluster: DevCluster, topic: str) -> None:
    ended = run(
        cluster,
        topic,
        HOLD
        + """
os.register_at_fork(before=release.set)  # runs before those that were registered earlier
print(child(work, 30.0))
portal.call(lambda: print("goes on"))
""",
    )
    assert ended == ["True", "goes on"]


@pytest.mark.slow
def test_a_fork_does_not_wait_long_for_a_blocked_loop(cluster: DevCluster, topic: str) -> None:
    """Nor for its own loop, as in a handler of the background loop."""
    ended = run(
        cluster,
        topic,
        HOLD
        + """
loop_thread.LONGEST_FORK = 0.1
print(child(work, 30.0))
release.set()
loop_thread.LONGEST_FORK = 3600.0
print(portal.call(lambda: child(work, 30.0)))
""",
    )
    assert ended == ["False", "True"]


# -- a start has a limit


@pytest.mark.slow
def test_a_start_that_a_blocked_loop_holds_up_ends_with_an_error_and_goes_on_later(
    cluster: DevCluster, topic: str
) -> None:
    ended = run(
        cluster,
        topic,
        HOLD
        + """
from nsq_ha.sync import facade
facade.START_LIMIT = 0.2
logging.disable()
producer = Producer(lookupd=lookupd)
consumer = Consumer(topic, "ch", lookupd=lookupd, start_timeout=0.1, close_timeout=0.1)
for call in producer.start, consumer.start, lambda: producer.publish(topic, b"x", timeout=0.1):
    try:
        call()
    except TimeoutError as error:
        print(type(error).__name__, str(error)[:39])
release.set()
facade.START_LIMIT = 60.0
print(producer.publish(topic, b"x", timeout=60.0).topic == topic)
with consumer:
    print(next(consumer).body)
""",
    )
    assert ended == [
        "ResponseTimeoutError the Producer did not start within 0.2 s",
        "ResponseTimeoutError the Consumer did not start within 0.4 s",
        "ResponseTimeoutError the Producer did not start within 0.1 s",
        "True",
        "b'x'",
    ]


# -- signals


@pytest.mark.slow
def test_a_forked_child_ends_by_the_signals_that_stop_its_parent_gently(cluster: DevCluster, topic: str) -> None:
    """As the processes of a pool do when it ends them; Python 3.13.0 leaves a handler there to the next wait."""
    ended = run(
        cluster,
        topic,
        """
        consumer = Consumer(topic, "ch", lookupd=lookupd)
        codes = []

        def fork():
            while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                time.sleep(0.01)
            near, far = os.pipe()
            pid = os.fork()
            if not pid:
                os.write(far, b"runs")
                time.sleep(60.0)
                os._exit(7)
            os.read(near, 4)
            os.kill(pid, signal.SIGTERM)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            consumer.stop()

        threading.Thread(target=fork).start()
        consumer.run(print, install_signal_handlers=True)
        print(*codes)
        """,
    )
    assert ended == ["-15"]


# -- at any moment


AT_RANDOM = """
forks, seed = int(arguments[0]), int(arguments[1])
chance = random.Random(seed)
LIMIT = 6.0

def parent(moment):
    '''Fork at a moment after another thread begins its first call; return how the child ended.'''
    producer = Producer(lookupd=lookupd)
    first = threading.Thread(target=lambda: producer.publish(topic, b"parent", timeout=60.0), daemon=True)

    def work():
        began = time.monotonic()
        try:
            producer.publish(topic, b"child", timeout=LIMIT)
            shared = "works"
        except nsq_ha.ConfigError as error:
            assert "was started before the process was forked" in str(error)
            shared = "says why"
        with Producer(lookupd=lookupd) as own:
            own.publish(topic, b"child", timeout=LIMIT)
        return f"{shared} {time.monotonic() - began:.2f}"

    first.start()
    time.sleep(moment)
    ended = child(work, 2 * LIMIT + 3)
    first.join(60.0)
    return ended + (" and the parent hung" if first.is_alive() else "")

# Each parent is itself a fork, of a process without threads: a first call comes once in the life of a process.
for _ in range(forks):
    print(child(lambda moment=chance.random() * 0.4: parent(moment), 120.0), flush=True)
"""


@pytest.mark.slow
def test_forks_at_random_moments_of_the_first_call(cluster: DevCluster, topic: str) -> None:
    ended = run(cluster, topic, AT_RANDOM, "8", "1")
    assert len(ended) == 8
    assert [how for how in ended if not how.startswith(("works ", "says why ")) or "hung" in how] == []


LIVES = """
forks, seed = int(arguments[0]), int(arguments[1])
chance = random.Random(seed)
LIMIT = 6.0
over = threading.Event()
shared, lives = [], []

def live():
    '''Begin, publish, read and close, again and again.'''
    while not over.is_set():
        with Producer(lookupd=lookupd) as producer, Consumer(topic, "parent", lookupd=lookupd) as consumer:
            shared[:] = producer, consumer
            producer.publish_many(topic, [b"parent"] * 20, timeout=60.0)
            for _ in range(10):
                next(consumer).finish()
        lives.append(None)

def work():
    began = time.monotonic()
    for client in shared:
        try:
            client.__exit__(None, None, None)
        except nsq_ha.ConfigError as error:
            assert "was started before the process was forked" in str(error)
    assert time.monotonic() < began + LIMIT
    with Producer(lookupd=lookupd) as producer, Consumer(topic, "child", lookupd=lookupd) as consumer:
        producer.publish(topic, b"child", timeout=LIMIT)
        next(consumer).finish()
    return "works"

living = threading.Thread(target=live, daemon=True)
living.start()
for _ in range(forks):
    time.sleep(chance.random())  # the moment of the fork is what is tested
    print(child(work, 3 * LIMIT), flush=True)
before = len(lives)
over.set()
living.join(60.0)
print("the parent hung" if living.is_alive() or len(lives) == before or before < 2 else "the parent works")
"""


@pytest.mark.slow
def test_forks_at_random_moments_of_publishing_reading_and_closing(cluster: DevCluster, topic: str) -> None:
    assert run(cluster, topic, LIVES, "20", "3", limit=20 * LIMIT) == ["works"] * 20 + ["the parent works"]
