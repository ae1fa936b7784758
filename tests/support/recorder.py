"""Keeps what a connection reports to its owner."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from nsq_ha import ClientConfig, Message
from nsq_ha.engine.connection import Callbacks, Connection
from nsq_ha.errors import ConnectionLostError, NsqError, ServerError
from nsq_ha.protocol import DamagedMessage, Layout, SubAdvanced
from tests.support.nsqd import LIMIT, FakeNsqd, NoSource, Peer

T = TypeVar("T")


class Recorder:
    """Keeps what a connection reports."""

    def __init__(self) -> None:
        self.answers: list[bytes | ServerError] = []
        self.messages: list[Message] = []
        self.refusals: list[ServerError] = []
        self.damaged: list[DamagedMessage] = []
        self.lost: list[NsqError] = []
        self._changed = asyncio.Event()
        self.callbacks = Callbacks(
            lost=self._keep(self.lost.append),
            answers=self._keep(self.answers.extend),
            messages=self._keep(self.messages.extend),
            refusals=self._keep(self.refusals.extend),
            damaged=self._keep(self.damaged.extend),
        )

    def _keep(self, keep: Callable[[T], None]) -> Callable[[T], None]:
        def callback(what: T) -> None:
            keep(what)
            self._changed.set()

        return callback

    async def until(self, condition: Callable[[], object], limit: float = LIMIT) -> None:
        async with asyncio.timeout(limit):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


class Link:
    """An open connection with both of its ends.

    Attributes:
        connection: The client's end.
        recorder: What it reported.
        peer: The server's end.
    """

    def __init__(self, connection: Connection, recorder: Recorder, peer: Peer) -> None:
        self.connection = connection
        self.recorder = recorder
        self.peer = peer

    @property
    def has_space(self) -> bool:
        """Whether the socket takes more."""
        stream = self.connection._stream  # noqa: SLF001 - nothing else tells without writing
        return not (stream.is_paused or stream.is_closing())

    async def lost(self, limit: float = LIMIT) -> NsqError:
        """Wait for the end, which must be reported once, and return its reason."""
        await self.recorder.until(lambda: self.recorder.lost, limit)
        assert len(self.recorder.lost) == 1
        assert self.connection.is_open is False
        return self.recorder.lost[0]


@asynccontextmanager
async def linked(nsqd: FakeNsqd, config: ClientConfig | None = None) -> AsyncIterator[Link]:
    """Open a connection; abort it at the end."""
    recorder = Recorder()
    connection = await Connection.open(config or ClientConfig(), nsqd.node, recorder.callbacks)
    try:
        yield Link(connection, recorder, nsqd.peers[-1])
    finally:
        connection.abort(ConnectionLostError("the test is over"))
        await connection.ended()


@asynccontextmanager
async def subscribed(
    nsqd: FakeNsqd, config: ClientConfig | None = None, layout: Layout = Layout.DETAIL
) -> AsyncIterator[Link]:
    """Open a connection and subscribe; abort it at the end."""
    async with linked(nsqd, config) as link:
        await link.connection.subscribe(SubAdvanced("orders", "ch", 0), NoSource(), layout)
        yield link
