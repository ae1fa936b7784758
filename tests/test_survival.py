"""Whatever is raised at whatever edge: producer, consumer and lookups report it once, and go on."""

import asyncio
import copy
from collections.abc import Callable
from typing import Any, Final

import pytest

from nsq_ha import Backoff, Producer
from nsq_ha.consumer.answers import Answering
from nsq_ha.consumer.inflight import Subscription
from nsq_ha.consumer.machine import ConsumerMachine
from nsq_ha.consumer.shell import Source
from nsq_ha.consumer.subscriptions import Subscriptions
from nsq_ha.engine import connection, lookups, servers
from nsq_ha.engine.lookupd import LookupClient
from nsq_ha.engine.tcp import TcpStream
from nsq_ha.policy import timing
from nsq_ha.producer import shell
from nsq_ha.producer.connections import Connections
from nsq_ha.producer.machine import ProducerMachine
from nsq_ha.protocol import ClientProtocol, Command, Ready
from tests.support.leaks import nothing_left
from tests.support.nsqd import LIMIT, Peer, message_id
from tests.support.stage import TOPIC, Stage
from tests.support.waiting import eventually

ERRORS: Final = [
    UnicodeError("label empty or too long"),
    TypeError("a str is wanted"),
    MemoryError(),
    ExceptionGroup("several", [KeyError("one")]),
]
every_error = pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)

QUICK: Final = Backoff(initial=0.01, maximum=0.05)

BOTH: Final[dict[str, tuple[object, str]]] = {
    "name resolution": (asyncio.base_events.BaseEventLoop, "create_connection"),
    "opening a stream": (TcpStream, "open"),
    "making a context": (connection, "socket"),
    "reading": (ClientProtocol, "receive"),
    "a question to nsqlookupd": (LookupClient, "lookup"),
    "a round of lookups": (servers.Servers, "look_up"),
    "merging answers": (lookups, "merge_round"),
    "reporting a view": (lookups.TopicWatch, "_report"),
    "asking for the list": (LookupClient, "list_lookupd"),
    "resolving a nsqlookupd": (servers.Servers, "_resolve"),
}
PRODUCER: Final[dict[str, tuple[object, str]]] = {
    **BOTH,
    "a new view": (ProducerMachine, "viewed"),
    "an open connection": (Connections, "opened"),
    "encoding": (shell, "encode_pub"),
    "writing": (connection.Connection, "write_publishes"),
    "a run of answers": (ProducerMachine, "stored"),
    "what is due": (ProducerMachine, "tick"),
}
CONSUMER: Final[dict[str, tuple[object, str]]] = {
    **BOTH,
    "a new view": (Subscriptions, "viewed"),
    "an open connection": (Subscriptions, "opened"),
    "subscribing": (connection.Connection, "subscribe"),
    "answering through a connection": (Subscription, "opened"),
    "receiving": (Source, "arrived"),
    "arriving": (ConsumerMachine, "arrived"),
    "a subscribed connection": (Subscriptions, "subscribed"),
    "joining": (Answering, "opened"),
    "what is due": (ConsumerMachine, "tick"),
}


@pytest.fixture(autouse=True)
async def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    # Most of their time would be pauses between lookups, and stacks that asyncio keeps for each callback.
    monkeypatch.setattr(timing, "QUICK_GAP", 0.04)
    monkeypatch.setattr(timing, "SLOW_GAP", 0.1)
    asyncio.get_running_loop().set_debug(False)


class Flaky:
    """Raises an error at the first calls, then does what it stands for."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, edge: tuple[Any, str], error: BaseException, times: int
    ) -> None:
        self.raised = 0
        owner, name = edge
        original = owner.__dict__[name]
        called = original.__func__ if isinstance(original, classmethod) else original

        def call(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - as what it stands for
            if self.raised < times and self.is_on(arguments):
                self.raised += 1
                raise copy.copy(error)
            return called(*arguments, **options)

        self.is_on: Callable[[tuple[Any, ...]], bool] = lambda _: True
        if name == "socket":  # a module: what is asked of it
            monkeypatch.setattr(original, "gethostname", lambda: call() and "here")
            called = lambda: "here"  # noqa: E731
        else:
            monkeypatch.setattr(owner, name, classmethod(call) if isinstance(original, classmethod) else call)


@pytest.mark.few(every=3)
@every_error
@pytest.mark.parametrize("edge", PRODUCER.values(), ids=PRODUCER)
async def test_a_producer_survives_it(
    edge: tuple[Any, str], error: BaseException, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with nothing_left(), Stage() as stage:
        flaky = Flaky(monkeypatch, edge, error, times=2)  # names are resolved when a producer is entered
        async with stage.producer(lookup_interval=0.2, heartbeat_interval=1.0, backoff=QUICK) as producer:
            for number in range(3):
                async with asyncio.timeout(LIMIT):
                    receipt = await producer.publish(TOPIC, b"%d" % number, key="k", timeout=LIMIT)
                assert receipt.partition == 0
                if number == 1:
                    for peer in stage.nsqd.open_peers:
                        peer.abort()
            await _goes_on(producer)
        assert flaky.raised
        assert caplog.text.count("Traceback") <= 1 + flaky.raised
    assert "died" not in caplog.text


class Giving:
    """A script of an nsqd that gives one message to each connection that asks for some."""

    def __init__(self) -> None:
        self.given = 0
        self.peers: set[Peer] = set()

    def __call__(self, peer: Peer, command: Command) -> None:
        if isinstance(command, Ready) and command.count and peer not in self.peers:
            self.peers.add(peer)
            self.given += 1
            peer.message(b"%d" % self.given, message_id(1 + self.given))


@pytest.mark.few(every=3)
@every_error
@pytest.mark.parametrize("edge", CONSUMER.values(), ids=CONSUMER)
async def test_a_consumer_survives_it(
    edge: tuple[Any, str], error: BaseException, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with nothing_left(), Stage() as stage:
        stage.nsqd.script = Giving()
        flaky = Flaky(monkeypatch, edge, error, times=2)
        async with stage.consumer(lookup_interval=0.2, heartbeat_interval=1.0, backoff=QUICK) as consumer:
            for _ in range(2):
                async with asyncio.timeout(LIMIT):
                    message = await anext(consumer)
                    message.finish()
                for peer in stage.nsqd.open_peers:
                    peer.abort()
    assert flaky.raised
    assert "died" not in caplog.text


OURS: Final = {
    "opening a stream": (TcpStream, "open"),
    "a round of lookups": (servers.Servers, "look_up"),
}


@pytest.mark.parametrize("edge", OURS.values(), ids=OURS)
async def test_a_cancellation_that_nobody_asked_for_ends_nothing(
    edge: tuple[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nothing_left(), Stage() as stage, stage.producer(backoff=QUICK) as producer:
        flaky = Flaky(monkeypatch, edge, asyncio.CancelledError("a future that somebody cancelled"), times=2)
        async with asyncio.timeout(LIMIT):
            await producer.publish(TOPIC, b"x", key="k", timeout=LIMIT)
        assert flaky.raised
        await _goes_on(producer)


async def _goes_on(producer: Producer) -> None:
    receipt = await producer.publish(TOPIC, b"next", key="k", timeout=LIMIT)
    assert receipt.partition == 0
    await eventually(lambda: producer.health().reason == "ok")  # a lookup that failed may still be the last one
