"""Publish to one topic: a queue for publishes that must wait, and one sender for each partition."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, TypeGuard

from nsq_ha.errors import (
    ConfigError,
    LookupUnavailableError,
    NoLeaderError,
    NsqError,
    PublishError,
    ResponseTimeoutError,
    TopicNotFoundError,
)
from nsq_ha.policy.health import Trouble
from nsq_ha.producer.choice import PartitionChoice, Repartition
from nsq_ha.producer.outcomes import PublishCounts
from nsq_ha.producer.requests import check_compression, lane_key, suit
from nsq_ha.producer.sender import Sender

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence

    from nsq_ha.engine.lookups import TopicWatch
    from nsq_ha.engine.shared import Connections
    from nsq_ha.message import Receipt
    from nsq_ha.options.config import ProducerConfig
    from nsq_ha.policy.topology import TopicView
    from nsq_ha.producer.limits import PendingPublish, PendingPublishes

UNKNOWN_KEPT: Final = 10.0
"""Seconds for which an unknown topic is looked up; if it is created in that time, it is found at once."""

UNKNOWN_TOPIC_PATIENCE: Final = 3.0
"""Seconds for which an unseen topic of a partitioned cluster may be unknown to all nsqlookupds before a publish fails:
a second nsqlookupd learns of a new topic up to 3 s late. A plain nsqlookupd knows only the nsqds that have registered
since it started, so there a publish waits until its own limit."""


class TopicPublisher:
    """Publishes to one topic; a producer has one for each topic.

    Args:
        watch: The topic's lookups.
        config: The producer's options.
        connections: The producer's connections.
        start: Runs a new sender.
        check_open: Raises ClosedError once the producer closes, for whatever reason.
        pending: Holds the pending publishes.

    Attributes:
        watch: The topic's lookups.
        senders: The started senders, by partition.
        queued: Number of publishes in the topic's queue.
        used_at: When a publish last left the queue, in the loop's time.
        unsent: Counts of publishes that were never assigned to a partition.
    """

    def __init__(
        self,
        watch: TopicWatch,
        config: ProducerConfig,
        *,
        connections: Connections,
        start: Callable[[Sender], None],
        check_open: Callable[[], object],
        pending: PendingPublishes,
    ) -> None:
        self.watch = watch
        self.senders: dict[int, Sender] = {}
        self.queued: int = 0
        self.used_at: float = pending.loop.time()
        self.unsent: PublishCounts = PublishCounts()
        self._getting_ready = 0
        self._queue = AdmissionQueue()
        self._config = config
        self._connections = connections
        self._start = start
        self._check_open = check_open
        self._pending = pending
        self._was_known = False
        self._calm_view: TopicView | None = None  # needs no further look: its number of partitions is not changing
        self._repartition = Repartition(watch.topic, config)
        self.choice: PartitionChoice = PartitionChoice(
            watch.topic,
            config,
            self._repartition,
            self.senders,
            connections=connections,
            try_to_connect=lambda partition: self.sender(partition).try_to_connect(),
        )
        watch.add_listener(self._view_changed)
        if watch.view is not None:
            self._repartition.view_changed(watch.view)

    # ------------------------------------------------------------ admission

    def usable_view(self) -> TopicView | None:
        """Return the topic's view. None if a publish must wait."""
        view = self.watch.view
        return view if not self.queued and self.is_usable(view) else None

    def check_alive(self) -> None:
        """Check that senders still run. A producer that closes waits for what has begun.

        Raises:
            ClosedError: None does: a publish that is queued now would never end.
        """
        if self._pending.is_closed:
            self._check_open()

    async def publish(self, request: PendingPublish, timeout: float | None) -> list[Receipt]:
        """Queue a request at its partition; return what the leader answers.

        Args:
            request: The request; its partition is not chosen yet.
            timeout: Seconds for all of it. None for the producer's limit.

        Raises:
            ConfigError: The request does not suit the topic.
            PublishError: It was not acknowledged.
        """
        self._pending.add(request, timeout)
        try:
            if not self.try_admit(request):
                await self.wait_and_admit(request)
            return await request.future
        except BaseException:
            self._pending.let_go(request)
            raise

    def try_admit(self, request: PendingPublish, *, is_first: bool = False) -> bool:
        """Choose the partition of a request and queue it there, if it need not wait; return whether it was queued.

        Args:
            request: The request.
            is_first: Whether it is at the front of the topic's queue; any other one waits behind those in the queue.

        Raises:
            ConfigError: The request does not suit the topic.
        """
        view = self.watch.view
        if self.queued and not is_first:
            return False
        if view is None or view is not self._calm_view:
            if not self.is_usable(view):
                return False
            check_compression(view, self._config)
            self.choice.follow(view)
            self._calm_view = view if self._repartition.is_calm else None
        largest = self._config.max_message_bytes
        if not request.is_plain or request.size >= largest:
            suit(request, view, largest)
        if request.key is None and request.partition is None:
            partition = self.choice.any_partition()
        else:
            partition = self.choice.partition_for(request.key, request.partition)
            request.keys = (lane_key(request.key),)
        (self.senders.get(partition) or self.sender(partition)).submit(request)
        return True

    async def wait_and_admit(self, request: PendingPublish) -> None:
        """Queue a request at its partition as soon as the topic is known and no earlier publish waits.

        Raises:
            ConfigError: The request does not suit the topic.
            PublishError: The time limit passed, the topic cannot be used, or the producer is closed. Nothing was sent.
        """
        try:
            async with self.admitted(request.deadline, is_quick=True):
                is_queued = False
                while not is_queued:  # the view may be another one by now, which names no partitions
                    await self.view()
                    self.check_alive()
                    is_queued = self.try_admit(request, is_first=True)
        except PublishError:
            self.count_unsent(request.count, request.deadline)
            raise

    def count_unsent(self, count: int, deadline: float) -> None:
        """Count ``count`` messages that failed before they were assigned to a partition."""
        self.unsent.failure(count, maybe_stored=False)
        if self._pending.loop.time() >= deadline:
            self.unsent.timed_out += count

    @contextlib.asynccontextmanager
    async def admitted(self, deadline: float, *, is_quick: bool) -> AsyncIterator[None]:
        """Wait for the front of the topic's queue and stay there inside the block.

        There is one queue for all reasons to wait, since a later publish of the same
        key must not overtake an earlier one.

        Args:
            deadline: When the wait and the block must be over, in the loop's time.
            is_quick: See :meth:`AdmissionQueue.front`.

        Raises:
            PublishError: The time limit passed or the topic cannot be used. Nothing was sent.
        """
        self.queued += 1
        try:
            async with asyncio.timeout_at(deadline), self._queue.front(is_quick=is_quick):
                yield
        except TimeoutError:
            reason = self.trouble or ResponseTimeoutError(self._late())
            raise self.not_sent(reason) from reason
        except (ConfigError, PublishError):
            raise
        except NsqError as error:
            raise self.not_sent(error) from error
        finally:
            self.queued -= 1
            self.used_at = asyncio.get_running_loop().time()

    def _late(self) -> str:
        if self.watch.view is None:
            return "nsqlookupd did not answer in time"
        # Those before this one wait for a lookup; a large batch is admitted in parts, even if the topic works.
        return (
            "timed out waiting behind earlier publishes to the same topic: raise timeout=, "
            "or publish smaller batches if a large one is before it"
        )

    def not_sent(self, error: NsqError) -> PublishError:
        """Return the error of a publish that was never queued at a partition."""
        return PublishError(str(error), topic=self.watch.topic, partition=None, attempts=0, maybe_stored=False)

    # ------------------------------------------------------------ ready

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Do not forget the topic inside the block, though nothing is published."""
        self._getting_ready += 1
        try:
            yield
        finally:
            self._getting_ready -= 1
            self.used_at = self._pending.loop.time()

    # ------------------------------------------------------------ the topic's view

    async def view(self) -> TopicView:
        """Return the topic's view as :meth:`known_view` does, and use a new number of partitions if it is due.

        Only for the front of the topic's queue: the number of partitions in use may change here, and a large batch
        there has chosen its partitions.
        """
        view = await self.known_view()
        self._repartition.take()
        return view

    async def known_view(self) -> TopicView:
        """Return the topic's view; wait for the first lookup that names its partitions.

        The caller sets the time limit. Cancelling leaves nothing behind.

        Raises:
            TopicNotFoundError: No nsqlookupd of a partitioned cluster knows the topic, and none did before.
        """
        view = self.watch.view
        if view is not None and _names_partitions(view):
            self._was_known = True
            return view
        loop = asyncio.get_running_loop()
        deadline = loop.time() + UNKNOWN_TOPIC_PATIENCE
        while True:
            try:
                async with asyncio.timeout_at(None if self._was_known else deadline):
                    view = await self.watch.wait_until(_names_partitions)
                self._was_known = True
                return view
            except TimeoutError:
                if (view := self.watch.view) is not None and not view.exists and not view.is_plain:
                    raise self._unknown() from None
                deadline = loop.time() + UNKNOWN_TOPIC_PATIENCE

    def is_usable(self, view: TopicView | None) -> TypeGuard[TopicView]:
        """Return whether the view names the topic's partitions; if so, use a new number of them if it is due."""
        if view is None or not _names_partitions(view):
            return False
        self._repartition.take()
        return True

    def is_forgotten(self) -> bool:
        """Return whether to forget the topic because nobody publishes to it; its number of partitions is not changing.

        A known topic is kept for ``idle_timeout``, an unknown one for :data:`UNKNOWN_KEPT` at most.
        """
        senders = self.senders.values()
        if self.queued or self._getting_ready or any(sender.load for sender in senders):
            return False
        self._repartition.take()
        if not self._repartition.is_calm:
            return False
        used_at = max(self.used_at, *(sender.last_used for sender in senders), 0.0)
        is_known = self.watch.view is not None and _names_partitions(self.watch.view)
        kept = self._config.idle_timeout if is_known else min(UNKNOWN_KEPT, self._config.idle_timeout)
        return self._pending.loop.time() - used_at > kept

    @property
    def trouble(self) -> NsqError | None:
        """Why a publish could not choose a partition in time. None if it could."""
        view = self.watch.view
        if view is not None and _names_partitions(view):
            return None
        if view is not None and not view.exists:
            return self._unknown()
        if self.watch.error is None and view is not None and view.note:
            return self._not_yet(view.note)
        said = "has not answered yet" if view is None else "named no partition"
        asked = tuple((url, said) for url in self.watch.lookupds)
        return self.watch.error or LookupUnavailableError(
            f"no nsqlookupd named a partition of topic {self.watch.topic!r} in time", asked
        )

    def _not_yet(self, note: str) -> NoLeaderError:
        cure = ""
        if "no channel" in note.lower():
            cure = ": subscribe to it once, or start nsqlookupd with -allow-write-with-nochannels"
        return NoLeaderError(f"topic {self.watch.topic!r} accepts no messages yet: nsqlookupd says {note!r}{cure}")

    def _unknown(self) -> TopicNotFoundError:
        if self.watch.view is not None and self.watch.view.is_plain:
            return TopicNotFoundError(
                f"no nsqlookupd lists an nsqd for topic {self.watch.topic!r} (asked {', '.join(self.watch.lookupds)}):"
                " start nsqd with the option -lookupd-tcp-address; one that already runs registers again within 30 s"
                " after nsqlookupd was restarted"
            )
        return TopicNotFoundError.named(self.watch.topic)

    def _view_changed(self, view: TopicView) -> None:
        self._repartition.view_changed(view)
        for sender in self.senders.values():
            sender.view_changed(view)
        if self._config.on_unreachable == "retry":
            for sender in tuple(self.senders.values()):
                if sender.trouble is not None:
                    self._move_elsewhere(sender)

    # ------------------------------------------------------------ the senders

    def sender(self, partition: int) -> Sender:
        """Return the partition's sender; start it if it is new."""
        sender = self.senders.get(partition)
        if sender is None:
            sender = Sender(
                self.watch,
                partition,
                self._config,
                connections=self._connections,
                on_trouble=self._move_elsewhere,
                pending=self._pending,
            )
            self.senders[partition] = sender
            self._start(sender)
        return sender

    def _move_elsewhere(self, sender: Sender) -> None:
        """Move publishes that may go to any partition from a sender to a healthy partition."""
        view, choice = self.watch.view, self.choice
        if view is None or view.meta is None:
            return
        if not self.queued:  # else the publish at the front of the queue may have chosen by the number in use
            self._repartition.take()
        choice.follow(view)
        if not any(p != sender.partition and choice.is_healthy(p) for p in choice.routes):
            return
        for request in sender.take_movable():
            self.sender(self.choice.other_partition(sender.partition)).submit(request)


