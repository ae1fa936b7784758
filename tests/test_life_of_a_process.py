"""What Python and asyncio complain about in debug mode: nothing, whether a program closes its clients or not."""

import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

from nsq_ha.devcluster import DevCluster
from tests.support.programs import DEBUG, run

HEAD = """
import asyncio, logging, sys
from nsq_ha import Consumer, Producer, Worker, sync
from nsq_ha.admin import AdminClient
lookupd, topic = sys.argv[1:]
key = {} if topic.startswith("plain") else {"key": "k"}
# How long a turn took is the machine's.
logging.getLogger("asyncio").addFilter(lambda record: record.msg != "Executing %s took %.3f seconds")

async def entered(client):
    return await client.__aenter__()

"""


@pytest.fixture(scope="module")
def clusters() -> Iterator[dict[str, DevCluster]]:
    options: dict[str, Any] = {"nsqds": 1, "nsqlookupds": 1, "time_scale": 0.05}
    with DevCluster(**options, plain=True) as plain, DevCluster(**options) as partitioned:
        plain.create_topic("plain")
        partitioned.create_topic("partitioned", 1, 1, ordered=True)
        yield {"plain": plain, "partitioned": partitioned}


def complaints(clusters: dict[str, DevCluster], kind: str, text: str) -> str:
    """Run a program in Python's development mode, where asyncio is in debug mode; return what it complains about."""
    ended = run(DEBUG, HEAD + textwrap.dedent(text), clusters[kind].lookupd[0], kind)
    assert ended.returncode == 0, ended.stderr
    return ended.stderr


CLOSED = {
    "async": """
        async def main():
            async with (
                Producer(lookupd=lookupd, trace=topic != "plain") as producer,
                Consumer(topic, "async", lookupd=lookupd) as consumer,
                AdminClient(lookupd) as admin,
            ):
                await consumer.wait_ready(timeout=30.0)
                await producer.publish(topic, b"1", **key)
                await producer.publish_many(topic, [b"2", b"3"] if not key else [])
                async with await anext(consumer):
                    pass
                late = asyncio.create_task(producer.publish(topic, b"4", **key))
                await asyncio.sleep(0)
                late.cancel()
                await admin.describe(topic)
                await asyncio.gather(late, return_exceptions=True)
        asyncio.run(main())
        """,
    "worker": """
        async def main():
            worker = Worker(lookupd=lookupd)
            done = asyncio.Event()
            async def handle(message):
                done.set()
            worker.add(topic, "worker", handle)
            running = asyncio.create_task(worker.run())
            async with Producer(lookupd=lookupd) as producer:
                while not done.is_set():
                    await producer.publish(topic, b"x", **key)
                    await asyncio.sleep(0.01)
            worker.stop()
            await running
        asyncio.run(main())
        """,
    "sync": """
        with sync.Producer(lookupd=lookupd) as producer, sync.Consumer(topic, "sync", lookupd=lookupd) as consumer:
            consumer.start()
            producer.publish(topic, b"x", **key)
            producer.publish_nowait(topic, b"y", **key)
            with next(consumer):
                pass
        """,
}


@pytest.mark.parametrize(("kind", "program"), [("plain", "async"), *(("partitioned", name) for name in CLOSED)])
def test_debug_mode_has_nothing_to_say(clusters: dict[str, DevCluster], kind: str, program: str) -> None:
    assert complaints(clusters, kind, CLOSED[program]) == ""


def test_what_it_says_is_noticed(clusters: dict[str, DevCluster]) -> None:
    text = """
        async def main():
            Producer(lookupd=lookupd).__aenter__()
        asyncio.run(main())
        """
    assert "was never awaited" in complaints(clusters, "plain", text)


UNWARNED = "import warnings\nwarnings.simplefilter('ignore', ResourceWarning)\n"
LEFT = {
    "nothing was entered": """
        producer, consumer = Producer(lookupd=lookupd), Consumer(topic, "ch", lookupd=lookupd)
        """,
    "a publish and an idle consumer": """
        async def main():
            producer = await entered(Producer(lookupd=lookupd))
            await entered(Consumer(topic, "ch", lookupd=lookupd))
            await producer.publish(topic, b"x", **key)
            global task
            task = asyncio.create_task(producer.publish(topic, b"x", **key))
            await asyncio.sleep(0)
        asyncio.run(main())
        """,
    "in the middle of entering": """
        async def main():
            global tasks
            clients = Producer(lookupd=lookupd), Consumer(topic, "ch", lookupd=lookupd), AdminClient(lookupd)
            tasks = [asyncio.create_task(entered(client)) for client in clients]
            await asyncio.sleep(0)
        asyncio.run(main())
        """,
    "a message in hand and a handler": """
        async def main():
            global kept
            kept = [await entered(Consumer(topic, name, lookupd=lookupd)) for name in ("one", "two")]
            started = asyncio.Event()
            async def handle(message):
                started.set()
                await asyncio.Event().wait()
            kept.append(asyncio.create_task(kept[0].run(handle)))
            async with Producer(lookupd=lookupd) as producer:
                await producer.publish(topic, b"x", **key)
            kept.append(await anext(kept[1]))
            await started.wait()
        asyncio.run(main())
        """,
    "sys.exit in a task": """
        async def main():
            producer = await entered(Producer(lookupd=lookupd))
            await entered(Consumer(topic, "ch", lookupd=lookupd))
            await producer.publish(topic, b"x", **key)
            sys.exit(0)
        asyncio.run(main())
        """,
    "a loop that was closed": """
        async def main():
            global kept
            kept = await entered(Producer(lookupd=lookupd)), await entered(AdminClient(lookupd))
            await kept[0].publish(topic, b"x", **key)
        loop = asyncio.new_event_loop()
        loop.run_until_complete(main())
        loop.close()
        """,
    "threads": """
        producer, consumer = sync.Producer(lookupd=lookupd), sync.Consumer(topic, "ch", lookupd=lookupd)
        consumer.start()
        producer.publish(topic, b"x", **key)
        kept = next(consumer)
        """,
}


@pytest.mark.parametrize(
    ("kind", "end"), [("plain", "a message in hand and a handler"), *(("partitioned", name) for name in LEFT)]
)
def test_a_program_that_closes_nothing_ends_quietly(clusters: dict[str, DevCluster], kind: str, end: str) -> None:
    """Sockets that nobody closed are warned about, in development mode only, and that is right."""
    assert complaints(clusters, kind, UNWARNED + textwrap.dedent(LEFT[end])) == ""
