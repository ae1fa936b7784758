"""What the producer's machine consists of, and who owns what.

A topic has a lane for each partition. A lane has the requests that are not written, and the keys. A connection has the
requests that are written, in the order of their answers. An nsqd has one health, whatever leads to it. A request knows
its lane, and the connection over which it was written last; in the list of any other connection it is *orphaned*: its
answer is counted there, and ends it if it is still open, but a refusal or a loss there says nothing about it.

Source: server failures 1.1, 4.2.
"""

from __future__ import annotations

import enum
import math
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from nsq_ha.errors import NsqError
from nsq_ha.message import Receipt
from nsq_ha.policy.connect_limit import GAP, ConnectLimit
from nsq_ha.policy.growth import PartitionCount
from nsq_ha.policy.sharding import Key
from nsq_ha.policy.timing import Outage
from nsq_ha.policy.tls_renewal import Lifetime
from nsq_ha.policy.topology import Node, TopicView

FIRST_PROBE: Final = GAP
"""Seconds from a failure until a partition or an nsqd that others are preferred to is tried again, or looked up."""

LONGEST_PROBE: Final = 30.0
"""Most seconds between two attempts to connect to an nsqd while others work."""


class PublishCounts(msgspec.Struct):
    """Counts that only grow; the fields of :class:`~nsq_ha.stats.ProducerPartition` with the same names."""

    published: int = 0
    failed: int = 0
    uncertain: int = 0
    timed_out: int = 0
    retries: int = 0
    reconnects: int = 0

    def add(self, other: PublishCounts) -> None:
        """Add all counts of ``other``."""
        for name, count in msgspec.structs.asdict(other).items():
            setattr(self, name, getattr(self, name) + count)


class PublishRequest(msgspec.Struct, eq=False, kw_only=True):
    """A publish: one command of one or of many messages. ``producer.requests`` encodes it.

    Attributes:
        topic: The topic.
        ticket: The owner's; the machine does not look at it.
        size: Bytes of the bodies.
        limit: Seconds for the whole call.
        body: The body of a PUB. Empty for an MPUB.
        key: The caller's key. None for no key.
        partition: The caller's partition, or that of a batch's part. None if the key or the producer chooses.
        keys: Keys whose publishes must keep their order, one for all of a ``partition``; none if any partition will do.
        count: Number of messages.
        is_plain: Whether it has neither trace ids nor headers; the answer then is ``OK``.
        is_part: Whether it is a command of a batch that has been checked, and goes before what waits.
        needs_check: Whether the topic may not accept it.
        closes_when_refused: Whether the connection is unusable after a refusal.
        began_ns: When the call began, in nanoseconds since the epoch; 0 if it is not traced.
        deadline: When its time limit ends.
        lane: Its partition. None before one is chosen.
        conn: The connection over which it was written last. None if it is not unanswered there.
        blocked: Number of its keys that an earlier publish holds.
        attempts: How often it was written.
        sent_at: When it was written last.
        maybe_stored: Whether one of its attempts is in doubt.
        is_over: Whether it has ended for its caller.
        receipts: One for each message, once a first nsqd has acknowledged it.
        error: Why it failed.
    """

    topic: str
    size: int
    limit: float
    ticket: Any = None
    body: bytes = b""
    key: Key | None = None
    partition: int | None = None
    keys: tuple[Hashable, ...] = ()
    count: int = 1
    is_plain: bool = True
    is_part: bool = False
    needs_check: bool = False
    closes_when_refused: bool = False
    began_ns: int = 0
    deadline: float = 0.0
    lane: Lane | None = None
    conn: ProducerConn | None = None
    blocked: int = 0
    attempts: int = 0
    sent_at: float = 0.0
    maybe_stored: bool = False
    is_over: bool = False
    receipts: list[Receipt] | None = None
    error: Exception | None = None

    def suit(self, view: TopicView, largest: int) -> None:
        """Take the form that the topic accepts; what is part of a batch was checked before.

        Raises:
            ConfigError: It accepts none.
        """

    def encode(self, partition: int | None) -> list[bytes]:
        """Return the command for ``partition``, as parts to send one after another.

        Args:
            partition: None omits the number, for servers without partitions.
        """
        raise NotImplementedError

    def decode(self, answer: bytes, partition: int, nsqd: str) -> list[Receipt]:
        """Return the receipts for nsqd's answer.

        Raises:
            RemoteProtocolError: The answer does not fit: answers and publishes are misaligned.
        """
        raise NotImplementedError


class Gate(PublishRequest, eq=False, kw_only=True):
    """Keeps a large batch's place in a topic; it ends without receipts when the batch may be queued, part by part."""

    needs_check: bool = True


class ConnectionStep(enum.Enum):
    """How far a connection is."""

    OPENING = enum.auto()
    OPEN = enum.auto()
    CLOSED = enum.auto()


