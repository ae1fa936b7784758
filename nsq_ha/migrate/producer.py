"""Publish to two clusters, each key to one of them.

Owns the waiting for keys that move, and batches that go to both clusters. ``policy.migration`` decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, Protocol

from nsq_ha.checks import check_timeout, check_topic
from nsq_ha.engine.single_use import Closing
from nsq_ha.errors import ClosedError, ConfigError, NsqError, PublishError
from nsq_ha.message import OutgoingMessage, Receipt
from nsq_ha.migrate.pair import ClientPair
from nsq_ha.migrate.shares import Share, Shares
from nsq_ha.policy.migration import Cluster, Mover, Moves, RoundRobin, Ticket, cluster_of_key, cluster_of_partition
from nsq_ha.policy.sharding import Key
from nsq_ha.producer import Producer
from nsq_ha.producer.batch import as_list, at_position
from nsq_ha.producer.requests import check_message, lane_key

Outcomes = list[Receipt | PublishError]


_UNLIMITED: Final = 2**31
_STEP: Final = 1_000
"""Number of messages that are checked between two breaks for other tasks."""


class Publisher(Protocol):
    """What :class:`~nsq_ha.Producer` and :class:`MigratingProducer` have in common, for programs that use either."""

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
        """Publish one message, see :meth:`nsq_ha.Producer.publish`."""
        ...

    async def publish_many(
        self, topic: str, messages: Iterable[bytes | OutgoingMessage], *, timeout: float | None = None
    ) -> list[Receipt | PublishError]:
        """Publish many messages, see :meth:`nsq_ha.Producer.publish_many`."""
        ...


class MigratingProducer(ClientPair[Producer]):
    """Publishes a share of each topic to the current cluster, and the rest to the previous one.

    It enters and closes both producers. Use it with ``async with``, like a :class:`~nsq_ha.Producer`.

    * A key belongs to one cluster. A higher share moves some keys to the current cluster, a lower one moves the same
      keys back. A key moves when all of its publishes are answered; until then its next publish waits.
    * Messages without a key are dealt out one by one, so that each cluster gets exactly its share.
    * Publishes that name a partition go to the previous cluster until the share is 100, and then to the current one,
      since the clusters number their partitions differently. They move like a key.
    * If a cluster fails, its share fails; the other cluster gets nothing of it, since that would break the order and
      could store messages twice. Set the share to 0 or 100 instead.

    Args:
        previous: The producer of the cluster to leave, not entered.
        current: The producer of the cluster to move to, not entered.
        share: Percent of a topic for the current cluster, 0..100: a number for all topics; a mapping by topic, in
            which ``"*"`` is for all others (0 if missing); a plain function that takes a topic and returns its share at
            once; or the path of a TOML or JSON file with such a mapping.
        refresh_interval: Seconds between two looks at the file, and between two calls of the function for one topic.

    Attributes:
        previous: The producer of the cluster to leave.
        current: The producer of the cluster to move to.

    Raises:
        ConfigError: A share is not valid, or both producers are the same one.
    """

    def __init__(
        self,
        previous: Producer,
        current: Producer,
        *,
        share: Share,
        refresh_interval: float = 1.0,
    ) -> None:
        super().__init__(Producer, previous, current)
        self._shares = Shares(share, refresh_interval)
        self._moves = Moves()
        self._round_robin = RoundRobin()
        # Which cluster a message goes to may change, and only its producer knows how small a body becomes.
        configs = previous.config, current.config
        self._largest: int = max(_UNLIMITED if each.compress_body else each.max_message_bytes for each in configs)
        self._waiters: dict[Ticket, asyncio.Future[None]] = {}
        self._calls = 0
        self._idle = asyncio.Event()
        self._close = Closing(self._until_idle, self._end, "nsq_ha migrating producer closes")
        self._watching: asyncio.Task[None] | None = None

    # -- shares

    def share_of(self, topic: str) -> float:
        """Return the current cluster's share of a topic, in percent."""
        return self._shares.of(topic)

    def set_share(self, share: float, topic: str | None = None) -> None:
        """Change a share while publishing.

        Args:
            share: Percent for the current cluster, 0..100.
            topic: The topic. None changes the share of all topics that have none of their own.

        Raises:
            ConfigError: A value is not valid, or the shares come from a function or a file.
        """
        self._shares.set(share, topic)

    @property
    def moving(self) -> int:
        """Number of publishes and batches that wait until a key has moved."""
        return len(self._waiters)

    # -- life

    async def _open(self) -> None:
        await self._shares.open()
        await self.previous.__aenter__()
        await self.current.__aenter__()
        if self._shares.is_watched:
            self._watching = asyncio.create_task(self._shares.watch(), name="nsq_ha shares")

    async def aclose(self) -> None:
        """Wait up to ``close_timeout`` for pending publishes, then close both producers. May be called again.

        If cancelled, it closes without waiting.

        Raises:
            ConfigError: Called from another event loop than the one that entered it. Nothing was changed.
        """
        if self._loop is None or self._close.is_done:
            return
        self._check_loop()
        self._closing.set()
        await self._close.wait()

    async def _until_idle(self) -> None:
        limit = max(self.previous.config.close_timeout, self.current.config.close_timeout)
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                while self._calls:
                    self._idle.clear()
                    await self._idle.wait()

    async def _end(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})
        for waiter in self._waiters.values():
            if not waiter.done():
                waiter.set_exception(ClosedError("the producer was closed"))
        closes = [asyncio.ensure_future(producer.aclose()) for producer in (self.previous, self.current)]
        if self._calls:  # they had their time
            await asyncio.sleep(0)
            for close in closes:
                close.cancel()
        await asyncio.gather(*closes, return_exceptions=True)

    def _check_open(self) -> None:
        if self._loop is None:
            raise ClosedError("the producer is not open: use it with 'async with'")
        if self._closing.is_set():
            raise ClosedError("the producer is closed")
        self._check_loop()

    # -- publishing

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
        """Publish one message to the cluster that it belongs to, see :meth:`nsq_ha.Producer.publish`.

        The time that a key needs to move counts. A publish that is not answered, since it was cancelled or failed with
        ``maybe_stored``, does not hold up its key any longer.

        Args:
            topic: A topic that exists in both clusters.
            body: As for a producer.
            key: As for a producer.
            partition: A partition of the previous cluster until the share is 100, of the current one from then on.
            trace_id: As for a producer.
            headers: As for a producer.
            tag: As for a producer.
            defer: As for a producer.
            timeout: Seconds for the whole call. None uses the ``publish_timeout`` of the cluster's producer.

        Raises:
            ConfigError: As for a producer.
            PublishError: As for a producer; or the key could not move in time, and the message was not sent.
            ClosedError: The producer is closed.
        """
        self._check_open()
        mover = _mover(topic, key, partition)
        ticket = self._moves.enter(() if mover is None else (mover,))
        self._calls += 1
        try:
            if mover is None:
                cluster = self._round_robin.choose(topic, self._shares.of(topic))
            else:
                clusters, timeout = await self._started(ticket, topic, timeout)
                cluster = clusters[mover]
                self._passed_on(ticket)  # those woken run only after this publish is queued
            return await self._producer(cluster).publish(
                topic,
                body,
                key=key,
                partition=partition,
                trace_id=trace_id,
                headers=headers,
                tag=tag,
                defer=defer,
                timeout=timeout,
            )
        finally:
            self._left(ticket)

    async def publish_many(
        self,
        topic: str,
        messages: Iterable[bytes | OutgoingMessage],
        *,
        timeout: float | None = None,
    ) -> list[Receipt | PublishError]:
        """Publish many messages, each to the cluster that it belongs to; see :meth:`nsq_ha.Producer.publish_many`.

        The batch starts when all of its keys can. Messages of one key keep their order.

        Args:
            topic: A topic that exists in both clusters.
            messages: Bodies, or :class:`~nsq_ha.OutgoingMessage` with its own key, partition, trace and headers.
            timeout: Seconds for the whole call. None uses ``publish_timeout``.

        Returns:
            For each message, in the given order, its Receipt or the PublishError. If a batch goes to both clusters and
            one of them refuses its part, for example because its topic takes no headers, the messages of that part
            have a PublishError with the refusal as its cause.

        Raises:
            ConfigError: A message is not valid; the text names its position. Nothing was sent.
            ClosedError: The producer is closed.

        If cancelled, any part of the batch may be stored.
        """
        self._check_open()
        given = as_list(messages)
        if type(topic) is not str:
            check_topic(topic)
        movers = [None if type(message) is bytes else _mover_of(topic, message) for message in given]
        ticket = self._moves.enter(mover for mover in movers if mover is not None)
        self._calls += 1
        try:
            try:
                clusters, timeout = await self._started(ticket, topic, timeout)
            except PublishError as error:
                return [error] * len(given)
            share = self._shares.of(topic)
            chosen = [self._round_robin.choose(topic, share) if mover is None else clusters[mover] for mover in movers]
            parts = {
                cluster: [position for position, each in enumerate(chosen) if each == cluster]
                for cluster in dict.fromkeys(chosen)
            }
            if len(parts) < 2:
                self._passed_on(ticket)
                cluster = chosen[0] if chosen else "previous"
                return await self._producer(cluster).publish_many(topic, given, timeout=timeout)
            return await self._publish_parts(ticket, topic, given, parts, timeout)
        finally:
            self._left(ticket)

    async def _publish_parts(
        self,
        ticket: Ticket,
        topic: str,
        messages: Sequence[bytes | OutgoingMessage],
        parts: Mapping[Cluster, Sequence[int]],
        timeout: float | None,
    ) -> Outcomes:
        """Publish a batch that goes to both clusters."""
        await _check(messages, self._largest)
        calls = [
            asyncio.ensure_future(
                self._producer(cluster).publish_many(
                    topic, [messages[position] for position in positions], timeout=timeout
                )
            )
            for cluster, positions in parts.items()
        ]
        try:
            await asyncio.sleep(0)  # both have queued their commands
            self._passed_on(ticket)
            found = await asyncio.gather(*calls, return_exceptions=True)
        except BaseException:
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)
            raise
        return _outcomes(topic, parts, found)

    # -- keys

    def _producer(self, cluster: Cluster) -> Producer:
        return self.current if cluster == "current" else self.previous

    def _cluster_of(self, mover: Mover) -> Cluster:
        topic, name = mover
        share = self._shares.of(topic)
        return cluster_of_partition(share) if isinstance(name, int) else cluster_of_key(name, share)

    async def _started(
        self, ticket: Ticket, topic: str, timeout: float | None
    ) -> tuple[Mapping[Mover, Cluster], float | None]:
        """Wait until all keys of a publish are where they belong.

        Returns:
            The cluster of each key, and the time that is left for the publish.

        Raises:
            PublishError: They did not move in time.
        """
        clusters = self._moves.start(ticket, self._cluster_of)
        if clusters is not None:
            return clusters, timeout
        limit = max(self.previous.config.publish_timeout, self.current.config.publish_timeout)
        if timeout is not None:
            limit = check_timeout(timeout)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit
        try:
            async with asyncio.timeout_at(deadline):
                while clusters is None:
                    waiter = self._waiters[ticket] = loop.create_future()
                    await waiter
                    clusters = self._moves.start(ticket, self._cluster_of)
        except TimeoutError as error:
            raise PublishError(
                f"a key moves to the other cluster only when its earlier publishes are answered, and that took more"
                f" than {limit:g} s: raise timeout=, or find out why a cluster does not answer",
                topic=topic,
                partition=None,
                attempts=0,
                maybe_stored=False,
            ) from error
        finally:
            self._waiters.pop(ticket, None)
        return clusters, max(deadline - loop.time(), 0.001)

    def _passed_on(self, ticket: Ticket) -> None:
        self._moves.pass_on(ticket)
        self._wake(ticket)

    def _left(self, ticket: Ticket) -> None:
        self._moves.leave(ticket)
        self._wake(ticket)
        self._calls -= 1
        if not self._calls:
            self._idle.set()

    def _wake(self, ticket: Ticket) -> None:
        for first in self._moves.next_of(ticket):
            waiter = self._waiters.get(first)
            if waiter is not None and not waiter.done():
                waiter.set_result(None)


