"""A scripted cluster: one nsqlookupd and some nsqds, of which a test says who leads what."""

import ssl
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Self

from nsq_ha import Consumer, Producer
from nsq_ha.protocol import Identity
from tests.engine.lookups.loopback import Fake, lookup_body
from tests.support.nsqd import FakeNsqd

TOPIC = "orders"


class Stage:
    """Use it with ``async with``.

    Attributes:
        lookupd: The nsqlookupd.
        nsqd: The first of the nsqds, which leads every partition at the beginning.
        nsqds: All.
    """

    def __init__(self, nsqds: int = 1, identity: Identity | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.lookupd = Fake(tls)
        self.nsqds = [FakeNsqd(identity) for _ in range(nsqds)]
        self._stack = AsyncExitStack()

    @property
    def nsqd(self) -> FakeNsqd:
        return self.nsqds[0]

    async def __aenter__(self) -> Self:
        await self.lookupd.start()
        self._stack.push_async_callback(self.lookupd.stop)
        for nsqd in self.nsqds:
            await self._stack.enter_async_context(nsqd)
        self.lead({0: self.nsqd})
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def lead(
        self,
        leaders: Mapping[int, FakeNsqd],
        partition_num: int | None = None,
        *,
        ordered: bool = False,
        extended: bool = False,
    ) -> None:
        """Say from now on who leads which partition."""
        body: dict[str, Any] = lookup_body(
            {partition: nsqd.port for partition, nsqd in leaders.items()}, partition_num, ordered=ordered
        )
        body["meta"]["extend_support"] = extended
        self.lookupd.answer("/lookup", body)

    def list_plain(self, *nsqds: FakeNsqd, candidates: Sequence[FakeNsqd] = ()) -> None:
        """Say from now on which plain nsqds have the topic, and which others there are."""
        peers, others = (
            [{"broadcast_address": "127.0.0.1", "tcp_port": nsqd.port} for nsqd in each] for each in (nsqds, candidates)
        )
        self.lookupd.answer("/lookup", {"channels": [], "producers": peers})
        self.lookupd.answer("/nodes", {"producers": [*peers, *others]})

    def producer(self, **options: Any) -> Producer:  # noqa: ANN401 - ProducerConfig's fields
        return Producer(lookupd=self.lookupd.url, **options)

    def consumer(self, **options: Any) -> Consumer:  # noqa: ANN401 - ConsumerConfig's fields
        return Consumer(TOPIC, "ch", lookupd=self.lookupd.url, **options)
