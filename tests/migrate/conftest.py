"""Producers whose publishes are answered on command, and proof that nothing is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import pytest

from nsq_ha import ConfigError, OutgoingMessage, Producer, PublishError, Receipt
from nsq_ha.migrate import Cluster, MigratingProducer, Share
from tests.support.leaks import nothing_left

if TYPE_CHECKING:
    from nsq_ha.policy.sharding import Key


@pytest.fixture(autouse=True)
async def nothing_is_left() -> AsyncIterator[None]:
    async with nothing_left():
        yield


class Sent(NamedTuple):
    """A publish that a producer got."""

    cluster: Cluster
    body: bytes
    answer: asyncio.Future[None]


class Scripted(Producer):
    """A producer that answers when the test says so."""

    def __init__(self, cluster: Cluster, sent: list[Sent]) -> None:
        super().__init__(lookupd="127.0.0.1:1", close_timeout=0.5, max_message_bytes=3_000_000)
        self.cluster: Cluster = cluster
        self.sent = sent
        self.answers_at_once = True
        self.timeouts: list[float | None] = []
        self.batches: list[list[bytes]] = []
        self.refusal: Exception | None = None
        self.was_closed = False

    async def _open(self) -> None:
        pass

    async def aclose(self) -> None:
        self.was_closed = True

    async def publish(
        self,
        topic: str,
        body: bytes,
        *,
        key: Key | None = None,
        partition: int | None = None,
        trace_id: int | None = None,
        headers: Mapping[str, object] | None = None,
        tag: str | None = None,
        defer: float | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        if key is not None and partition is not None:
            raise ConfigError("key= and partition=")
        self.timeouts.append(timeout)
        await self._answered(body)
        return Receipt(topic, partition or 0, self.cluster, trace_id=trace_id)

    async def publish_many(
        self, topic: str, messages: Iterable[bytes | OutgoingMessage], *, timeout: float | None = None
    ) -> list[Receipt | PublishError]:
        bodies = [message if isinstance(message, bytes) else message.body for message in messages]
        self.batches.append(bodies)
        self.timeouts.append(timeout)
        if self.refusal is not None:
            raise self.refusal
        for body in bodies[:-1]:
            self.sent.append(Sent(self.cluster, body, asyncio.get_running_loop().create_future()))
        if bodies:
            await self._answered(bodies[-1])
        return [Receipt(topic, 0, self.cluster) for _ in bodies]

    async def _answered(self, body: bytes) -> None:
        sent = Sent(self.cluster, body, asyncio.get_running_loop().create_future())
        self.sent.append(sent)
        if self.answers_at_once:
            sent.answer.set_result(None)
        await sent.answer


@dataclass
class Scene:
    """A migrating producer over two scripted ones.

    Attributes:
        sent: What both got, in order.
    """

    sent: list[Sent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.previous = Scripted("previous", self.sent)
        self.current = Scripted("current", self.sent)

    def producer(self, share: Share = 0, refresh_interval: float = 1.0) -> MigratingProducer:
        return MigratingProducer(self.previous, self.current, share=share, refresh_interval=refresh_interval)

    def hold(self) -> None:
        """Answer nothing from now on."""
        self.previous.answers_at_once = self.current.answers_at_once = False

    def places(self) -> list[tuple[bytes, Cluster]]:
        return [(sent.body, sent.cluster) for sent in self.sent]


@pytest.fixture
def scene() -> Scene:
    return Scene()