def _mover(topic: str, key: Key | None, partition: int | None) -> Mover | None:
    """Return what moves with a message. None if nothing does, or if the producer will refuse the message.

    Raises:
        ConfigError: The topic's name is not legal.
    """
    if type(topic) is not str:
        check_topic(topic)
    name: object = partition if key is None else key
    if isinstance(name, bool) or (key is not None and partition is not None):
        return None
    if key is None:
        return (topic, name) if isinstance(name, int) else None
    found: object = None
    if isinstance(name, str | bytes | int):
        with suppress(ConfigError):
            found = lane_key(name)
    return (topic, found) if isinstance(found, bytes) else None


def _mover_of(topic: str, message: object) -> Mover | None:
    if isinstance(message, OutgoingMessage):
        return _mover(topic, message.key, message.partition)
    return _mover(topic, None, None)


async def _check(messages: Sequence[bytes | OutgoingMessage], largest: int) -> None:
    """Check all messages of a batch, with breaks for other tasks.

    Args:
        messages: The messages.
        largest: Largest message in bytes.

    Raises:
        ConfigError: A message is not valid; the text names its position.
    """
    for position, given in enumerate(messages):
        message = given if isinstance(given, OutgoingMessage) else OutgoingMessage(given)
        try:
            check_message(message, message.trace_id, largest)
        except ConfigError as error:
            raise at_position(position, error) from error
        if position % _STEP == _STEP - 1:
            await asyncio.sleep(0)


def _outcomes(
    topic: str, parts: Mapping[Cluster, Sequence[int]], found: Sequence[Outcomes | BaseException]
) -> Outcomes:
    """Return the outcome of each message of a batch that went to both clusters.

    Raises:
        ClosedError: Both producers are closed.
        BaseException: A call failed by a bug, or was cancelled by somebody else.
    """
    outcomes: dict[int, Receipt | PublishError] = {}
    failures = [result for result in found if isinstance(result, BaseException)]
    for failure in failures:
        if not isinstance(failure, NsqError) or all(isinstance(each, ClosedError) for each in found):
            raise failure
    for (cluster, positions), result in zip(parts.items(), found, strict=True):
        if isinstance(result, BaseException):
            # The position in a refusal is one in the part.
            cause = result.__cause__ if isinstance(result, ConfigError) and result.__cause__ is not None else result
            error = PublishError(
                f"the {cluster} cluster refused its part of the batch: {cause}",
                topic=topic,
                partition=None,
                attempts=0,
                maybe_stored=not isinstance(result, ConfigError),
            )
            error.__cause__ = cause
            outcomes |= dict.fromkeys(positions, error)
        else:
            outcomes |= zip(positions, result, strict=True)
    return [outcomes[position] for position in range(len(outcomes))]
