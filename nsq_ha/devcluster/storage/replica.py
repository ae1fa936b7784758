"""A topic, its options, and one node's replica of one of its partitions: log, channels and role.

A replica decides whether a publish is stored, refused or waits. The coordinator
sets its role; until then a replica keeps its old role, so a frozen leader still
leads for a moment when it wakes up.

The invariant: a publish is answered ``OK`` only when every in-sync replica has
the record, so an election among them never loses it.

Source: server failures 3, 3.3, 3.4.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from nsq_ha.devcluster.storage.channel import Channel
from nsq_ha.devcluster.storage.log import Cursor, Draft, Log, Record, is_ephemeral

if TYPE_CHECKING:
    from nsq_ha.devcluster.nodes import ClusterNode

NOT_LEADER: Final = b"E_FAILED_ON_NOT_LEADER "
NOT_WRITABLE: Final = b"E_FAILED_ON_NOT_WRITABLE "
EXITING: Final = b"exiting"
DISTANCE: Final = 4
"""The clock flushes a quarter of the partitions at each tick."""
ALL: Final = 30
"""Every 30th tick flushes all partitions, including those that the node does not lead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOptions:
    """The options that a topic was created with.

    Attributes:
        partitions: Number of partitions.
        replicas: Replicas of each partition.
        ordered: Only ordered subscriptions (``orderedmulti``).
        multi_part: Several partitions may share a node.
        extended: Messages may have JSON headers.
        disable_channel_auto_create: Channels must be registered first.
        sync_every: Messages that may wait in the writer's buffer (``syncdisk``); 0 and 1 flush each.
    """

    partitions: int
    replicas: int
    ordered: bool = False
    multi_part: bool = False
    extended: bool = False
    disable_channel_auto_create: bool = False
    sync_every: int = 0


@dataclass(eq=False)
class ClusterTopic:
    """One topic. A topic that is deleted and created again is another object.

    Attributes:
        name: Its name.
        options: The options; ``expand`` and ``update`` change them.
        deleted: The topic is deleted; plans for it are void.
    """

    name: str
    options: TopicOptions
    deleted: bool = False


class TopicPartition:
    """One partition of a topic, by number from 0.

    Attributes:
        channels: Channels registered at the nsqlookupds, for topics that do not create them automatically. A partition
            that is added has none until a channel is registered or deleted, as on the real server.
    """

    def __init__(self, topic: ClusterTopic, number: int) -> None:
        self.channels: frozenset[str] = frozenset()
        self.topic = topic
        self.number = number
        self.key: tuple[str, int] = topic.name, number


class Waiting(NamedTuple):
    """An operation that waits for a follower. Exactly one of the two is called, once."""

    resume: Callable[[], None]
    refuse: Callable[[bytes], None]


def is_flushed(tick: int, partition: int) -> bool:
    """Return whether the clock flushes a partition at this tick.

    nsqd and its coordinator count separately, one behind the other, so each
    partition is flushed in two consecutive ticks of four.
    """
    return (partition + 1 - tick) % DISTANCE in (0, DISTANCE - 1) or tick % ALL == 0


class Flushing:
    """Flush acknowledged messages on the leader of a partition, so that they can be read.

    A topic with ``syncdisk`` 0 or 1 flushes each message at once. On other topics a
    message stays in the writer's buffer until

    * ``syncdisk`` messages arrived since the last tick of the clock,
    * a channel has confirmed everything and waits for more,
    * the reader of a channel reaches its end, or
    * the clock flushes the partition, at most three ticks later.

    A channel reads to *its own* end, and only some of these events move that end;
    messages after it wait for the next one.

    Source: youzan/nsq ``nsqd/topic.go`` ``UpdateCommittedOffset``, ``flushForChannels``, ``flushForChannelMoreData``;
    ``nsqd/nsqd.go`` ``flushAll``; ``consistence/nsqd_coordinator.go`` ``periodFlushCommitLogs``.

    Args:
        log: The log.
        every: How many messages may wait in the writer's buffer (``syncdisk``).
        channels: The live channels of the replica, by name.
    """

    def __init__(self, log: Log, every: int, channels: Mapping[str, Channel]) -> None:
        self._log = log
        self.every = every
        self._channels = channels
        self._last = 0

    def committed(self) -> None:
        """Flush if the messages that were just committed require it."""
        many = self.every <= 1 or self._log.committed - self._last >= self.every
        if (many or any(channel.waits for channel in self._channels.values())) and self._log.flush():
            self._grow()

    def tick(self) -> None:
        """Flush because the clock reached the partition, or its role changed."""
        self._last = self._log.committed
        self._log.flush()
        self._grow()
        for channel in self._channels.values():
            channel.skip_on()

    def refresh(self, channel: Channel) -> None:
        """Flush because the reader of a channel reached its end."""
        if not (channel.skipped or channel.paused) and self._log.flush():
            channel.grow(self._log.flushed)

    def _grow(self) -> None:
        for channel in self._channels.values():
            channel.grow(self._log.flushed)


