"""Run one case against one kind of client, in memory and in virtual time, and measure what it costs.

A well nsqd leads one partition, a hostile one the others; or both are well, and the nsqlookupd turns hostile. After
``HOSTILE`` seconds everything is well again. Nothing waits in real time: only memory is real.
"""

import asyncio
import contextlib
import dataclasses
import gc
import logging
import math
import pathlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import pytest

from integration.floods.case import GOOD, Case
from integration.floods.lookups import NOBODY
from nsq_ha import Consumer, Message, NsqError, Producer
from nsq_ha.protocol import Finish, Layout
from tests.engine.lookups.loopback import list_body
from tests.support.full import FULL
from tests.support.nsqd import FakeNsqd, Peer, message_id
from tests.support.stage import TOPIC, Stage
from tests.support.virtual import VirtualLoop, one_clock

HOSTILE: Final = 10.0 if FULL else 3.0
PARTITIONS: Final = 3
"""The last one is led by the well nsqd."""
WELL: Final = 1.0
"""Seconds that a well peer's message or publish may take."""

RECOVERY: Final = 3.0
MEMORY: Final = 64 * 1024 * 1024
START: Final = 2.0
CLOSE: Final = 1.0
PUBLISH: Final = 2.0
LATE: Final = 0.5
"""Seconds that a call may take beyond its limit, such as waiting for sockets to close."""

MOST_TEXT: Final = 5000
"""Characters of an error, whatever the peer said."""

HEARTBEAT: Final = 1.0
OPTIONS: Final[dict[str, Any]] = {
    "heartbeat_interval": HEARTBEAT,
    "connect_timeout": 1.0,
    "close_timeout": CLOSE,
    "lookup_interval": 0.5,
    "lookup_timeout": 1.0,
}


@dataclasses.dataclass
class Result:
    """What a case cost one client.

    Attributes:
        case: The case.
        client: The kind of client.
        broken: What should not have happened.
        memory: Bytes of the peak above idle.
        reconnects: Connections a second to the hostile nsqd, after the first of each partition, over 10 s at least.
        recovery: Seconds from the end of the attack until the work goes on.
        stop: Seconds that closing took.
    """

    case: Case
    client: str
    broken: list[str] = dataclasses.field(default_factory=list)
    memory: int = 0
    reconnects: float = 0.0
    recovery: float = 0.0
    stop: float = 0.0

    def judge(self) -> None:
        """Add what is beyond its limit to ``broken``."""
        limits = (
            ("memory", self.memory, MEMORY),
            ("reconnects a second", self.reconnects, self.case.reconnects),
            ("seconds until it works again", self.recovery, RECOVERY),
            ("seconds to close", self.stop, CLOSE + LATE),
        )
        for name, value, most in limits:
            if value > most:
                self.broken.append(f"{name}: {value:.3g} above {most:g}")


