"""One topic's publishing: which partition a message goes to, and one sender for each partition."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from nsq_ha.errors import (
    ConfigError,
    LookupUnavailableError,
    NoLeaderError,
    NsqError,
    ResponseTimeoutError,
    TopicNotFoundError,
)
from nsq_ha.policy import routing, sharding
from nsq_ha.policy.forgetting import is_forgotten
from nsq_ha.producer.growth import Growth
from nsq_ha.producer.sender import Sender
from nsq_ha.producer.turn import Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from nsq_ha.config import ProducerConfig
    from nsq_ha.discovery.watcher import TopicWatch
    from nsq_ha.message import OutgoingMessage
    from nsq_ha.policy.sharding import Key
    from nsq_ha.policy.topology import TopicView
    from nsq_ha.producer.outgoing import Outgoing
    from nsq_ha.producer.under_way import UnderWay

UNKNOWN_TOPIC_PATIENCE: Final = 3.0
"""Seconds for which a topic that was never seen may be unknown to all nsqlookupds before a publish
fails: a second nsqlookupd learns of a new topic up to 3 s late."""

NO_KEY: Final = object()
"""The one key of all messages that name a partition and no key."""


class TopicPublisher:
    """Everything that publishes to one topic shares one of these."""

    def __init__(
        self,
        watch: TopicWatch,
        config: ProducerConfig,
        *,
        admit: Callable[[bool], bool],
        start: Callable[[Sender], None],
        under_way: UnderWay,
    ) -> None:
        """Create it without senders.

        Args:
            watch: The topic's look-ups.
            config: The producer's options.
            admit: See :class:`~nsq_ha.producer.sender.Sender`.
            start: Runs a new sender.
            under_way: The producer's pending publishes.
        """
        self.watch = watch
        self.senders: dict[int, Sender] = {}
        self.turns = Turns()
        self.queued = 0
        self.used_at = under_way.loop.time()
        self._config = config
        self._admit = admit
        self._start = start
        self._under_way = under_way
        self._hash = sharding.hasher(config.sharding)
        self._turn = random.randrange(1024)  # noqa: S311 - spreads the first messages of many producers
        self._was_known = False
        self._growth = Growth(watch.topic, config, self._with_keys)
        self._routes_of: TopicView | None = None
        self._routes_used = 0
        self._calm_view: TopicView | None = None
        self._takes_keyless = self._takes_keys = False
        self._routes: tuple[int, ...] = ()
        watch.add_listener(self._view_changed)
        if watch.view is not None:
            self._growth.view_changed(watch.view)

    async def view(self) -> TopicView:
        """Return what is known of the topic, waiting for the first look-up that tells its partitions.

        While keys change their partitions it waits as ``partition_change`` says.

        The caller puts its time limit around it. Cancelled, it leaves nothing.

        Raises:
            TopicNotFoundError: No nsqlookupd knows the topic, and none did before.
        """
        if self.is_usable(view := self.watch.view):
            self._was_known = True
            return view
        loop = asyncio.get_running_loop()
        deadline = loop.time() + UNKNOWN_TOPIC_PATIENCE
        while True:
            try:
                async with asyncio.timeout_at(None if self._was_known else deadline):
                    view = await self.watch.wait_until(_is_usable)
                self._was_known = True
                break
            except TimeoutError:
                if isinstance(self.watch.error, TopicNotFoundError) or _is_absent(self.watch.view):
                    raise self._unknown() from None
                deadline = loop.time() + UNKNOWN_TOPIC_PATIENCE
        await self._growth.settled()
        return view

    def is_usable(self, view: TopicView | None) -> TypeGuard[TopicView]:
        """Tell whether the view says how many partitions there are, and nothing has to be waited for."""
        return view is not None and _is_usable(view) and self._growth.is_settled()

    def is_forgotten(self) -> bool:
        """Return whether to forget the topic because it is unused."""
        senders = self.senders.values()
        is_changing = not (self._growth.is_settled() and self._growth.is_calm)
        is_needed = is_changing or bool(self.queued) or any(sender.is_busy for sender in senders)
        used_at = max(self.used_at, *(sender.last_used for sender in senders), 0.0)
        is_known = self.watch.view is not None and _is_usable(self.watch.view)
        return is_forgotten(
            self._under_way.loop.time() - used_at,
            is_known=is_known,
            is_needed=is_needed,
            idle_timeout=self._config.idle_timeout,
        )

    @property
    def trouble(self) -> NsqError | None:
        """The best reason for a publish that could not even choose a partition in time. None when it could."""
        if self._growth.is_draining:
            return ResponseTimeoutError("keys change their partitions, and what is under way was not answered in time")
        view = self.watch.view
        if view is not None and _is_usable(view):
            return None
        if _is_absent(view):
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
        return TopicNotFoundError(
            f"no nsqlookupd knows topic {self.watch.topic!r}: create it first (nsq-ha topic create)"
        )

    def partition_for(self, message: OutgoingMessage, view: TopicView) -> tuple[int, bool]:
        """Choose the partition of a message.

        Returns:
            The partition, and whether another one would do as well.

        Raises:
            ConfigError: The partition does not exist, the key does not suit the
                rule, or an ordered topic is given neither.
            PublishError: The number of partitions changed, and keys are refused since.
        """
        meta = view.meta
        if meta is None:
            raise LookupUnavailableError(f"topic {self.watch.topic!r} has no meta")
        if not meta.is_partitioned and (message.partition is not None or message.key is not None):
            raise ConfigError("nsqds that are named by nsqd= have no partitions: keys and partition= need lookupd=")
        if message.partition is not None:
            if not 0 <= message.partition < meta.partition_num:
                raise ConfigError(
                    f"partition {message.partition} of {self.watch.topic!r} does not exist: "
                    f"it has {meta.partition_num} (0..{meta.partition_num - 1})"
                )
            return message.partition, False
        if message.key is not None:
            number: object = self._hash(message.key)
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise ConfigError(f"sharding function must return an int of 0 or more, not {number!r}")
            self._growth.check_key()
            return number % (self._growth.used or meta.partition_num), False
        if meta.ordered:
            raise ConfigError(f"topic {self.watch.topic!r} is ordered: give key= or partition=")
        return self._any_partition(view, meta.partition_num), True

    def _any_partition(self, view: TopicView, partition_num: int, avoid: int | None = None) -> int:
        used = self._growth.used or partition_num
        self._look_up_routes(view, used)
        candidates: Sequence[int] = self._routes
        if avoid is not None or self._any_in_trouble():
            candidates = [p for p in self._routes if p != avoid and self._is_healthy(p)]
            if avoid is None and candidates and (probed := self._probed()) is not None:
                return probed
        if not candidates:
            candidates = [p for p in self._routes if p != avoid] or range(used)
        self._turn += 1
        if self._config.strategy == "least_loaded":
            return routing.least_loaded(candidates, self._turn, self._load)
        return routing.round_robin(candidates, self._turn)

    def quick_sender(self, key: Key | None) -> Sender | None:
        """Choose where a message goes that names no partition, while nothing is out of the ordinary.

        That is nearly always so, and takes a fraction of what :meth:`partition_for` does, which comes to the same.

        Returns:
            The sender. None when the case is not so plain: then ask :meth:`partition_for`.
        """
        if self.queued or (self.watch.view is not self._calm_view and not self._is_calm()):
            return None
        if key is None:
            if not self._takes_keyless:
                return None
            self._turn += 1
            partition = self._routes[self._turn % len(self._routes)]
            sender = self.senders.get(partition) or self.sender(partition)
            return sender if sender.trouble is None else None
        if not self._takes_keys:
            return None
        partition = self._hash(key) % self._routes_used
        return self.senders.get(partition) or self.sender(partition)

    def _is_calm(self) -> bool:
        view = self.watch.view
        self._calm_view = None
        if not self.is_usable(view) or view.meta is None or not self._growth.is_calm:
            return False
        self._look_up_routes(view, self._growth.used)
        self._takes_keyless = not view.meta.ordered and self._config.strategy == "round_robin" and bool(self._routes)
        # What a foreign function returns has to be looked at.
        self._takes_keys = view.meta.is_partitioned and not callable(self._config.sharding) and self._routes_used > 0
        self._calm_view = view
        return True

    def _look_up_routes(self, view: TopicView, used: int) -> None:
        if self._routes_of is not view or self._routes_used != used:
            self._routes_of, self._routes_used = view, used
            self._routes = tuple(sorted(p for p in view.publishable if p < used))

    def _any_in_trouble(self) -> bool:
        for sender in self.senders.values():  # noqa: SIM110 - a third of any()'s time, once a publish
            if sender.trouble is not None:
                return True
        return False

    def _probed(self) -> int | None:
        """Choose a partition in trouble that is to be tried with a single message."""
        tried = (p for p in self._routes if not self._is_healthy(p) and self.senders[p].may_probe())
        return next(tried, None)

    def _is_healthy(self, partition: int) -> bool:
        sender = self.senders.get(partition)
        return sender is None or sender.trouble is None

    def _load(self, partition: int) -> int:
        sender = self.senders.get(partition)
        return sender.load if sender is not None else 0

    def submit(self, outgoing: Outgoing, partition: int, keys: Sequence[Hashable]) -> None:
        """Queue a command for ``partition``; it must not be reordered with others of ``keys``."""
        sender = self.senders.get(partition) or self.sender(partition)
        if not keys and not sender.line.takes(outgoing.size):
            sender = self._with_room(outgoing.size) or sender
        outgoing.submit(sender, keys)

    def _with_room(self, size: int) -> Sender | None:
        """Return a healthy partition with space for a publish without key, or None."""
        healthy = (self.sender(partition) for partition in self._routes if self._is_healthy(partition))
        return next((sender for sender in healthy if sender.line.takes(size)), None)

    def sender(self, partition: int) -> Sender:
        """Return the partition's sender, started when it is new."""
        sender = self.senders.get(partition)
        if sender is None:
            sender = Sender(
                self.watch,
                partition,
                self._config,
                admit=self._admit,
                on_trouble=self._move_elsewhere,
                under_way=self._under_way,
            )
            self.senders[partition] = sender
            self._start(sender)
        return sender

    def _move_elsewhere(self, sender: Sender) -> None:
        """Send what is bound to no partition by a healthy one."""
        view = self.watch.view
        if view is None or view.meta is None:
            return
        if not any(p != sender.partition and self._is_healthy(p) for p in view.publishable):
            return
        for entry in sender.take_movable():
            target = self._other(sender, view, view.meta.partition_num)
            sender.line.held -= entry.item.size
            target.line.held += entry.item.size
            entry.item.sender = target
            target.submit(entry)
        for outgoing in sender.line.withdraw():
            outgoing.submit(self._other(sender, view, view.meta.partition_num), ())
        self._under_way.free(0)  # waiting publishes have more space than before

    def _other(self, sender: Sender, view: TopicView, partition_num: int) -> Sender:
        return self.sender(self._any_partition(view, partition_num, avoid=sender.partition))

    def _with_keys(self) -> list[asyncio.Future[Any]]:
        senders = self.senders.values()
        pending = (entry for sender in senders for entry in (*sender.lane.pending(), *sender.line.waiting))
        return [entry.item.future for entry in pending if entry.keys and not entry.item.future.done()]

    def _view_changed(self, view: TopicView) -> None:
        self._growth.view_changed(view)
        for sender in self.senders.values():
            sender.view_changed(view)


def _is_usable(view: TopicView) -> bool:
    return view.meta is not None and view.meta.partition_num > 0


def _is_absent(view: TopicView | None) -> bool:
    return view is not None and not view.exists
