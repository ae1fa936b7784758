"""What the pure machine asks of the loop's side of a consumer's connections.

Part of the pure machine (``consumer.machine``): no event loop, no clock, no log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from nsq_ha.consumer.inflight import ReadPartition, Subscription
    from nsq_ha.errors import NsqError
    from nsq_ha.policy.timing import Warned
    from nsq_ha.policy.topology import Node


class ConnectionAction(NamedTuple):
    """Something to do with a connection.

    Attributes:
        what: ``open`` and subscribe; ``abort`` it or the attempt to open it; ``close`` it when what is buffered has
            been sent; ``stop``: send CLS, and say :meth:`Subscriptions.stopped` when it is answered or cannot be;
            ``keep alive`` with a NOP, since nsqd writes no more; ``leave``: requeue what nsqd would keep, then end it,
            since its partition is read no more.
        conn: The connection.
        reason: Why it is aborted.
    """

    what: Literal["open", "abort", "close", "stop", "keep alive", "leave"]
    conn: Subscription
    reason: NsqError | None = None


class LookUps(NamedTuple):
    """Look the topic up often from now on, or no longer."""

    are_frequent: bool


class Unreadable(NamedTuple):
    """Tell the application that retrying cannot help."""

    error: NsqError


class PartitionEvent(NamedTuple):
    """Something of a partition, or of the topic, to log, and to tell the application.

    Attributes:
        what: ``subscribed``, ``replaced``, ``disconnected``, ``failed``, ``settled``, ``refused``, ``final``,
            ``moved`` or ``gone``; of the whole topic ``absent`` or ``found``.
        partition: The partition. None if it is about the topic.
        node: The nsqd. None if it is not about one.
        error: Why.
        conn: The connection.
        outage: The facts, if there is a reason to warn.
    """

    what: str
    partition: ReadPartition | None = None
    node: Node | None = None
    error: NsqError | None = None
    conn: Subscription | None = None
    outage: Warned | None = None
