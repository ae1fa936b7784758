"""What a consumer consists of: a partition has its connections, and a connection its messages by id, and its RDY.

Part of the pure machine (``consumer.machine``): no event loop, no clock, no log.

Source: server failures 4.3; server protocol 9.
"""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nsq_ha.message import Message, State
from nsq_ha.policy.ready import Seen
from nsq_ha.policy.redelivery import SentFins
from nsq_ha.policy.timing import Outage
from nsq_ha.policy.topology import Node, TopicMeta

if TYPE_CHECKING:
    from nsq_ha.errors import NsqError
    from nsq_ha.policy.redelivery import Stamp
    from nsq_ha.policy.tls_renewal import Lifetime
    from nsq_ha.protocol.identify import Identity

IN_TIME: Final = 0.95
"""Share of the message timeout that counts: the server's clock started before the message arrived."""

NEVER: Final = math.inf, 0.0

_NOWHERE: Final = Node("", 0, 0), TopicMeta(1)

UNANSWERED: Final = frozenset((State.QUEUED, State.HANDED_OUT, State.GIVING_UP))


class DeliveryCounts:
    """Counts of one partition's messages that only grow; fields of :class:`~nsq_ha.stats.ConsumerPartition`.

    Finished messages are not counted one by one: they are what was delivered and is neither unanswered nor counted
    here.

    Attributes:
        lag_ns: Nanoseconds from the publish to the arrival of the last message; no count. None before the first one.
    """

    def __init__(self) -> None:
        self.delivered: int = 0
        self.requeued: int = 0
        self.timed_out: int = 0
        self.returned: int = 0
        self.skipped: int = 0
        self.finished_unhandled: int = 0
        self.reconnects: int = 0
        self.lag_ns: int | None = None

    def add(self, other: DeliveryCounts) -> None:
        """Add all counts of ``other``."""
        for name, count in vars(other).items():
            if name != "lag_ns":
                setattr(self, name, getattr(self, name) + count)

    def fields(self, in_flight: int) -> dict[str, int]:
        """Return the counts as they are named in statistics, given the number of unanswered messages."""
        counts = {name: count for name, count in vars(self).items() if name != "lag_ns"}
        counts["finished"] = self.delivered - self.requeued - self.timed_out - self.returned - in_flight
        return counts | {"in_flight": in_flight}


class Recipient:
    """Who is handed messages: a task that iterates, or the handlers of one call of ``run``.

    Attributes:
        is_handler: Each message has a handler, which certainly answers it. A task may have dropped it.
        is_over: Answers nothing more: the task has ended, or leaves.
        has_failed: An exception ended it, which counts as a failed attempt.
    """

    def __init__(self, *, is_handler: bool = False) -> None:
        self.is_handler: bool = is_handler
        self.is_over: bool = False
        self.has_failed: bool = False


class WriteReady(NamedTuple):
    """Write RDY."""

    number: int


class WriteRequeue(NamedTuple):
    """Write REQ with ``delay``; ``given`` is what the application asked for. The message is None if nobody saw it."""

    message_id: bytes
    delay: float
    message: Message | None = None
    given: float | None = None


class WriteTouch(NamedTuple):
    """Write TOUCH."""

    message_id: bytes
    message: Message


class WriteFinish(NamedTuple):
    """Write FIN for a message that is not handed out."""

    message_id: bytes


Command = WriteReady | WriteRequeue | WriteTouch | WriteFinish


