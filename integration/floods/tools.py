"""What operators use, against a hostile nsqlookupd or hostile HTTP of an nsqd: admin client, commands and dashboard."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from typing import TYPE_CHECKING, Final, Self

import httpx
from click.testing import CliRunner

from nsq_ha import NsqError
from nsq_ha.admin import AdminClient
from nsq_ha.cli.app import app
from nsq_ha.dashboard.app import Dashboard, DashboardOptions
from tests.engine.lookups.loopback import Fake, http_answer, lookup_body
from tests.support.library_log import logging_as_before
from tests.support.stage import TOPIC

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from types import TracebackType

    from integration.floods.case import Behave, Case
    from integration.floods.running import Scene

QUESTION: Final = 1.0
"""Seconds that one question may take; a call of several may take its own time limit."""
CALL: Final = 3.0
COMMAND: Final = 30.0
"""Most seconds of a command."""
MOST_SHOWN: Final = 400_000
"""Characters that a command or a page shows; the nodes of a cluster with 1,024 nsqds need nearly as many."""
COMMANDS: Final = (
    ("topic", "list"),
    ("topic", "describe", TOPIC),
    ("channel", "list", TOPIC),
    ("node", "list"),
    ("lookup", TOPIC),
    ("stat", TOPIC),
    ("stat", "--json"),
    ("top", "--count", "1"),
    ("doctor",),
)
PAGES: Final = (
    "/",
    "/topics",
    f"/topics/{TOPIC}",
    f"/topics/{TOPIC}/ch",
    "/nodes",
    "/timeline",
    f"/messages?topic={TOPIC}",
    f"/search?topic={TOPIC}&key=a",
)
"""Of the dashboard."""
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


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


class Server:
    """A hostile server in a thread of its own, which a command asks over real sockets. Use it with ``with``.

    Args:
        case: What it answers.
        nsqd: Whether its nsqd is hostile, and not the nsqlookupd.
    """

    def __init__(self, case: Case, *, nsqd: bool) -> None:
        self.url = ""
        self._case = case
        self._nsqd = nsqd
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._fakes: list[Fake] = []

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        lookupd, nsqd = await Fake().start(), await Fake().start()
        self._fakes += [lookupd, nsqd]
        self.url = lookupd.url
        if self._nsqd:
            point_at(lookupd, nsqd)
            nsqd.behave = behave_of(self._case)
        else:
            lookupd.behave = behave_of(self._case)

    async def _stop(self) -> None:
        for fake in self._fakes:
            await fake.stop()


def point_at(lookupd: Fake, nsqd: Fake) -> None:
    """Have a well nsqlookupd name an nsqd by its HTTP."""
    found = lookup_body({0: nsqd.port - 1})  # the port of HTTP is the next one
    lookupd.answer("/lookup", found)
    lookupd.answer("/nodes", {"producers": found["producers"]})
    lookupd.answer("/topics", {"topics": [TOPIC]})


def run_commands(case: Case, *, nsqd: bool, commands: tuple[tuple[str, ...], ...] = COMMANDS) -> list[str]:
    """Run each command against a case; return what should not have happened."""
    broken: list[str] = []
    with Server(case, nsqd=nsqd) as server, logging_as_before():
        for command in commands:
            began = time.monotonic()
            result = CliRunner().invoke(
                app,
                (*command, "--lookupd", server.url),
                env={"COLUMNS": "160", "NSQ_HA_CONFIG": None},
                prog_name="nsq-ha",
            )
            took, text = time.monotonic() - began, result.output
            name = " ".join(command)
            if result.exception is not None and not isinstance(result.exception, SystemExit):
                broken.append(f"{name}: {result.exception!r}")
            if result.exit_code not in (0, 1, 2):
                broken.append(f"{name}: exit code {result.exit_code}")
            if "Traceback" in text or _CONTROL.search(text):
                broken.append(f"{name}: printed {text[:300]!r}")
            if len(text) > MOST_SHOWN:
                broken.append(f"{name}: printed {len(text)} characters")
            if took > COMMAND:
                broken.append(f"{name}: took {took:.1f} s")
    return broken


def show_pages(case: Case, *, nsqd: bool) -> list[str]:
    """Poll for each page of a dashboard, and show it; return what should not have happened."""
    with Server(case, nsqd=nsqd) as server, logging_as_before():
        return asyncio.run(_show(server.url))


async def _show(url: str) -> list[str]:
    broken: list[str] = []
    async with AdminClient(url) as admin:
        dashboard = Dashboard(admin, DashboardOptions(limit=CALL))
        transport = httpx.ASGITransport(dashboard.app())
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:4171") as browser:
            for page in PAGES:
                async with asyncio.timeout(COMMAND):
                    await dashboard.poller.once()
                    answer = await browser.get(page)
                if answer.status_code not in (200, 400, 404):  # 400: there is no such topic, or nobody knows
                    broken.append(f"{page}: status {answer.status_code}")
                if _CONTROL.search(answer.text):
                    broken.append(f"{page}: shows a control character")
                if len(answer.text) > MOST_SHOWN:
                    broken.append(f"{page}: {len(answer.text)} characters")
    return broken
