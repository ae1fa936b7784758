"""Whether every FIN that a server counts belongs to a message that somebody was handed, or has a reason with a name.

The servers' side is ``finish_count`` of each connection in ``/stats``, read just before a consumer closes it. FINs of
connections that end otherwise are not counted. The other side is what handlers and iterators of the test got. A message
that comes again counts once, unless its attempts begin anew: then its channel was moved back, or the nsqd has forgotten
that it was finished. The reasons are the consumers' own counts.
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from nsq_ha import Consumer
from nsq_ha.admin.nsqd_http import NsqdHttp
from nsq_ha.consumer.inbox import Messages
from nsq_ha.consumer.subscription import Subscription
from nsq_ha.errors import NsqError

if TYPE_CHECKING:
    import pytest

    from nsq_ha import Message
    from nsq_ha.policy.topology import Node

LIMIT = 2.0
"""Seconds for an nsqd's answer; if it is down, there is nothing to count."""


class Channel(NamedTuple):
    """A channel of a topic."""

    topic: str
    name: str


class Account:
    """One channel.

    Attributes:
        handed_out: How often each message that handlers and iterators got can be finished. An id means nothing at
            another nsqd, and may be given again later.
        fins: FINs that were counted, by nsqd, partition, address of the client and time of its connection.
        consumers: Those that subscribed.
    """

    def __init__(self) -> None:
        self.handed_out: Counter[tuple[str, bytes, int]] = Counter()
        self._attempts: dict[tuple[str, bytes, int], int] = {}
        self.fins: dict[tuple[object, ...], int] = {}
        self.consumers: list[Consumer] = []

    def hand_out(self, message: Message) -> None:
        """Record a message that a handler or an iterator gets."""
        key = message.nsqd, message.id, message.timestamp_ns
        self.handed_out[key] += message.attempts <= self._attempts.get(key, message.attempts)
        self._attempts[key] = message.attempts

    def unexplained(self) -> str:
        """Return why there are more FINs than messages and reasons; empty if there are not."""
        stats = [consumer.stats() for consumer in self.consumers]
        reasons = {
            name: sum(getattr(each, name) for each in stats) for name in ("skipped", "given_up", "finished_unhandled")
        }
        counted, seen = sum(self.fins.values()), self.handed_out.total()
        if counted <= seen + sum(reasons.values()):
            return ""
        return f"{counted} messages were finished, {seen} were handed out; {reasons}"


class Accounts:
    """Watches all consumers of the process, in whatever thread, until the patches are undone."""

    def __init__(self) -> None:
        self._accounts: defaultdict[Channel, Account] = defaultdict(Account)

    def watch(self, patch: pytest.MonkeyPatch) -> Self:
        """Begin."""
        enter, run, take, close = (
            Consumer.__aenter__,
            Consumer.run,
            Messages.__anext__,
            Subscription.aclose_connection,
        )
        accounts = self

        async def entered(consumer: Consumer) -> Consumer:
            accounts._accounts[Channel(consumer.topic, consumer.channel)].consumers.append(consumer)
            return await enter(consumer)

        async def running(consumer: Consumer, handler: Any, **options: Any) -> None:  # noqa: ANN401
            await run(consumer, accounts._noted(handler), **options)

        async def taken(messages: Messages) -> Message:
            message = await take(messages)
            if messages.is_of_task:  # else a handler will get it
                accounts._hand_out(message)
            return message

        async def closed(subscription: Subscription, timeout: float) -> None:
            connection, delivery = subscription.link.connection, subscription.delivery
            if connection is not None and delivery is not None:
                delivery.flush()
                await accounts._count(connection.node, Channel(delivery.topic, delivery.channel))
            await close(subscription, timeout)

        patch.setattr(Consumer, "__aenter__", entered)
        patch.setattr(Consumer, "run", running)
        patch.setattr(Messages, "__anext__", taken)
        patch.setattr(Subscription, "aclose_connection", closed)
        return self

    def check(self) -> None:
        """Fail if a server counted a FIN that nothing explains."""
        for channel, account in self._accounts.items():
            why = account.unexplained()
            assert not why, f"{channel.topic}/{channel.name}: {why}"

    def _noted(self, handler: Any) -> Any:  # noqa: ANN401 - whatever a test gives to run()
        if not callable(handler):
            return handler
        if inspect.iscoroutinefunction(handler):

            @functools.wraps(handler)
            async def handle(message: Message) -> object:
                self._hand_out(message)
                return await handler(message)

            return handle

        @functools.wraps(handler)
        def call(message: Message) -> object:
            self._hand_out(message)
            return handler(message)

        return call

    def _hand_out(self, message: Message) -> None:
        self._accounts[Channel(message.topic, message.source.channel)].hand_out(message)

    async def _count(self, node: Node, channel: Channel) -> None:
        account = self._accounts[channel]
        try:
            async with NsqdHttp(node, timeout=LIMIT) as nsqd:
                found = await nsqd.stats(channel.topic, channel=channel.name, clients=True)
        except NsqError:
            return
        for partition in found:
            for each in partition.channels:
                for client in each.connections if each.name == channel.name else ():
                    if not client.user_agent.startswith("nsq_ha"):
                        continue
                    key = (node, partition.partition, client.address, client.connected_at)
                    account.fins[key] = max(account.fins.get(key, 0), client.finished)
