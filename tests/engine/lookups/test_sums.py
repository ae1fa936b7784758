"""What large answers take together, and the listing of many topics."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from nsq_ha.engine.http import LARGE_BYTES, new_client
from nsq_ha.engine.lookupd import LookupClient
from nsq_ha.engine.servers import Servers
from tests.engine.lookups.loopback import LIMIT, Fake, http_answer, lookup_body
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Serve = Callable[[], Awaitable[Fake]]

WHOLE = lookup_body({0: 4150, 1: 4160})
PADDED = json.dumps(WHOLE).encode() + b" " * (4 * LARGE_BYTES)


@pytest.fixture
async def fake(serve: Serve) -> Fake:
    fake = await serve()
    fake.answer("/lookup", WHOLE)
    return fake


@pytest.fixture
async def servers(fake: Fake) -> AsyncIterator[Servers]:
    client = new_client()
    servers = Servers((fake.url,), timeout=LIMIT, client=client)
    yield servers
    await servers.aclose()
    await client.aclose()


async def test_large_answers_are_read_one_after_the_other_and_small_ones_at_once(serve: Serve) -> None:
    slow, quick, small = await serve(), await serve(), await serve()
    goes_on = asyncio.Event()

    async def halt(writer: asyncio.StreamWriter) -> None:
        whole = http_answer(PADDED)
        writer.write(whole[: len(whole) // 2])
        await goes_on.wait()
        writer.write(whole[len(whole) // 2 :])

    slow.behave = halt
    quick.answer("/lookup", PADDED)
    small.answer("/lookup", WHOLE)
    ended: list[str] = []

    async def look_up(lookupd: LookupClient) -> None:
        assert (await lookupd.lookup("orders")).partitions
        ended.append(lookupd.lookupd)

    async with new_client() as http, asyncio.TaskGroup() as group:
        first, second, third = (LookupClient(each.url, client=http, timeout=LIMIT) for each in (slow, quick, small))
        second.large = third.large = first.large
        group.create_task(look_up(first))
        await eventually(first.large.locked)
        group.create_task(look_up(second))
        await eventually(lambda: quick.count("/lookup"))
        group.create_task(look_up(third))
        await eventually(lambda: ended)
        goes_on.set()
    assert ended == [small.url, slow.url, quick.url]
    assert not first.large.locked()
