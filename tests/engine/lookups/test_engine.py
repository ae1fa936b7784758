"""What the clients of one event loop share for their lookups, and when they do not."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from nsq_ha.engine.engine import Engine
from nsq_ha.engine.http import new_client
from nsq_ha.engine.lookups import Lookups
from nsq_ha.engine.observe import SILENT
from nsq_ha.errors import ClosedError
from nsq_ha.options.config import ClientConfig
from tests.engine.lookups.loopback import Fake, list_body, lookup_body
from tests.engine.lookups.scripted import until
from tests.support.waiting import turn

A = "http://127.0.0.1:1"


@pytest.fixture
async def fake() -> AsyncIterator[Fake]:
    made = await Fake().start()
    made.answer("/lookup", lookup_body({0: 4150}))
    yield made
    await made.stop()


def config(*lookupd: str, **options: Any) -> ClientConfig:  # noqa: ANN401 - ClientConfig's fields
    return ClientConfig(lookupd=lookupd, **options)


async def test_clients_of_one_loop_ask_for_one_list_over_one_connection(fake: Fake) -> None:
    fake.answer("/listlookup", list_body(fake.url))
    clients = [Lookups(config(fake.url), access=access) for access in ("r", "w", "r")]
    for lookups in clients:
        await lookups.start()
    for number, lookups in enumerate(clients):
        watch = lookups.watch(f"t{number}")
        await until(watch, lambda view: view.complete)
    assert fake.count("/listlookup") == 1
    await clients[0].aclose()
    with pytest.raises(ClosedError):
        clients[0].watch("t0")
    await until(clients[1].watch("again"), lambda view: view.complete)
    for lookups in clients:
        await lookups.aclose()


def client(*lookupd: str, **options: Any) -> Lookups:  # noqa: ANN401 - ClientConfig's fields
    return Lookups(config(*lookupd, **options), access="r")


@pytest.mark.parametrize("turns", range(1, 8))
async def test_a_close_that_was_cancelled_is_completed_by_the_next(
    fake: Fake, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    http = new_client()
    monkeypatch.setattr("nsq_ha.engine.engine.new_client", lambda *_: http)
    lookups = client(fake.url)
    await lookups.start()
    await until(lookups.watch("orders"), lambda view: view.complete)
    before = asyncio.all_tasks()
    closing = asyncio.create_task(lookups.aclose())
    await turn(turns)
    for task in asyncio.all_tasks() - before:
        task.cancel()  # as asyncio.run does in the end
    await asyncio.gather(closing, return_exceptions=True)
    await lookups.aclose()
    assert http.is_closed


@pytest.mark.parametrize(
    "options",
    [
        {"lookup_timeout": 2.0},
        {"lookup_interval": 2.0},
        {"local_addr": "127.0.0.1"},
        {"lookupd": (A, A + "2")},
        {"lookupd": (), "nsqd": ("127.0.0.1:4150",)},
    ],
)
async def test_other_options_do_not_share(options: dict[str, Any]) -> None:
    first = Engine.join(config(A), SILENT)
    second = Engine.join(ClientConfig(**({"lookupd": (A,)} | options)), SILENT)
    assert second is not first
    await first.leave(SILENT)
    await second.leave(SILENT)


def test_other_loops_do_not_share() -> None:
    async def join() -> Engine:
        engine = Engine.join(config(A), SILENT)
        await engine.leave(SILENT)
        return engine

    assert asyncio.run(join()) is not asyncio.run(join())


async def test_publishers_and_consumers_are_answered_differently(fake: Fake) -> None:
    clients = [Lookups(config(fake.url), access=access) for access in ("r", "w")]
    for lookups in clients:
        await lookups.start()
        await until(lookups.watch("orders"), lambda view: view.complete)
    asked = [query["access"] for _, path, query in fake.requests if path == "/lookup"]
    assert asked == ["r", "w"]
    for lookups in clients:
        await lookups.aclose()
