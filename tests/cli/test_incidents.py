"""Incidents of consumers are made on a cluster of each kind, and told by all who show it."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from nsq_ha import Consumer, Message, Producer, prometheus
from nsq_ha.admin import AdminClient, Incident, consuming, incidents
from nsq_ha.admin.reading import Reading
from nsq_ha.dashboard.metrics import metrics
from nsq_ha.devcluster import DevCluster
from nsq_ha.errors import ChangeIncompleteError, ConfigError
from tests.cli.conftest import Invoke
from tests.support.nsqd import LIMIT
from tests.support.waiting import eventually

Handle = Callable[[Message], Awaitable[object]]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A channel stands still after a fifth of a second, and lags after two."""
    monkeypatch.setattr(consuming, "STILL", 0.2)
    monkeypatch.setattr(consuming, "LONG", 2.0)
    monkeypatch.setattr(consuming, "MANY", 40)


async def until(admin: AdminClient, topic: str, trouble: str, cause: str = "") -> tuple[Reading, Incident]:
    """Look until a topic's channel is in trouble, for a cause that begins so."""
    seen: list[Reading] = [await admin.look()]

    async def is_told() -> bool:
        seen[0] = await admin.look(seen[0])
        found = [each for each in incidents(seen[0]) if (each.subject, each.trouble) == (f"{topic}/svc", trouble)]
        return any(each.cause.startswith(cause) for each in found)

    await eventually(is_told, 3 * LIMIT)
    found = next(each for each in incidents(seen[0]) if each.subject == f"{topic}/svc")
    return seen[0], found


@contextlib.asynccontextmanager
async def made(
    cluster: DevCluster, handle: Handle | None, *, ordered: bool = False
) -> AsyncIterator[tuple[AdminClient, str]]:
    """Yield a client of a cluster, and a topic with 40 messages whose consumer does something with each."""
    topic = f"t{uuid.uuid4().hex[:10]}"
    async with (
        AdminClient(cluster.lookupd) as admin,
        Producer(lookupd=cluster.lookupd) as producer,
        asyncio.TaskGroup() as group,
    ):
        await admin.create_topic(topic, ordered=ordered)
        await admin.create_channel(topic, "svc")
        for number in range(40):
            await producer.publish(topic, b"%d" % number, key=b"k" if ordered else None)

        async def consume(handle: Handle) -> None:
            async with Consumer(topic, "svc", lookupd=cluster.lookupd, max_in_flight=2, max_attempts=None) as consumer:
                async for message in consumer:
                    await handle(message)

        task = None if handle is None else group.create_task(consume(handle))
        yield admin, topic
        if task is not None:
            task.cancel()


async def hold(_message: Message) -> None:
    await asyncio.Event().wait()


async def fail(message: Message) -> None:
    message.requeue(0)


async def dawdle(message: Message) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            await asyncio.Event().wait()
    message.finish()


async def fail_the_tenth(message: Message) -> None:
    message.requeue(0) if message.body == b"9" else message.finish()


async def test_nobody_reads_a_channel(either: DevCluster, invoke: Invoke) -> None:
    lookupd = ",".join(either.lookupd)
    async with made(either, None) as (admin, topic):
        reading, found = await until(admin, topic, "unread")
        assert found.is_bad
        assert "40 messages wait" in found.sentence(reading.at)
        page = prometheus.page(metrics(reading))
        assert f'nsq_ha_cluster_incident{{trouble="unread",subject="{topic}/svc",level="bad"}} 1\n' in page
        assert f'nsq_ha_cluster_channel_depth{{topic="{topic}",channel="svc"}} 40\n' in page
        doctor = await asyncio.to_thread(invoke, "doctor", "--table", lookupd=lookupd)
        assert (doctor.exit_code, f"FAILED  incident: nobody reads {topic}/svc" in doctor.stdout) == (1, True)
        screen = await asyncio.to_thread(invoke, "top", "-n", "1", lookupd=lookupd)
        assert f"nobody reads {topic}/svc" in screen.stdout
        await admin.pause_channel(topic, "svc")
        reading, found = await until(admin, topic, "unread")
        assert "it is paused" in found.effects
        await admin.delete_topic(topic)


@pytest.mark.parametrize(
    ("handle", "trouble", "text"),
    [
        (hold, "stuck", "stands still: "),
        (fail, "failing", "fail and come back: "),
        (dawdle, "lagging", "is hours behind"),
    ],
)
async def test_consumers_that_do_not_get_on(
    either: DevCluster, handle: Handle, trouble: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consuming, "_HOUR", 2.0)
    async with made(either, handle) as (admin, topic):
        _, found = await until(admin, topic, trouble)
        assert text in found.cause
        await admin.delete_topic(topic)


async def test_a_channel_that_is_paused(either: DevCluster) -> None:
    async with made(either, hold) as (admin, topic):
        await admin.pause_channel(topic, "svc")
        _, found = await until(admin, topic, "stopped")
        assert (found.cause, found.is_bad) == (f"{topic}/svc is paused", False)
        await admin.delete_topic(topic)


async def test_a_message_that_blocks_an_ordered_partition_is_named_and_finished(
    cluster: DevCluster, invoke: Invoke
) -> None:
    async with made(cluster, fail_the_tenth, ordered=True) as (admin, topic):
        _, found = await until(admin, topic, "blocked", "message 10 ")  # on a busy machine, an earlier one before
        assert found.cause == f"message 10 of {topic}-0 blocks {topic}/svc"
        _, _, command = found.remedy.partition("nsq-ha ")
        assert command == f"channel finish {topic} svc --partition 0 --number 10"
        done = await asyncio.to_thread(invoke, *command.split(), "--yes")
        # The consumer, in the same process, warns of the redeliveries there, too.
        assert (done.exit_code, done.stderr.splitlines()[-1]) == (0, f"finished message 10 for svc of {topic}")

        async def is_empty() -> bool:
            return (await admin.describe(topic)).depth == {"svc": 0}

        await eventually(is_empty)
        with pytest.raises(ChangeIncompleteError, match="it is finished already, or no consumer has it"):
            await admin.finish_message(topic, "svc", 0, 10, timeout=0.5)
        with pytest.raises(ConfigError, match=r"message 99 of .*-0 cannot be read"):
            await admin.finish_message(topic, "svc", 0, 99)
        await admin.delete_topic(topic)