@dataclass(slots=True, eq=False)
class NsqdHealth:
    """One nsqd, and its health.

    Attributes:
        node: As nsqlookupd names it.
        shared: The connection for all lanes that have none of their own.
        unshared: Number of connections that lanes have of their own.
        failures: Failures in a row since nsqd accepted a command.
        retry_at: When to want a connection again.
        limit: How often it may be connected to, whatever wants a connection.
        probe_at: When to try it again though others work.
        ask_at: When to ask again over another connection whether it answers.
        is_suspect: Whether others are preferred to it: it could not be connected to, or answers no publish.
    """

    node: Node
    shared: ProducerConn | None = None
    unshared: int = 0
    failures: int = 0
    retry_at: float = -math.inf
    probe_at: float = -math.inf
    ask_at: float = -math.inf
    is_suspect: bool = False
    limit: ConnectLimit = field(default_factory=ConnectLimit)

    def suspect(self, now: float) -> None:
        """Prefer others for now."""
        if not self.is_suspect:
            self.is_suspect = True
            self.probed(now)

    def probed(self, now: float) -> None:
        """Plan the next try. Any nsqd of a plain cluster takes what this one does not, so it may wait for longer."""
        longest = LONGEST_PROBE if self.node.is_plain else FIRST_PROBE
        self.probe_at = now + min(FIRST_PROBE * 2.0 ** max(min(self.failures, 30) - 1, 0), longest)


@dataclass(slots=True, eq=False)
class ProducerConn:
    """One connection, from the decision to open it to its end.

    Attributes:
        nsqd: Where it leads.
        node: The same, as nsqlookupd names it now.
        is_shared: Whether it is for all lanes that have none of their own.
        step: How far it is.
        handle: The owner's.
        lanes: The lanes that use it, or wait for it.
        leaving: The lanes that have left it, and until when its answers to them are waited for.
        sent: What was written, in the order of the answers.
        orphans: Those of them that were written again since, or stored elsewhere, with the lanes that they had.
        since: Since when it is silent, while something is unanswered; or since it is being opened, or was found slow.
        last_used: When it was written to last.
        is_doubted: Whether it has been silent for so long that nothing more is written.
        is_full: Whether the socket has no space.
        is_draining: Whether it only gets the rest of its answers.
        is_read: Whether nsqd reads what follows the last answer.
        cut: The request that was not written to its end. None if all were.
        starved: The lanes that would write if they could.
        lifetime: How long nsqd can write to it. None for no limit.
        successor: The connection that is to replace it.
        replaces: The connection that it is to replace.
        renew_at: When to try again to replace it.
        asks: The silent connection because of which it asks whether nsqd answers. None for all others.
        grace_until: When it is closed, unless an answer comes.
    """

    nsqd: NsqdHealth
    node: Node
    since: float
    is_shared: bool = False
    asks: ProducerConn | None = None
    replaces: ProducerConn | None = None
    step: ConnectionStep = ConnectionStep.OPENING
    handle: Any = None
    lanes: dict[Lane, None] = field(default_factory=dict)
    leaving: dict[Lane, float] = field(default_factory=dict)
    sent: deque[PublishRequest] = field(default_factory=deque)
    orphans: dict[PublishRequest, Lane] = field(default_factory=dict)
    starved: dict[Lane, None] = field(default_factory=dict)
    last_used: float = -math.inf
    is_doubted: bool = False
    is_full: bool = False
    is_draining: bool = False
    is_read: bool = True
    cut: PublishRequest | None = None
    lifetime: Lifetime | None = None
    successor: ProducerConn | None = None
    renew_at: float = -math.inf
    grace_until: float = math.inf

    def own(self) -> list[PublishRequest]:
        """Return what is unanswered here and was not written again, each once, in its order."""
        return [request for request in dict.fromkeys(self.sent) if request.conn is self]

    def awaited(self) -> list[PublishRequest]:
        """Return those of them whose callers wait."""
        return [request for request in self.own() if not request.is_over]

    def owes(self, lane: Lane | None = None) -> bool:
        """Return whether answers are due: any, or those to one lane."""
        return any(request.conn is self and lane in (None, request.lane) for request in self.sent)

    def orphan(self, request: PublishRequest, lane: Lane) -> None:
        """Record that what is unanswered here is written again, or is stored already."""
        self.orphans[request] = lane
        request.conn = None
        request.maybe_stored = True


