"""One node's replica of one partition: its log, its channels, and what it believes of its role.

Owns when a publish is stored, refused or kept waiting. The coordinator tells it
its role; until it is told, a replica goes on believing what it knew, which is
how a frozen leader wakes up and refuses.

The invariant: a publish is answered ``OK`` only when every in-sync replica has
the record, so an election among them never loses it.

Source: failures reference 3.0, 3.3, 3.4.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from nsq_ha.devcluster.storage.channel import Channel, is_ephemeral
from nsq_ha.devcluster.storage.cursor import Cursor
from nsq_ha.devcluster.storage.flushing import Flushing
from nsq_ha.devcluster.storage.log import Log

if TYPE_CHECKING:
    from nsq_ha.devcluster.control.placement import Partition
    from nsq_ha.devcluster.nsqd.node import Nsqd
    from nsq_ha.devcluster.storage.record import Draft, Record

NOT_LEADER: Final = b"E_FAILED_ON_NOT_LEADER "
NOT_WRITABLE: Final = b"E_FAILED_ON_NOT_WRITABLE "
EXITING: Final = b"exiting"


class Waiting(NamedTuple):
    """An operation that waits for a follower: exactly one of the two is called, once."""

    resume: Callable[[], None]
    refuse: Callable[[bytes], None]


class Replica:
    """A partition's replica on one node.

    Attributes:
        partition: What the cluster agreed on.
        node: Where it is.
        log: Its records.
        flushing: Decides when records can be read.
        cursors: Positions of the channels, by name.
        channels: Live channels, on a leader only.
        leads: It believes to be the leader.
        followers: The other in-sync replicas, on a leader.
        stalled: An in-sync follower does not answer, so nothing can be stored.
        gave_up: The wait for a follower was given up; what was pending then is in doubt.
        refusal: Error frame for a publish that is not possible. None when it is.
    """

    def __init__(self, partition: Partition, node: Nsqd) -> None:
        """Begin as an empty follower."""
        self.partition = partition
        self.node = node
        self.topic = partition.topic.name
        self.options = partition.topic.options
        self.log = Log(partition.number, extended=self.options.extended)
        self.cursors: dict[str, Cursor] = {}
        self.channels: dict[str, Channel] = {}
        self.flushing = Flushing(self)
        self.leads = False
        self.followers: list[Replica] = []
        self.stalled = False
        self.refusal: bytes | None = NOT_LEADER
        self._writable = False
        self.gave_up = False
        self._waiting: deque[Waiting] = deque()
        self._wait_began: object | None = None  # which wait a planned end belongs to
        self._writing = False  # the first of those that wait is in the log already

    # ------------------------------------------------------------ publishing

    def store(self, drafts: Sequence[Draft]) -> list[Record]:
        """Write to this log and to every follower, and commit; not while :attr:`stalled`."""
        records = self._write(drafts)
        self.commit()
        return records

    def store_later(
        self, drafts: Sequence[Draft], stored: Callable[[list[Record]], None], refuse: Callable[[bytes], None]
    ) -> None:
        """Store while :attr:`stalled`: once the followers answer, ``stored`` is called, else ``refuse``.

        Only the first of those that wait is written already, and therefore in
        doubt; the others wait in front of the log, and a refusal means that they
        are not stored.
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
        records = [log.append(draft, now, place) for place, draft in enumerate(drafts)]
        for follower in self.followers:
            # One that is back but has not caught up yet must not get a log with a gap.
            if follower.node.reachable and len(follower.log.records) == before:
                for record in records:
                    follower.log.receive(record)
        return records

    def commit(self) -> None:
        """Commit all that is pending here, on the followers too."""
        count = len(self.log.records)
        self.log.committed = count
        for follower in self.followers:
            follower.log.committed = count
        self.flushing.committed()

    def wait(self, waiting: Waiting) -> None:
        """Queue an operation until the followers answer or the wait is given up."""
        if not self._waiting:
            began = self._wait_began = object()
            coordinator = self.node.coordinator
            coordinator.after(
                coordinator.timing.replica_wait,
                lambda: self.give_up_waiting() if self._wait_began is began else None,
            )
        self._waiting.append(waiting)

    def deliver(self, now: float) -> None:
        """Let the channels deliver what was committed."""
        for channel in self.channels.values():
            channel.dispatch(now)

    # ------------------------------------------------------------ role

    def lead(self, followers: list[Replica], *, writable: bool) -> None:
        """Become the leader: what is in this log counts, and the followers take it over."""
        self.drop_consumers()
        self.leads = True
        self.log.commit()
        for cursor in self.cursors.values():
            cursor.confirmed = min(cursor.confirmed, self.log.committed)
        self.channels = {name: self._open(name, cursor) for name, cursor in self.cursors.items()}
        self.flushing.turn()
        self.set_followers(followers)
        self.set_writable(writable)

    def set_followers(self, followers: list[Replica]) -> None:
        """Change the in-sync replicas; those that are there become equal to this one."""
        self.followers = followers
        for follower in followers:
            if follower.node.reachable:
                follower.copy_from(self)
        for name, channel in self.channels.items():
            self._connect(name, channel)
        self.stalled = True  # until every follower was looked at
        self.check_followers()

    def copy_from(self, leader: Replica) -> None:
        """Become equal to the leader, as a follower."""
        self.log.follow(leader.log)
        replicated = {name: cursor for name, cursor in leader.cursors.items() if not is_ephemeral(name)}
        for name, theirs in replicated.items():
            self.cursor(name).copy_from(theirs)
        for name in self.cursors.keys() - replicated.keys():
            del self.cursors[name]

    def check_followers(self) -> None:
        """Look again whether every in-sync follower answers, after a node came or went."""
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
        self.deliver(self.node.now())

    def give_up_waiting(self) -> None:
        """End the wait for a follower: refuse what waits, and writes from now on."""
        if not (self.leads and self.stalled):
            return
        self.gave_up = True
        self.set_writable(False)
        # With two replicas nobody else can be asked; the real leader then steps back.
        frame = NOT_LEADER if self.options.replicas == 2 else NOT_WRITABLE
        self._refuse_waiting(frame)

    def settle_pending(self, *, keep: bool) -> None:
        """Decide about the pending part once its publishers were refused: it may survive or not."""
        if self.gave_up and not keep:
            self.log.cut_pending()
        self.gave_up = False

    def step_down(self) -> None:
        """Stop leading: consumers are cut without a word, publishers get refusals."""
        self.leads = self.stalled = self.gave_up = False
        self.followers = []
        self.set_writable(False)
        self._refuse_waiting(NOT_LEADER)
        self.drop_consumers()

    def forget(self) -> None:
        """Lose what was only in memory, as the process died: role, channels, what waited."""
        self.leads = self.stalled = self.gave_up = False
        self.followers = []
        self.channels = {}
        self._writing, self._wait_began = False, None
        self._waiting.clear()
        for name in [name for name in self.cursors if is_ephemeral(name)]:
            del self.cursors[name]
        self.set_writable(False)

    def set_writable(self, writable: bool) -> None:
        """Allow or stop writing while leading."""
        self._writable = writable
        self.update_refusal()

    def update_refusal(self, *, waking: bool = False) -> None:
        """Work out again what a publish is answered."""
        if waking:
            self.refusal = NOT_WRITABLE
        elif not self.leads or self.node.refuses_writes:
            self.refusal = NOT_LEADER
        elif not self._writable:
            self.refusal = NOT_WRITABLE
        else:
            self.refusal = None

    @property
    def writable(self) -> bool:
        """Whether the coordinator lets this leader write."""
        return self._writable

    def _resume(self) -> None:
        self._writing, self._wait_began = False, None
        while self._waiting and not self.stalled:
            self._waiting.popleft().resume()

    def _refuse_waiting(self, frame: bytes) -> None:
        self._writing, self._wait_began = False, None
        waiting, self._waiting = self._waiting, deque()
        for operation in waiting:
            operation.refuse(frame)

    def drop_consumers(self) -> None:
        """Cut all consumers without a word."""
        channels, self.channels = self.channels, {}
        for channel in channels.values():
            for consumer in tuple(channel.consumers):
                consumer.drop()

    # ------------------------------------------------------------ channels

    def cursor(self, name: str) -> Cursor:
        """Return the position of a channel; a new one starts at the end of the readable part."""
        cursor = self.cursors.get(name)
        if cursor is None:
            cursor = self.cursors[name] = Cursor(self.log.flushed)
        return cursor

    def channel(self, name: str) -> Channel:
        """The live channel, made when it is new."""
        channel = self.channels.get(name)
        if channel is None:
            channel = self.channels[name] = self._open(name, self.cursor(name))
            self._connect(name, channel)
            self.flushing.refresh(channel)  # its reader starts at its end
        return channel

    def _open(self, name: str, cursor: Cursor) -> Channel:
        return Channel(name, self.log, cursor, self.flushing.refresh)

    def remove_channel(self, name: str) -> bool:
        """Delete a channel; its consumers are cut. False when there is none."""
        channel = self.channels.pop(name, None)
        self.cursors.pop(name, None)
        for follower in self.followers:
            follower.cursors.pop(name, None)
        if channel is None:
            return False
        for consumer in tuple(channel.consumers):
            consumer.drop()
        return True

    def leave(self, channel: Channel) -> None:
        """A consumer left ``channel``: an ephemeral one goes with its last."""
        if channel.ephemeral and not channel.consumers and self.channels.get(channel.name) is channel:
            self.remove_channel(channel.name)

    def _connect(self, name: str, channel: Channel) -> None:
        """Let a channel's positions go to the followers; ephemeral ones are not replicated."""
        if channel.ephemeral:
            return
        channel.peers = []
        for follower in self.followers:
            cursor = follower.cursors.get(name)
            if cursor is None:
                cursor = follower.cursors[name] = Cursor(0)
            cursor.copy_from(channel.cursor)
            channel.peers.append(cursor)

    def clean(self, index: int) -> None:
        """Forget the records before ``index``; channels that stood there go on behind them."""
        self.log.clean(index)
        for cursor in self.cursors.values():
            if cursor.confirmed < self.log.start:
                cursor.reset(self.log.start)

    def refresh_scan(self) -> None:
        """Include the present channels in the checks of timeouts."""
        for channel in self.channels.values():
            channel.scanned = True

    def tick(self, now: float) -> None:
        """Let time pass for the channels."""
        for channel in self.channels.values():
            if channel.scanned:
                channel.tick(now)
