"""The calls of an admin client against a hostile nsqlookupd, or hostile HTTP of an nsqd."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from nsq_ha import NsqError
from nsq_ha.admin import AdminClient
from tests.engine.lookups.loopback import Fake, http_answer, lookup_body
from tests.support.stage import TOPIC

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from integration.floods.case import Behave, Case
    from integration.floods.running import Scene

QUESTION: Final = 1.0
"""Seconds that one question may take; a call of several may take its own time limit."""
CALL: Final = 3.0


def behave_of(case: Case) -> Behave:
    """Return how a server answers each request of a case."""
    if case.behave is not None:
        return case.behave
    body, status = case.answer or (b"", 200)

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(http_answer(body, status))
        await writer.drain()

    return answer


def _calls(admin: AdminClient) -> Iterator[Callable[[], Awaitable[object]]]:
    yield admin.topics
    yield admin.nodes
    yield lambda: admin.cluster(timeout=CALL)
    yield lambda: admin.describe(TOPIC, clients=True, timeout=CALL)
    yield lambda: admin.channels(TOPIC, timeout=CALL)
    yield lambda: admin.stats(clients=True, timeout=CALL)
    yield lambda: admin.stats(TOPIC, timeout=CALL)
    yield lambda: admin.find_message(TOPIC, partition=0, offset=0, timeout=CALL)
    yield lambda: admin.create_channel(TOPIC, "ch", timeout=CALL)
    yield lambda: admin.pause_channel(TOPIC, "ch", timeout=CALL)


async def ask_all(scene: Scene, admin: AdminClient, timed: Callable[..., Awaitable[float]], most_text: int) -> None:
    """Make each call; it must end in time, with an answer or an error of the library."""
    for number, call in enumerate(_calls(admin)):

        async def one(call: Callable[[], Awaitable[object]] = call) -> None:
            try:
                await call()
            except NsqError as error:
                if len(str(error)) > most_text:
                    scene.result.broken.append(f"an error of {len(str(error))} characters: {str(error)[:100]}")

        await timed(scene.result, f"call {number}", CALL, one())


def point_at(lookupd: Fake, nsqd: Fake) -> None:
    """Have a well nsqlookupd name an nsqd by its HTTP."""
    found = lookup_body({0: nsqd.port - 1})  # the port of HTTP is the next one
    lookupd.answer("/lookup", found)
    lookupd.answer("/nodes", {"producers": found["producers"]})
    lookupd.answer("/topics", {"topics": [TOPIC]})
