"""Application code that blocks the event loop: heartbeats are not answered, and the server closes the connection."""

import asyncio
import logging
import os
import socket
import sys
import time
from collections import Counter

import pytest

from nsq_ha import Consumer, Message, Producer
from nsq_ha.consumer.clock import TICK, LoopClock
from nsq_ha.devcluster import DevCluster
from nsq_ha.protocol import Command, Finish, Layout, Requeue
from nsq_ha.protocol.commands import Identify
from tests.support.inside import consumer_machine_of, shell_of
from tests.support.nsqd import LIMIT, Peer, error, message_id
from tests.support.stage import Stage
from tests.support.waiting import block, eventually, stop_process, turn
from tests.support.work import work

pytestmark = pytest.mark.real_time  # a blocked loop is about real time

HEARTBEAT = 1.0
BLOCK = 3.5
"""Longer than the three heartbeats after which the server closes."""


@pytest.mark.parametrize("iterates", [True, False])
async def test_each_message_is_handled_once(caplog: pytest.LogCaptureFixture, *, iterates: bool) -> None:
    caplog.set_level(logging.WARNING)
    handled: Counter[bytes] = Counter()

    async def handle(message: Message) -> None:
        handled[message.body] += 1
        if message.body != b"last":
            block(BLOCK)

    with DevCluster(nsqlookupds=1, nsqds=1) as cluster:
        await asyncio.to_thread(cluster.create_topic, "jobs", 1, 1)
        async with (
            Producer(lookupd=cluster.lookupd) as producer,
            Consumer("jobs", "work", lookupd=cluster.lookupd, heartbeat_interval=HEARTBEAT) as consumer,
        ):
            for number in range(2):
                await producer.publish("jobs", b"%d" % number)
            running = asyncio.create_task(work(consumer, handle, iterates=iterates))
            await eventually(lambda: handled.total() == 2, limit=60.0)
            # Nothing is left: a redelivered message would arrive before this one.
            await producer.publish("jobs", b"last")
            await eventually(lambda: b"last" in handled, limit=60.0)
            consumer.set_max_in_flight(1)
        await running
    assert handled == {b"0": 1, b"1": 1, b"last": 1}
    warnings = [record.message for record in caplog.records if "blocked" in record.message]
    assert len(warnings) == 1
    assert "asyncio.to_thread" in warnings[0]
    assert ("test_each_message_is_handled_once.<locals>.handle" in warnings[0]) is not iterates
    assert ("the body of a loop over messages" in warnings[0]) is iterates
    assert ("handler" in warnings[0]) is not iterates


@pytest.mark.parametrize("iterates", [True, False])
async def test_what_came_while_other_code_blocked_is_handled_once(*, iterates: bool) -> None:
    """The server has closed the connection meanwhile, so it delivers the message again."""
    handled: Counter[bytes] = Counter()

    async def handle(message: Message) -> None:
        handled[message.body] += 1

    async def publish(*bodies: bytes) -> None:
        async with Producer(lookupd=cluster.lookupd) as producer:
            for body in bodies:
                await producer.publish("jobs", body)

    def publish_apart(*bodies: bytes) -> None:
        asyncio.run(publish(*bodies))

    with DevCluster(nsqlookupds=1, nsqds=1) as cluster:
        await asyncio.to_thread(cluster.create_topic, "jobs", 1, 1)
        async with Consumer("jobs", "work", lookupd=cluster.lookupd, heartbeat_interval=HEARTBEAT) as consumer:
            running = asyncio.create_task(work(consumer, handle, iterates=iterates))
            await publish(*[b"quick"] * 50)
            await eventually(lambda: handled[b"quick"] == 50)
            publishing = asyncio.get_running_loop().run_in_executor(None, publish_apart, b"x")
            block(BLOCK)
            await publishing
            await eventually(lambda: handled[b"x"], limit=60.0)
            # Nothing is left: a redelivered message would arrive before this one.
            await publish(b"last")
            await eventually(lambda: handled[b"last"], limit=60.0)
        await running
    assert handled == {b"quick": 50, b"x": 1, b"last": 1}