class Replica:
    """A partition's replica on one node. It starts as an empty follower.

    Attributes:
        partition: The partition.
        node: The node.
        topic: Name of the topic.
        options: Options of the topic.
        log: The records.
        flushing: Decides when the records can be read.
        cursors: Positions of the channels, by name.
        channels: Live channels by name, on a leader only.
        leads: The replica believes that it leads.
        followers: The other in-sync replicas, on a leader.
        stalled: An in-sync follower does not answer, so nothing can be stored.
        gave_up: The wait for a follower ended without an answer; pending records are in doubt.
        refusal: Error frame that answers a publish. None if publishing is possible.
        waiting: Operations that wait for a follower.
        writable: The coordinator lets this leader write.
    """

    def __init__(self, partition: TopicPartition, node: ClusterNode) -> None:
        self.partition = partition
        self.node = node
        self.topic: str = partition.topic.name
        self.options: TopicOptions = partition.topic.options
        self.log: Log = Log(partition.number, extended=self.options.extended)
        self.cursors: dict[str, Cursor] = {}
        self.channels: dict[str, Channel] = {}
        self.flushing: Flushing = Flushing(self.log, self.options.sync_every, self.channels)
        self.leads: bool = False
        self.followers: list[Replica] = []
        self.stalled: bool = False
        self.refusal: bytes | None = NOT_LEADER
        self.writable: bool = False
        self.gave_up: bool = False
        self.waiting: deque[Waiting] = deque()
        self._wait_began: object | None = None  # identifies the current wait
        self._writing = False  # the first waiting publish is already in the log

    # ------------------------------------------------------------ publishing

    def store(self, drafts: Sequence[Draft]) -> list[Record]:
        """Write to this log and to every follower, and commit. Not allowed while :attr:`stalled`."""
        records = self._write(drafts)
        self.commit()
        return records

    def store_later(
        self, drafts: Sequence[Draft], stored: Callable[[list[Record]], None], refuse: Callable[[bytes], None]
    ) -> None:
        """Store while :attr:`stalled`: call ``stored`` once the followers answer, or else ``refuse``.

        Only the first waiting publish is written at once and therefore in doubt.
        The others wait in front of the log; if they are refused, they are not stored.
        """
        if self._writing:
            self.wait(Waiting(lambda: stored(self.store(drafts)), refuse))
            return
        self._writing = True
        records = self._write(drafts)
        self.wait(Waiting(lambda: stored(records), refuse))

    def _write(self, drafts: Sequence[Draft]) -> list[Record]:
        now = time.time_ns()
        log = self.log
        before = len(log.records)
        records = [log.append(draft, now, number) for number, draft in enumerate(drafts)]
        for follower in self.followers:
            # A follower that is back but has not caught up yet must not get a log with a gap.
            if follower.node.reachable and len(follower.log.records) == before:
                for record in records:
                    follower.log.receive(record)
        return records

    def commit(self) -> None:
        """Commit all pending records, also on the followers."""
        count = len(self.log.records)
        self.log.committed = count
        for follower in self.followers:
            follower.log.committed = count
        self.flushing.committed()

    def wait(self, waiting: Waiting) -> None:
        """Queue an operation until the followers answer or the wait ends."""
        if not self.waiting:
            began = self._wait_began = object()
            host = self.node.host
            host.after(host.timing.replica_wait, lambda: self.give_up_waiting() if self._wait_began is began else None)
        self.waiting.append(waiting)

    def dispatch(self, now: float) -> None:
        """Let the channels deliver."""
        for channel in self.channels.values():
            channel.dispatch(now)

    # ------------------------------------------------------------ role

    def lead(self, followers: list[Replica]) -> None:
        """Become the leader, which cannot write yet; the followers copy this log."""
        self.drop_consumers()
        self.leads = True
        self.log.commit()
        for cursor in self.cursors.values():
            cursor.confirmed = min(cursor.confirmed, self.log.committed)
        for name, cursor in self.cursors.items():
            self._open(name, cursor)
        self.flushing.tick()
        self.set_followers(followers)
        self.set_writable(False)
        self.sync_registered()

    def set_followers(self, followers: list[Replica]) -> None:
        """Set the in-sync replicas; the reachable ones become equal to this one."""
        self.followers = followers
        for follower in followers:
            if follower.node.reachable:
                follower.copy_from(self)
        for name, channel in self.channels.items():
            self._connect(name, channel)
        self.stalled = True  # until every follower was checked
        self.check_followers()

    def copy_from(self, leader: Replica) -> None:
        """Become equal to the leader, as a follower."""
        self.log.follow(leader.log)
        replicated = {
            name: cursor for name, cursor in leader.cursors.items() if cursor.shared and not is_ephemeral(name)
        }
        for name, theirs in replicated.items():
            self.cursor(name).copy_from(theirs)
        for name in self.cursors.keys() - replicated.keys():
            del self.cursors[name]

    def check_followers(self) -> None:
        """Check whether every in-sync follower answers, after a node started or failed."""
        if not self.leads:
            return
        was_stalled = self.stalled
        self.stalled = not all(follower.node.reachable for follower in self.followers)
        if self.stalled:
            return
        if was_stalled:
            for follower in self.followers:
                follower.copy_from(self)
        self.commit()
        self._resume()
        self.dispatch(self.node.host.now())

    def give_up_waiting(self) -> None:
        """End the wait for a follower: refuse waiting operations, and all writes from now on."""
        if not (self.leads and self.stalled):
            return
        self.gave_up = True
        self.set_writable(False)
        # With two replicas there is no other follower to ask; then the real leader steps down.
        frame = NOT_LEADER if self.options.replicas == 2 else NOT_WRITABLE
        self._refuse_waiting(frame)

    def settle_pending(self, *, keep: bool) -> None:
        """Decide whether the pending part survives, once its publishers were refused."""
        if self.gave_up and not keep:
            self.log.cut_pending()
        self.gave_up = False

    def step_down(self) -> None:
        """Stop leading: disconnect consumers without an error, refuse publishers."""
        self.leads = self.stalled = self.gave_up = False
        self.followers = []
        self.set_writable(False)
        self._refuse_waiting(NOT_LEADER)
        self.drop_consumers()

    def forget(self) -> None:
        """Lose all that was only in memory, because the process died: role, channels, waiting operations."""
        self.leads = self.stalled = self.gave_up = False
        self.followers = []
        self.channels.clear()
        self._writing, self._wait_began = False, None
        self.waiting.clear()
        self.log.skip_id()
        for name in [name for name in self.cursors if is_ephemeral(name)]:
            del self.cursors[name]
        self.set_writable(False)

    def set_writable(self, writable: bool) -> None:
        """Allow or stop writing while leading."""
        self.writable = writable
        self.update_refusal()

    def update_refusal(self, *, waking: bool = False) -> None:
        """Recompute how a publish is refused."""
        if waking:
            self.refusal = NOT_WRITABLE
        elif not self.leads or self.node.refuses_writes:
            self.refusal = NOT_LEADER
        elif not self.writable:
            self.refusal = NOT_WRITABLE
        else:
            self.refusal = None

    def _resume(self) -> None:
        self._writing, self._wait_began = False, None
        while self.waiting and not self.stalled:
            self.waiting.popleft().resume()

    def _refuse_waiting(self, frame: bytes) -> None:
        self._writing, self._wait_began = False, None
        waiting, self.waiting = self.waiting, deque()
        for operation in waiting:
            operation.refuse(frame)

    def drop_consumers(self) -> None:
        """Disconnect all consumers without an error, and close the channels."""
        channels = tuple(self.channels.values())
        self.channels.clear()
        for channel in channels:
            channel.drop_consumers()

    def update_options(self, options: TopicOptions) -> None:
        """Take new options of the topic."""
        self.options = options
        self.log.extended = options.extended
        self.flushing.every = options.sync_every
        self.sync_registered()

    # ------------------------------------------------------------ channels

    def cursor(self, name: str) -> Cursor:
        """Return the position of a channel; a new channel starts at the end of the readable records."""
        cursor = self.cursors.get(name)
        if cursor is None:
            cursor = self.cursors[name] = Cursor(self.log.flushed, shared=not self.options.ordered)
        return cursor

    def channel(self, name: str) -> Channel:
        """Return the live channel; create a new one."""
        channel = self.channels.get(name)
        if channel is None:
            channel = self._open(name, self.cursor(name))
            self._connect(name, channel)
            self.flushing.refresh(channel)  # its reader starts at the end
        return channel

    def _open(self, name: str, cursor: Cursor) -> Channel:
        channel = self.channels[name] = Channel(name, self.log, cursor, self.flushing.refresh, self._share)
        return channel

    def _share(self, channel: Channel) -> None:
        """Make the channel known to the followers."""
        channel.cursor.shared = True
        self._connect(channel.name, channel)

    def remove_channel(self, name: str) -> None:
        """Delete a channel and disconnect its consumers."""
        channel = self.channels.pop(name, None)
        self.cursors.pop(name, None)
        for follower in self.followers:
            follower.cursors.pop(name, None)
        if channel is not None:
            channel.drop_consumers()

    def sync_registered(self) -> None:
        """Have the channels that are registered at the nsqlookupds, and no others, if the topic demands it.

        Source: youzan/nsq ``consistence/nsqd_coordinator.go`` (updateLocalTopic).
        """
        if not (self.leads and self.options.disable_channel_auto_create):
            return
        registered = self.partition.channels
        for name in self.cursors.keys() - registered:
            if not is_ephemeral(name):
                self.remove_channel(name)
        for name in sorted(registered):
            self.channel(name)

    def leave(self, channel: Channel) -> None:
        """Delete an ephemeral ``channel`` once its last consumer has left."""
        if channel.ephemeral and not channel.consumers and self.channels.get(channel.name) is channel:
            self.remove_channel(channel.name)

    def _connect(self, name: str, channel: Channel) -> None:
        """Replicate a channel's position to the followers, unless the channel is ephemeral or not shared yet."""
        channel.peers = []
        if channel.ephemeral or not channel.cursor.shared:
            return
        for follower in self.followers:
            cursor = follower.cursors.get(name)
            if cursor is None:
                cursor = follower.cursors[name] = Cursor(0)
            cursor.copy_from(channel.cursor)
            channel.peers.append(cursor)

    def clean(self, index: int) -> None:
        """Forget the records before ``index``; channels positioned there continue after them."""
        self.log.clean(index)
        for cursor in self.cursors.values():
            if cursor.confirmed < self.log.start:
                cursor.reset(self.log.start)

    def clean_finished(self, keep: int) -> None:
        """Forget what all channels have confirmed, but for the last ``keep`` bytes of it; on the followers too.

        Without a channel nothing is finished.

        Source: youzan/nsq ``nsqd/topic.go`` ``TryCleanOldData``.
        """
        if not self.cursors:
            return
        oldest = self.log.offset_at(min(cursor.confirmed for cursor in self.cursors.values()))
        index = self.log.index_at_offset(oldest - keep)
        if index > self.log.start:
            for replica in (self, *self.followers):
                replica.clean(index)

    def replicate_channels(self) -> None:
        """Send the followers the whole positions of the channels."""
        for channel in self.channels.values():
            channel.replicate()

    def refresh_scan(self) -> None:
        """Include all current channels in the scans for timeouts."""
        for channel in self.channels.values():
            channel.scanned = True

    def tick(self, now: float) -> None:
        """Scan the channels for timeouts and delays that ended."""
        for channel in self.channels.values():
            if channel.scanned:
                channel.tick(now)