class ReadPartition:
    """One partition that is read.

    Attributes:
        number: Its number.
        counts: Counts of its messages, over all connections.
        conn: The connection in use. None without one.
        replaced: Earlier ones, over which answers are still sent.
        orphans: Messages of lost connections whose handlers still run, by id, with the states that they had.
        longest_delay: Seconds by which nsqd delays a requeue at most, as far as is known.
        led: The node that leads it, and the topic's settings. None if nothing leads it now.
        opening: The connection that is being opened or subscribed. None if there is none.
        failures: Failures in a row, for the pauses between attempts.
        short_lives: Subscriptions in a row that were lost before they settled.
        settled_at: When the last subscription counts as working.
        subscribed_at: When it was subscribed last. None if it never was.
        retry_at: When to connect again, or to replace a connection whose time is limited.
        outage: What is wrong, from the first failure until a subscription has settled.
        trouble: Why it is not subscribed. None while it is.
        has_channel: It has the channel, as far as is known.
        is_started: The channel is where ``start_from`` says, and the replicas know it.
        is_over: It is read no more: nsqd refused for good, or the topic does not have it any more.
    """

    def __init__(self, number: int) -> None:
        self.number: int = number
        self.counts: DeliveryCounts = DeliveryCounts()
        self.conn: Subscription | None = None
        self.replaced: list[Subscription] = []
        self.orphans: dict[bytes, tuple[Message, State]] = {}
        self.longest_delay: float = math.inf
        self.led: tuple[Node, TopicMeta] | None = None
        self.opening: Subscription | None = None
        self.failures: int = 0
        self.short_lives: int = 0
        self.settled_at: float = -math.inf
        self.subscribed_at: float | None = None
        self.retry_at: float = -math.inf
        self.outage: Outage = Outage()
        self.trouble: NsqError | None = None
        self.has_channel: bool = False
        self.is_started: bool = False
        self.is_over: bool = False

    def is_moved_from(self, conn: Subscription) -> bool:
        """Return whether another node is known to lead."""
        return self.led is not None and self.led[0] != conn.node

    @property
    def conns(self) -> list[Subscription]:
        """The connections over which answers can be sent."""
        conn, replaced = self.conn, self.replaced
        return [*replaced] if conn is None else [conn, *replaced]

    @property
    def in_flight(self) -> int:
        """Number of messages delivered and not answered, over all connections."""
        return sum(len(conn.messages) for conn in self.conns)


class Stage(enum.Enum):
    """How far a connection of a consumer is."""

    OPENING = enum.auto()
    """It is being opened."""
    SUBSCRIBING = enum.auto()
    """It is open; SUB is not answered. Nothing else is read, unless this connection is to replace another one."""
    SUBSCRIBED = enum.auto()
    """It waits until nsqd has stopped to send over the connection that it replaces."""
    IN_USE = enum.auto()
    """Messages may arrive."""
    DRAINING = enum.auto()
    """Another one has replaced it: only answers are sent."""
    CLOSED = enum.auto()
    """It has ended, or ends now."""


