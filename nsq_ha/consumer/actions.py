"""What the pure machine asks of the loop's side of a consumer's connections.

Part of the pure machine (``consumer.machine``): no event loop, no clock, no log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from nsq_ha.consumer.inflight import ReadPartition, Subscription
    from nsq_ha.errors import NsqError
    from nsq_ha.policy.timing import Warned
    from nsq_ha.policy.topology import Node


class Connect(NamedTuple):
    """Open a connection, and subscribe."""

    conn: Subscription


class Disconnect(NamedTuple):
    """End a connection or the attempt to open it: at once, or when what is buffered has been sent."""

    conn: Subscription
    reason: NsqError
    is_gentle: bool = False


class StopMessages(NamedTuple):
    """Send CLS; say :meth:`Subscriptions.stopped` when it is answered, or cannot be."""

    conn: Subscription


class KeepAlive(NamedTuple):
    """Send NOP over a connection to which nsqd writes no more."""

    conn: Subscription


class Abandon(NamedTuple):
    """Requeue what nsqd would keep, then end the connection: its partition is read no more."""

    conn: Subscription


class LookUps(NamedTuple):
    """Look the topic up: if what is known is old, often, or no longer often."""

    how: str


class Unreadable(NamedTuple):
    """Tell the application that retrying cannot help."""

    error: NsqError


class Absent(NamedTuple):
    """Say that there is nothing to read, or that there is something again."""

    outage: Warned
    is_over: bool


class PartitionEvent(NamedTuple):
    """Something of a partition to log, and to tell the application.

    Attributes:
        what: ``subscribed``, ``replaced``, ``disconnected``, ``failed``, ``settled``, ``refused``, ``final``,
            ``moved`` or ``gone``.
        partition: The partition.
        node: The nsqd. None if it is not about one.
        error: Why.
        conn: The connection.
        outage: The facts, if there is a reason to warn.
    """

    what: str
    partition: ReadPartition
    node: Node | None = None
    error: NsqError | None = None
    conn: Subscription | None = None
    outage: Warned | None = None