@dataclass(slots=True, eq=False)
class Lane:
    """One partition of one topic.

    Attributes:
        topic: The topic.
        number: The partition.
        node: The nsqd that leads it. None if there is none now.
        number_on_wire: The partition in commands. None for servers without partitions.
        conn: The connection that is written to. None if there is none. It may be in use although ``node`` is None.
        opening: The connection that is waited for.
        is_checked: Whether the partition has the channels of the others, as far as that can be known.
        ready: What may be written, in order.
        keys: The keys in use, each with the requests that wait for it, in order.
        refusals: Refused attempts in a row; all before one pause count as one.
        paused_until: Until when nothing is written.
        failures: Failures to find a leader in a row.
        retry_at: When to look for a leader again.
        probe_at: When a publish may try it though others work, or it is looked up again.
        trouble: Why publishing fails now. None if it may work.
        is_troubled: Whether something has failed since a publish was stored in time.
        outage: The same for the log, the events and the health.
        plain_receipts: Those of a message without a trace, all alike; none if it never had a connection.
        callers: Number of those who wait for a connection.
        counts: Counts of its publishes.
        last_used: When it was written to last.
        is_used: Whether a connection was ever asked for.
    """

    topic: ProducerTopic
    number: int
    node: Node | None = None
    number_on_wire: int | None = None
    conn: ProducerConn | None = None
    opening: ProducerConn | None = None
    ready: OrderedDict[PublishRequest, None] = field(default_factory=OrderedDict)
    keys: dict[Hashable, OrderedDict[PublishRequest, None] | None] = field(default_factory=dict)
    refusals: int = 0
    paused_until: float = -math.inf
    failures: int = 0
    retry_at: float = -math.inf
    probe_at: float = -math.inf
    trouble: NsqError | None = None
    outage: Outage = field(default_factory=Outage)
    plain_receipts: list[Receipt] = field(default_factory=list)
    callers: int = 0
    counts: PublishCounts = field(default_factory=PublishCounts)
    last_used: float = -math.inf
    is_troubled: bool = False
    is_checked: bool = False
    is_used: bool = False

    @property
    def name(self) -> str:
        """The topic and the partition, if there are any."""
        return self.topic.view.name_of(self.number)

    @property
    def is_needed(self) -> bool:
        """Whether a publish or a caller waits for a connection."""
        return bool(self.ready or self.callers)

    @property
    def load(self) -> int:
        """Number of publishes that wait, or that its connection has not answered."""
        conn = self.conn
        return len(self.ready) + (0 if conn is None else len(conn.sent))

    def line_up(self, request: PublishRequest) -> None:
        """Queue a request of which at least one key is taken: behind the holders of its keys."""
        keys = self.keys
        for key in request.keys:
            if key not in keys:
                keys[key] = None
                continue
            queue = keys[key]
            if queue is None:
                queue = keys[key] = OrderedDict()
            queue[request] = None
            request.blocked += 1

    def release(self, request: PublishRequest) -> None:
        """Take a request out, if it is still here, and give its keys to the next ones."""
        keys, ready = self.keys, self.ready
        for key in request.keys:
            queue = keys[key]
            if not queue:
                del keys[key]
            elif request in queue:
                del queue[request]
            else:
                following, _ = queue.popitem(last=False)
                following.blocked -= 1
                if not following.blocked:
                    ready[following] = None

    def again(self, requests: Iterable[PublishRequest]) -> None:
        """Put requests back at the front, in their order."""
        for request in reversed(list(requests)):
            self.ready[request] = None
            self.ready.move_to_end(request, last=False)

    def unwritten(self) -> list[PublishRequest]:
        """Return what is not written: what may be, and what waits for a key."""
        found = dict(self.ready)
        for queue in self.keys.values():
            found.update(queue or {})
        return list(found)


@dataclass(slots=True, eq=False)
class ProducerTopic:
    """One topic.

    Attributes:
        name: Its name.
        view: The latest view.
        lookup_error: Why the last lookup failed.
        lookupds: Who was asked.
        was_known: Whether its partitions were ever known.
        names_partitions: Whether the view names them.
        count: The number of partitions in use, and the one that follows it.
        lanes: The partitions, by number.
        routes: Those that accept publishes without a key.
        turn: Chooses the next of them.
        by_load: Whether the less loaded of two is chosen.
        is_quick: Whether a publish without a key goes to the next route, unless that is in trouble.
        waiting: Requests without a partition, in order.
        gate: The batch that is being queued; all others wait for it.
        callers: Number of those who wait until all is connected.
        used_at: When it was last used, but for writes.
        unsent: Counts of publishes that never had a partition.
        is_looked_up: Whether it is looked up often.
    """

    name: str
    used_at: float
    view: TopicView
    lookup_error: NsqError | None = None
    lookupds: tuple[str, ...] = ()
    count: PartitionCount = field(default_factory=PartitionCount)
    lanes: dict[int, Lane] = field(default_factory=dict)
    routes: list[Lane] = field(default_factory=list)
    turn: int = 0
    waiting: OrderedDict[PublishRequest, None] = field(default_factory=OrderedDict)
    gate: Gate | None = None
    callers: int = 0
    unsent: PublishCounts = field(default_factory=PublishCounts)
    was_known: bool = False
    names_partitions: bool = False
    by_load: bool = False
    is_quick: bool = False
    is_looked_up: bool = False

    @property
    def is_unknown(self) -> bool:
        """Whether no nsqlookupd of a partitioned cluster knows it, and none ever did."""
        view = self.view
        return view.is_answered and not (self.was_known or view.exists or view.is_plain)

    @property
    def is_busy(self) -> bool:
        """Whether a caller waits, an answer is due, or the number of its partitions is changing."""
        return bool(self.waiting or self.gate or self.callers or self.count.is_pending) or any(
            lane.is_needed or lane.keys or (lane.conn is not None and lane.conn.owes(lane))
            for lane in self.lanes.values()
        )

    def lane(self, number: int) -> Lane:
        """Return the lane of a partition."""
        lane = self.lanes.get(number)
        if lane is None:
            lane = self.lanes[number] = Lane(self, number, number_on_wire=number)
        return lane