def _names_partitions(view: TopicView) -> bool:
    return view.meta is not None and view.meta.partition_num > 0


class AdmissionQueue:
    """Publishes that cannot be queued at a partition at once; they wait here in order.

    The invariant: only the publish at the front is queued at a partition, so no
    later one overtakes it. Quick publishes behind one that was queued are woken
    together: one per iteration of the event loop would be too slow on a busy
    machine. Behind one that failed only the next is woken, since it will wait, too.
    """

    def __init__(self) -> None:
        self._tickets: OrderedDict[_Ticket, None] = OrderedDict()  # they leave from anywhere in it

    @contextlib.asynccontextmanager
    async def front(self, *, is_quick: bool) -> AsyncIterator[None]:
        """Wait for the front and stay there inside the block. A cancelled wait leaves the queue.

        Args:
            is_quick: Whether the block takes no time once the topic is known.
        """
        ticket = _Ticket(is_quick)
        self._tickets[ticket] = None
        is_queued = False
        try:
            while next(iter(self._tickets)) is not ticket:
                ticket.woken = asyncio.get_running_loop().create_future()
                await ticket.woken
            yield
            is_queued = True
        finally:
            del self._tickets[ticket]
            self._wake(together=is_queued)

    def _wake(self, *, together: bool) -> None:
        """Wake the publish at the front, and the quick ones behind it if ``together``; they run in their order."""
        for ticket in self._tickets:
            if ticket.woken is None or ticket.woken.done():
                return  # woken earlier
            ticket.woken.set_result(None)
            if not (together and ticket.is_quick):
                return