async def test_many_short_blocks_let_the_loop_turn(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """Answers are sent and heartbeats answered, although the handler never awaits anything."""
    caplog.set_level(logging.DEBUG, "nsq_ha.wire")
    written = []

    async def handle(message: Message) -> None:
        # What the client has sent, since the kernel may deliver it late.
        written.append(sum(" > FIN " in record.getMessage() for record in caplog.records))
        block(0.06)

    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        for number in range(5):
            peer.message(b"x", message_id(number + 2))
        await eventually(lambda: len(consumer_machine_of(consumer).queue) == 5)
        running = asyncio.create_task(consumer.run(handle))
        await stage.nsqd.until(lambda: len(peer.of(Finish)) == 5)
    await running
    assert written == [0, 1, 2, 3, 4]


async def test_the_next_connection_asks_for_a_longer_interval_and_the_old_one_if_that_is_refused(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    asked = []

    def script(peer: Peer, command: Command) -> bool:
        if isinstance(command, Identify):
            interval = command.body.split(b'"heartbeat_interval":')[1].split(b",")[0]
            asked.append(int(interval))
            if int(interval) > 2000:
                peer.write(error(f"E_BAD_BODY IDENTIFY heartbeat interval ({int(interval)}) is invalid"))
                peer.close()
                return True
        return False

    stage.nsqd.script = script
    async with stage.consumer(heartbeat_interval=2.0) as consumer:
        peer = await stage.nsqd.subscriber()
        shell_of(consumer).heartbeats.blocked(8.0, None)
        peer.close()
        again = await stage.nsqd.subscriber(1)
        assert again.is_open
    assert asked == [2000, 6000, 2000]
    assert "asking for 2 s again" in caplog.text


async def test_what_is_read_after_a_block_may_be_as_old_as_the_block() -> None:
    seen = []
    clock = LoopClock(lambda *block: seen.append(block))
    clock.start()
    began = time.monotonic()
    assert began <= clock.late_at
    clock.suspect = "handle"
    block(3 * TICK)
    assert time.monotonic() > clock.late_at
    assert clock.ticked <= began
    await eventually(lambda: seen)
    clock.stop()
    ((seconds, suspect, waited),) = seen
    assert seconds >= 2 * TICK
    assert suspect == "handle"
    assert waited < seconds
    assert clock.blocked_for(time.monotonic()) == 0.0


async def test_what_is_read_after_a_stop_of_the_process_may_be_as_old_as_the_stop() -> None:
    ours, theirs = socket.socketpair()
    loop, seen = asyncio.get_running_loop(), list[bool]()
    clock = LoopClock(lambda *_: None)
    with ours, theirs:
        loop.add_reader(ours, lambda: seen.append(time.monotonic() > clock.late_at))
        clock.start()
        stop_process(3 * TICK, lambda: theirs.send(b"x"))
        await eventually(lambda: seen)
        loop.remove_reader(ours)
    clock.stop()
    assert seen[0]


@pytest.mark.parametrize("iterates", [True, False])
async def test_a_plain_nsqd_gets_back_what_would_have_been_handed_out_as_the_consumer_closed(
    stage: Stage, *, iterates: bool
) -> None:
    """It would keep the message until its timeout. A signal comes while the loop turns, if handlers block it."""
    stage.list_plain(stage.nsqd)

    async def handle(_: Message) -> None:
        raise AssertionError("the consumer closes")

    consumer = stage.consumer(close_timeout=LIMIT)
    async with asyncio.timeout(LIMIT / 2), consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"x", b"0123456789abcdef", layout=Layout.PLAIN)
        await eventually(lambda: consumer_machine_of(consumer).queue)
        shell_of(consumer).clock.turned -= 10.0
        taking = asyncio.create_task(work(consumer, handle, iterates=iterates))
        await turn(2)
        await consumer.aclose()
        await taking
    assert peer.of(Requeue, Finish) == [Requeue(b"0123456789abcdef", 0)]
    assert consumer.stats().timed_out == 0


STARVED = """
import asyncio, os, subprocess, sys
from nsq_ha.consumer.clock import LoopClock

async def main():
    over = asyncio.Event()

    def on_blocked(seconds, suspect, waited):
        for process in burning:
            process.kill()
        print(waited > 0.5 * seconds)
        over.set()

    clock = LoopClock(on_blocked)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    burning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    clock.start()  # not before: starting a process waits for that process, not for a CPU
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # only what nobody else wants of this CPU
    try:
        await over.wait()
    finally:
        for process in burning:
            process.kill()
            process.wait()
    clock.stop()

asyncio.run(main())
"""


@pytest.mark.slow  # It keeps a whole core busy until it is over, and tests that run beside it from theirs.
@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="not Linux")
async def test_a_program_without_cpu_is_not_said_to_block() -> None:
    """A real one, on one CPU with others that never rest."""
    starved = await asyncio.create_subprocess_exec(sys.executable, "-c", STARVED, stdout=asyncio.subprocess.PIPE)
    output, _ = await asyncio.wait_for(starved.communicate(), 8 * LIMIT)
    assert output == b"True\n"
