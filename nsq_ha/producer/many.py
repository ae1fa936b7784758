"""One ``publish_many``: its commands queued in order, and what became of each message.

The invariants: no message is queued before all are checked; a small batch is
queued in one turn of the event loop, a large one at the front of its topic's
line, where it lets others run between its commands; what could not be queued
within the time limit was not sent, and is told so.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nsq_ha.errors import PublishError, ResponseTimeoutError
from nsq_ha.producer.turn import turn_of, unsent

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.message import Receipt
    from nsq_ha.policy.topology import TopicView
    from nsq_ha.producer.batch import Batch, Part
    from nsq_ha.producer.outgoing import Outgoing
    from nsq_ha.producer.topic import TopicPublisher
    from nsq_ha.producer.under_way import UnderWay


class Many:
    """One batch on its way. Call :meth:`publish` once."""

    def __init__(
        self,
        batch: Batch,
        publisher: TopicPublisher,
        under_way: UnderWay,
        limit: float,
        *,
        check_open: Callable[[], object],
        is_dead: Callable[[], bool],
    ) -> None:
        """Prepare.

        Args:
            batch: The messages.
            publisher: Their topic's.
            under_way: Where the commands are waited for.
            limit: Seconds for all of it, from now on.
            check_open: Raises when the producer is closed, or is about to be.
            is_dead: Tells whether what is queued now would never end.
        """
        self._batch = batch
        self._publisher = publisher
        self._under_way = under_way
        self._limit = limit
        self._clock = under_way.loop.time
        self._deadline = self._clock() + limit
        self._check_open = check_open
        self._is_dead = is_dead
        self._queued: list[Outgoing] = []

    async def publish(self) -> list[Receipt | PublishError]:
        """Publish; return the outcome of each message.

        Raises:
            ConfigError: One of the messages is not legal (its position is named). Nothing was sent.

        Cancelled, any part of it may be stored.
        """
        try:
            failure = await self._queue()
            return self._batch.results([await _outcome(outgoing) for outgoing in self._queued], failure)
        finally:
            for outgoing in self._queued:
                if outgoing.future.done() and not outgoing.future.cancelled():
                    outgoing.future.exception()  # marks it as seen: the caller may be gone
                self._under_way.let_go(outgoing)

    async def _queue(self) -> PublishError | None:
        """Queue all commands; return why the last of them could not be, or None."""
        batch, publisher = self._batch, self._publisher
        if batch.is_small:
            for _ in batch.prepared():
                pass
            view = publisher.watch.view
            if not publisher.queued and publisher.is_usable(view):
                for part in batch.parts(publisher, view):
                    if part is not None:
                        self._admit(part, view, self._limit)
                return None
        try:
            async with turn_of(publisher, self._deadline, is_quick=batch.is_small):
                await self._queue_in_turn()
        except PublishError as error:
            return error
        return None

    async def _queue_in_turn(self) -> None:
        view = await self._publisher.view()
        self._check_open()  # from here on it is under way, and closing lets it end
        if not self._batch.is_small:
            for _ in self._batch.prepared():
                await self._let_others_run()
        for part in self._batch.parts(self._publisher, view):
            if not self._batch.is_small:
                await self._let_others_run()
            if part is None:
                continue
            self._admit(part, view, max(self._deadline - self._clock(), 0.0))
            if not self._batch.is_small:
                await self._under_way.until_queued(part.outgoing)
                self._check_alive()

    async def _let_others_run(self) -> None:
        await asyncio.sleep(0)
        self._check_alive()
        if self._clock() >= self._deadline:
            reason = ResponseTimeoutError("the time limit passed before this part of a large batch was queued")
            raise unsent(self._publisher, reason) from reason

    def _check_alive(self) -> None:
        if self._is_dead():
            self._check_open()

    def _admit(self, part: Part, view: TopicView, timeout: float) -> None:
        part.submit(self._publisher, view)
        self._under_way.add(part.outgoing, timeout)
        self._queued.append(part.outgoing)


async def _outcome(outgoing: Outgoing) -> list[Receipt] | PublishError:
    try:
        return await outgoing.future
    except PublishError as error:
        return error