class _Ticket:
    """One publish in the queue."""

    __slots__ = ("is_quick", "woken")

    def __init__(self, is_quick: bool) -> None:
        self.is_quick = is_quick
        self.woken: asyncio.Future[None] | None = None


# ---------------------------------------------------------------- ready


async def connect_all(publishers: Sequence[TopicPublisher]) -> None:
    """Look the topics up, connect to the leaders of all their partitions, and wait until this is done.

    Raises:
        TopicNotFoundError: No nsqlookupd of a partitioned cluster knows a topic.
        ClosedError: The producer was closed.
    """
    with contextlib.ExitStack() as stack:
        for publisher in publishers:
            stack.enter_context(publisher.kept())
        looking = [asyncio.ensure_future(publisher.known_view()) for publisher in publishers]
        try:
            views = await asyncio.gather(*looking)
        finally:
            for task in looking:
                task.cancel()
        publishers[0].check_alive()
        each = zip(publishers, views, strict=True)
        senders = [publisher.sender(partition) for publisher, view in each for partition in _partitions(view)]
        await asyncio.gather(*(sender.connect() for sender in senders))


def _partitions(view: TopicView) -> Collection[int]:
    """Return the partitions to connect to; the nsqds of a plain cluster may have left for good."""
    is_partitioned = view.meta is None or view.meta.is_partitioned
    return range(view.partition_num) if is_partitioned else view.publishable


def unready(publishers: Sequence[TopicPublisher], troubles: Sequence[Trouble]) -> str:
    """Return what :func:`connect_all` still waits for.

    Args:
        publishers: Of the topics that it was called with.
        troubles: What does not work for the producer.
    """
    waits = []
    for publisher in publishers:
        topic, view = publisher.watch.topic, publisher.watch.view
        if view is None or not view.partition_num:
            waits.append(topic)
            continue
        for partition in _partitions(view):
            sender = publisher.senders.get(partition)
            if sender is None or sender.link.connection is None:
                waits.append(view.name_of(partition))
    known = {trouble.name: trouble.reason for trouble in reversed(troubles)}
    reasons = ((name, known.get(name) or known.get("") or "is not connected yet") for name in waits)
    return "; ".join(Trouble(name, reason, 0.0).text for name, reason in reasons)
