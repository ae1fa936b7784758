"""Programs that end without closing their consumer of a plain nsqd, which keeps what is in flight until its timeout."""

from collections.abc import Iterator

import pytest

from nsq_ha.devcluster import DevCluster
from tests.devcluster.probes import until
from tests.support import web
from tests.support.programs import STRICT, run

PUBLISHED = 10

HEAD = """
import os, signal, sys, threading, time
from nsq_ha.sync import Consumer
lookupd, topic = sys.argv[1:]
consumer = Consumer(topic, "ch", lookupd=lookupd, max_in_flight=10, close_timeout=3600.0)

def all_in_flight():
    pause = threading.Event()
    while consumer.stats().in_flight < 10:
        pause.wait(0.01)

"""


@pytest.fixture(scope="module")
def plain() -> Iterator[DevCluster]:
    with DevCluster(plain=True, nsqds=1, nsqlookupds=1) as cluster:
        yield cluster


@pytest.fixture
def topic(plain: DevCluster, request: pytest.FixtureRequest) -> str:
    name = f"t{abs(hash(request.node.name))}"
    plain.create_topic(name)
    nsqd = plain.http_address("nsqd-0")
    web.post(nsqd + "/channel/create", params={"topic": name, "channel": "ch"}).raise_for_status()
    body = b"\n".join(b"%d" % number for number in range(PUBLISHED))
    web.post(nsqd + "/mpub", params={"topic": name}, content=body).raise_for_status()
    return name


def in_flight_and_depth(plain: DevCluster, topic: str) -> tuple[int, int]:
    answer = web.get(plain.http_address("nsqd-0") + "/stats", params={"format": "json", "topic": topic}).json()
    (channel,) = answer["topics"][0]["channels"]
    return channel["in_flight_count"], channel["depth"]


# -- no thread can answer any more: the close does not wait


ENDS = {
    "the end": """
kept = [next(consumer) for _ in range(3)]
all_in_flight()
""",
    "Ctrl-C": """
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the shell of the tests has set
for message in consumer:
    all_in_flight()
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait()
""",
    "a thread that has ended": """
def take():
    kept.append(next(consumer))
    all_in_flight()

kept = []
thread = threading.Thread(target=take)
thread.start()
thread.join()
""",
    "a daemon thread that waits for messages": """
def consume():
    for message in consumer:
        all_in_flight()

threading.Thread(target=consume, daemon=True).start()
consumer.start()
all_in_flight()
""",
}


@pytest.mark.few(2)
@pytest.mark.parametrize("end", ENDS)
def test_all_messages_go_back_at_once(plain: DevCluster, topic: str, end: str) -> None:
    ended = run(STRICT, HEAD + ENDS[end], plain.lookupd[0], topic)
    assert "unanswered" not in ended.stderr
    assert "in flight" not in ended.stderr
    assert ("Traceback" in ended.stderr) is (end == "Ctrl-C"), ended.stderr
    until(lambda: in_flight_and_depth(plain, topic) == (0, PUBLISHED))


# -- daemon threads may answer until close_timeout

HELD = {
    "a daemon thread": """
def hold():
    for message in consumer:
        held.set()
        threading.Event().wait()

threading.Thread(target=hold, daemon=True).start()
""",
    "a handler": """
def hold(message):
    held.set()
    threading.Event().wait()

threading.Thread(target=consumer.run, args=(hold,), daemon=True).start()
""",
}


@pytest.mark.few(1)
@pytest.mark.parametrize("holder", HELD)
def test_what_a_thread_holds_at_the_time_limit_goes_back(plain: DevCluster, topic: str, holder: str) -> None:
    text = HEAD.replace("3600.0", "0.2") + "held = threading.Event()" + HELD[holder] + "held.wait()\nall_in_flight()"
    ended = run(STRICT, text, plain.lookupd[0], topic)
    assert f"{topic}/ch: closed with messages unanswered: 1 of 127.0.0.1:" in ended.stderr
    until(lambda: in_flight_and_depth(plain, topic) == (0, PUBLISHED))


@pytest.mark.slow
def test_what_cannot_go_back_is_counted(plain: DevCluster, topic: str) -> None:
    """A coroutine blocks the background event loop for good."""
    program = """
blocked = threading.Event()

async def block(message):
    all_in_flight()
    blocked.set()
    threading.Event().wait()

threading.Thread(target=consumer.run, args=(block,), daemon=True).start()
blocked.wait()
"""
    ended = run(STRICT, HEAD.replace("3600.0", "0.2") + program, plain.lookupd[0], topic)
    said = f"{topic}/ch: the process exits without closing the consumer: 10 messages stay in flight until nsqd's"
    assert f"{said} message timeout: 10 of 127.0.0.1:" in ended.stderr
    assert in_flight_and_depth(plain, topic) == (PUBLISHED, 0)