class Watch(logging.Handler):
    """Collects tracebacks, wherever they are reported."""

    def __init__(self, broken: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._broken = broken

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        if (
            (error is not None and not isinstance(error, NsqError))
            or "Traceback" in text
            or "never retrieved" in text
            or "never awaited" in text
        ):
            self._broken.append(f"log: {text[:200]} {record.exc_info}")

    def report(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Take what asyncio reports."""
        self._broken.append(f"event loop: {context.get('message')} {context.get('exception')!r}")


def _memory(field: str) -> int:
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return 0


def rest() -> int:
    """Return the bytes that this process has, and forget the peak until now."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    return _memory("VmRSS")


def above(idle: int) -> int:
    """Return the peak since :func:`rest` returned ``idle``, beyond that."""
    return _memory("VmHWM") - idle


class Scene:
    """A hostile and a well nsqd, and an nsqlookupd.

    Attributes:
        stage: The servers.
        began: When the attack began.
        hostile: The nsqd that leads all partitions but the last one.
        well: The nsqd that leads the last one.
        met: Connections on which the hostile nsqd was hostile.
        published: Publishes that succeeded while it was.
        has_ended: The consumer ended with an error.
    """

    def __init__(self, case: Case, result: Result) -> None:
        self.case = case
        self.result = result
        self.stage = Stage(2)
        self.began = now()
        self.is_plain = result.client.startswith("plain")
        self.layout = Layout.PLAIN if self.is_plain else Layout((case.extended, True))
        self.met: set[Peer] = set()
        self.published = 0
        self.has_ended = False
        self._asked = math.inf

    @property
    def hostile(self) -> FakeNsqd:
        return self.stage.nsqds[0]

    @property
    def well(self) -> FakeNsqd:
        return self.stage.nsqds[1]

    @property
    def crowd(self) -> int:
        """Number of first connections to the hostile nsqd."""
        return 1 if self.is_plain else PARTITIONS - 1

    def assign(self) -> None:
        """Have the nsqlookupd say the truth."""
        lookupd = self.stage.lookupd
        lookupd.behave = None
        lookupd.answer("/listlookup", list_body(lookupd.url, lookupd.url))
        if self.is_plain:
            self.stage.list_plain(self.hostile, self.well)
            return
        leaders = dict.fromkeys(range(PARTITIONS - 1), self.hostile) | {PARTITIONS - 1: self.well}
        self.stage.lead(leaders, extended=self.case.extended)

    @property
    def has_met(self) -> bool:
        """Whether the case met the client."""
        return bool(self.met) or len(self.stage.lookupd.requests) > self._asked

    async def publish(self, producer: Producer, **to: int) -> None:
        """Publish while the peer is hostile."""
        await producer.publish(TOPIC, b"body", **to)  # type: ignore[arg-type]
        self.published += 1

    def attack(self) -> None:
        """Turn hostile."""
        lookupd, case = self.stage.lookupd, self.case
        if case.is_lookup:
            self._asked = len(lookupd.requests)
        if case.answer is not None:
            lookupd.answer("/lookup", *case.answer)
            lookupd.answer("/listlookup", *case.answer)
            if self.is_plain:
                lookupd.answer("/nodes", *case.answer)
        elif case.behave is not None:
            lookupd.behave = case.behave
        else:
            self.hostile.script = case.script(self.layout, self.met)

    def heal(self) -> None:
        """Be well again, as after a restart."""
        self.assign()
        self.hostile.script = None
        if not self.case.is_lookup:
            for peer in self.hostile.open_peers:
                peer.abort()

    def count(self, first: int) -> None:
        """Take the connections to the hostile nsqd until now, without the ``first`` ones."""
        self.result.reconnects = max(len(self.hostile.peers) - first, 0) / max(now() - self.began, HOSTILE)

    def refused(self, error: NsqError) -> None:
        """Note that a consumer ended; it must be a case in which it should."""
        self.has_ended = True
        if self.case.ends is False or len(str(error)) > MOST_TEXT:
            self.result.broken.append(f"the client ended: {str(error)[:200]} ({len(str(error))} characters)")


def now() -> float:
    """Return the loop's time."""
    return asyncio.get_running_loop().time()


async def timed(result: Result, name: str, limit: float, work: Awaitable[object]) -> float:
    """Do some work, note whether it took longer than ``limit``, and return its seconds."""
    began = now()
    try:
        async with asyncio.timeout(limit + 30.0):
            await work
    except TimeoutError:
        result.broken.append(f"{name} did not end within {limit + 30.0:g} s")
    took = now() - began
    if took > limit + LATE:
        result.broken.append(f"{name} took {took:.2f} s, its limit is {limit:g} s")
    return took


async def deliver(peer: Peer, number: int, layout: Layout) -> None:
    """Deliver a message, and wait until it is finished."""
    before = len(peer.of(Finish))
    peer.message(b"well", message_id(number), layout=layout)
    await peer.nsqd.until(lambda: len(peer.of(Finish)) > before or peer.has_gone)


async def consume(scene: Scene) -> None:
    """Run a consumer through the case."""
    case, result = scene.case, scene.result
    handled: list[bytes] = []

    async def handle(message: Message) -> None:
        with contextlib.suppress(NsqError):
            handled.append(message.body)

    consumer = scene.stage.consumer(start_timeout=START, **OPTIONS)
    if not case.is_lookup:
        scene.attack()
    try:
        await timed(result, "entering", START, consumer.__aenter__())
    except NsqError as error:
        scene.refused(error)
        return
    running = asyncio.create_task(consumer.run(handle))
    try:
        await _reads_on(scene, running)
        await _stats(consumer)
        if not running.done():
            known = len(scene.hostile.peers)
            scene.heal()
            result.recovery = await timed(result, "recovery", RECOVERY, _reads_again(scene, known))
    finally:
        result.stop = await timed(result, "closing", CLOSE, consumer.__aexit__(None, None, None))
        running.cancel()
        await asyncio.wait({running})
        reason = None if running.cancelled() else running.exception()
        if isinstance(reason, NsqError):
            scene.refused(reason)
        elif reason is not None:
            result.broken.append(f"the client ended: {reason!r}")
        if case.has_good and GOOD not in handled:
            result.broken.append("the good message after the bad one was not handed out")


async def _reads_on(scene: Scene, running: asyncio.Task[None]) -> None:
    """Deliver messages from the well peer while the hostile one is hostile."""
    result = scene.result
    well = await scene.well.subscriber()
    if scene.case.is_lookup:
        await scene.hostile.subscriber()
        scene.attack()
    scene.began, number = scene.began if not scene.case.is_lookup else now(), 1000
    began = now()
    first = len(scene.hostile.peers) if scene.case.is_lookup else scene.crowd
    while now() - began < HOSTILE and not running.done():
        number += 1
        await timed(result, "a well peer's message", WELL, deliver(well, number, scene.layout))
        await asyncio.sleep(0.5)
    if well.has_gone and not running.done():
        result.broken.append("the connection to the well peer ended")
    scene.count(first)


async def _stats(client: Consumer | Producer) -> None:
    client.stats()
    client.health()


async def _reads_again(scene: Scene, known: int) -> None:
    peers = scene.hostile.peers if scene.case.is_lookup else None
    await scene.hostile.until(lambda: any(peer.ready and peer.is_open for peer in peers or scene.hostile.peers[known:]))
    peer = next(peer for peer in peers or scene.hostile.peers[known:] if peer.ready and peer.is_open)
    await deliver(peer, 5000, scene.layout)
    if peer.has_gone:
        scene.result.broken.append("the connection ended again when all was well")


async def produce(scene: Scene) -> None:
    """Run a producer through the case."""
    case, result = scene.case, scene.result
    producer = scene.stage.producer(publish_timeout=PUBLISH, **OPTIONS)
    if not case.is_lookup:
        scene.attack()
    is_over = False

    async def publish(partition: int) -> None:
        while not is_over:
            to = {} if scene.is_plain else {"partition": partition}
            is_well = not scene.is_plain and partition == PARTITIONS - 1

            async def one(to: dict[str, int] = to, *, is_well: bool = is_well) -> None:
                try:
                    await scene.publish(producer, **to)
                except NsqError as error:
                    if is_well:
                        result.broken.append(f"a publish to the well peer failed: {error}")

            await timed(result, "a publish", WELL if is_well else PUBLISH, one())
            await asyncio.sleep(0.25)

    await timed(result, "entering", START, producer.__aenter__())
    publishing: list[asyncio.Task[None]] = []
    try:
        if case.is_lookup:
            for partition in range(PARTITIONS):
                await producer.publish(TOPIC, b"first", **({} if scene.is_plain else {"partition": partition}))  # type: ignore[arg-type]
            scene.attack()
            scene.began = now()
        publishing += [asyncio.create_task(publish(partition)) for partition in range(PARTITIONS)]
        await asyncio.sleep(HOSTILE)
        scene.count(scene.crowd)
        await _stats(producer)
        scene.heal()
        is_over = True
        result.recovery = await timed(result, "recovery", RECOVERY, _publishes_again(scene, producer))
        await asyncio.gather(*publishing)
    finally:
        is_over = True
        result.stop = await timed(result, "closing", CLOSE, producer.__aexit__(None, None, None))
        for task in publishing:
            task.cancel()
        await asyncio.gather(*publishing, return_exceptions=True)


async def _publishes_again(scene: Scene, producer: Producer) -> None:
    while True:
        try:
            for partition in range(1 if scene.is_plain else PARTITIONS):
                to = {} if scene.is_plain else {"partition": partition}
                await producer.publish(TOPIC, b"after", **to)  # type: ignore[arg-type]
        except NsqError:
            await asyncio.sleep(0.05)
        else:
            return


CLIENTS: Final[dict[str, Callable[[Scene], Awaitable[None]]]] = {
    "consumer": consume,
    "producer": produce,
    "plain consumer": consume,
    "plain producer": produce,
}


def applies(case: Case, client: str) -> bool:
    """Return whether a case concerns a kind of client; plain nsqds have no extended topics."""
    return client.removeprefix("plain ") in case.clients and not (case.extended and client.startswith("plain"))


@contextlib.contextmanager
def _measured(result: Result) -> Iterator[None]:
    idle = rest()
    watch = Watch(result.broken)
    logger = logging.getLogger()
    logger.addHandler(watch)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(watch.report)
    try:
        yield
        gc.collect(1)
    finally:
        loop.set_exception_handler(None)
        logger.removeHandler(watch)
    result.memory = above(idle)


async def play(case: Case, client: str) -> Result:
    """Run a case against a kind of client, one of ``CLIENTS``, in the running virtual loop."""
    result = Result(case, client)
    scene = Scene(case, result)
    async with scene.stage:
        scene.assign()
        with _measured(result):
            await CLIENTS[client](scene)
    if not scene.has_met:
        result.broken.append("the case met nobody")
    if client.endswith("consumer") and case.ends and not scene.has_ended:
        result.broken.append("the client did not end")
    if client.endswith("producer") and not scene.published:
        result.broken.append("nothing was published while the peer was hostile")
    await asyncio.sleep(0.1)  # virtual: sockets close, and the peers' tasks see it
    result.broken += [f"left behind: {task}" for task in asyncio.all_tasks() - {asyncio.current_task()}]
    result.judge()
    return result


def run(case: Case, client: str) -> Result:
    """Run a case in a loop of its own."""
    with pytest.MonkeyPatch.context() as monkeypatch, asyncio.Runner(loop_factory=VirtualLoop) as runner:

        async def played() -> Result:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            for port in range(NOBODY, NOBODY + 9000):
                loop.refuse(port)
            with one_clock(monkeypatch):
                return await play(case, client)

        # Without chance: each pause is as long as it may be, so that the number of connections is no luck.
        monkeypatch.setattr("random.random", lambda: 0.0)
        return runner.run(played())