class Subscription:
    """One connection that reads a partition.

    Args:
        partition: The partition.
        is_ordered: The channel is read in order: one message in flight.
        led: The nsqd, and the topic's settings.
        replaces: The connection to the same nsqd that it is to replace.

    Attributes:
        node: The nsqd.
        meta: The topic's settings.
        stage: How far it is.
        lifetime: How long nsqd can write to it. None for no limit.
        is_stopping: CLS was sent, or is going to be: no new message comes after its answer.
        is_stopped: CLS was answered, or never will be.
        replaced_at: When another one replaced it.
        alive_at: When nsqd must hear next that the client lives.
        source: The ``source`` of its messages; the shell's.
        handle: What writes; the shell's.
        messages: What is in flight, by id, in the order of arrival.
        finished: What is finished, and its FIN not written yet, by id. The bodies are forgotten.
        oldest: Of those, when the first one is requeued by nsqd, and when it was handed out.
        recorded: Of those, the messages that the pause must know of.
        commands: Other commands to write before them.
        fins: The FINs that were written lately.
        adopted: Ids that an orphan of a lost connection will answer.
        is_open: Answers can be sent.
        is_reading: RDY may be sent.
        is_rejecting: What still arrives is requeued.
        max_ready: The largest RDY that nsqd allows.
        msg_timeout: Seconds after which nsqd requeues an unanswered message.
        max_msg_timeout: Seconds after a delivery at which it requeues even a touched message.
        repeats_ready: nsqd counts RDY down, so it is sent again with each read.
        ready: The RDY sent last.
        most: The largest RDY so far.
        delivered: Number of messages delivered.
        peak: The most messages in flight since the last look.
        touched_at: When a message was last touched.
        is_checked: SUB carried a position, so messages of other partitions may come.
        may_repeat: The first message may come a second time, see :meth:`without_repeat`.
    """

    def __init__(
        self,
        partition: ReadPartition,
        *,
        is_ordered: bool,
        led: tuple[Node, TopicMeta] = _NOWHERE,
        replaces: Subscription | None = None,
    ) -> None:
        self.partition: ReadPartition = partition
        self.node: Node = led[0]
        self.meta: TopicMeta = led[1]
        self.replaces: Subscription | None = replaces
        self.stage: Stage = Stage.OPENING
        self.lifetime: Lifetime | None = None
        self.is_stopping: bool = False
        self.is_stopped: bool = False
        self.replaced_at: float = math.inf
        self.alive_at: float = math.inf
        self.is_ordered: bool = is_ordered
        self.source: Any = None
        self.handle: Any = None
        self.messages: dict[bytes, Message] = {}
        self.finished: dict[bytes, Stamp] = {}
        self.oldest: tuple[float, float] = NEVER
        self.recorded: list[Message] = []
        self.commands: list[Command] = []
        self.fins: SentFins = SentFins()
        self.adopted: set[bytes] = set()
        self.is_open: bool = False
        self.is_reading: bool = False
        self.is_rejecting: bool = False
        self.max_ready: int = 1
        self.msg_timeout: float = 60.0
        self.max_msg_timeout: float = 900.0
        self.repeats_ready: bool = False
        self.ready: int = 0
        self.most: int = 0
        self.delivered: int = 0
        self.peak: int = 0
        self.touched_at: float = 0.0
        self.is_checked: bool = False
        self.may_repeat: bool = is_ordered
        self._first: tuple[bytes, Stamp, int] | None = None
        self._is_first_finished = False

    def opened(self, identity: Identity) -> None:
        """Record what IDENTIFY has settled; messages may arrive from now on."""
        self.msg_timeout, self.max_msg_timeout = identity.msg_timeout / 1000, identity.max_msg_timeout / 1000
        self.max_ready = 1 if self.is_ordered else identity.max_rdy_count
        self.repeats_ready = identity.counts_ready_down
        self.is_open = True

    def is_outstanding(self, now: float) -> bool:
        """Return whether answers are still to be sent, to messages that nsqd has not timed out."""
        if self.finished or self.commands:
            return True
        return bool(self.messages) and now <= max(min(self.replaced_at, now), self.touched_at) + self.msg_timeout

    @property
    def kept(self) -> tuple[int, int]:
        """The fewest and the most messages that nsqd would keep until their timeout if the connection ended now.

        Those that it has sent for the latest RDY may not have been read yet. A partitioned nsqd requeues all then.
        """
        if self.meta.is_partitioned or self.is_rejecting:
            return 0, 0
        return len(self.messages), max(len(self.messages), self.ready)

    @property
    def seen(self) -> Seen:
        """What it delivers, for sharing RDY."""
        return Seen(self.ready, len(self.messages), self.peak, self.delivered)

    def deadline_from(self, sent_at: float) -> float:
        """Return when nsqd requeues a message that it sent then."""
        return sent_at + IN_TIME * self.msg_timeout

    def arrival_of(self, message: Message) -> float:
        """Return when a message arrived."""
        return message.arrived_at or message.deadline - IN_TIME * self.msg_timeout

    def set_ready(self, count: int) -> None:
        """Ask for ``count`` messages."""
        self.ready = count
        self.most = max(self.most, count)
        self.commands.append(WriteReady(count))

    # -- the first message of an ordered channel, or after a start position

    def without_repeat(self, messages: list[Message]) -> list[Message]:
        """Remove further copies of the first message; call this while ``may_repeat``.

        nsqd restarts its reader at the first SUB_ORDERED on a channel with a backlog, and when a start position is
        set. It sends the message that it had ready first. The reader may then reach that message again and send it a
        second time, and after a change of the leader a third time, with the same number of attempts: on an ordered
        channel immediately or never, else when the reader gets there. A message that was requeued or timed out has
        more attempts; a message of another connection is no copy. Calling ``/channel/setorder`` first does not prevent
        the copies.

        Source: server protocol 5.2, 9.1.
        """
        kept: list[Message] = []
        for message in messages:
            first, stamp = self._first, stamp_of(message)
            if first is None:
                if self.may_repeat:
                    self._first = message.id, stamp, message.attempts
            elif (message.id, stamp, message.attempts) == first:
                # Until the answer to the first copy is sent, it counts for all: they have the same id.
                if self._is_first_finished:
                    self.partition.counts.finished_unhandled += 1
                    self.commands.append(WriteFinish(message.id))
                continue
            elif self.is_ordered or message.id > first[0]:
                self.no_repeat()  # the reader has passed it
            kept.append(message)
        return kept

    def answered_first(self, message: Message, *, is_finished: bool) -> None:
        """Record an answer while ``may_repeat``: after a requeue, a copy is the redelivery that it asks for."""
        if self._first is not None and message.id == self._first[0]:
            self._is_first_finished = is_finished
            if not is_finished:
                self.no_repeat()

    def no_repeat(self) -> None:
        """Look for no copy of the first message any more."""
        self.may_repeat = False
        self._first = None


def stamp_of(message: Message) -> Stamp:
    """Return what tells a message from a later one with its id."""
    return message.timestamp_ns, message.offset


def conn_of(message: Message) -> Subscription:
    """Return the connection of a consumer's message."""
    conn: Subscription = message.source.conn  # type: ignore[attr-defined]  # nothing else is the source of one
    return conn
