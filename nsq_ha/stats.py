"""What ``stats()`` and ``health()`` of producers, consumers and workers return.

All types are frozen. Counts begin at 0 when the client is created, and count messages unless the text says
something else. Later versions may add fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "ConsumerPartition",
    "ConsumerStats",
    "Health",
    "PartitionState",
    "ProducerPartition",
    "ProducerStats",
    "WorkerStats",
]

PartitionState = Literal["idle", "connecting", "connected", "waiting", "closing", "closed"]
"""``idle``: a producer needs no connection now. ``waiting``: for a leader, or for the next attempt after a failure.
``closing``: a consumer takes no new messages and waits for answers."""


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a client works; true if it does.

    Attributes:
        is_healthy: Whether it works.
        reason: Why not. If it works, ``ok`` or what an operator may want to know, such as a pause.
    """

    is_healthy: bool
    reason: str

    def __bool__(self) -> bool:
        """Return ``is_healthy``."""
        return self.is_healthy


@dataclass(frozen=True, slots=True, kw_only=True)
class _Published:
    """What a producer counts, in all and for each partition."""

    queued: int
    in_flight: int
    published: int
    failed: int
    uncertain: int
    timed_out: int
    retries: int
    reconnects: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Delivered:
    """What a consumer counts, in all and for each partition."""

    queued: int
    in_flight: int
    delivered: int
    finished: int
    requeued: int
    timed_out: int
    returned: int
    skipped: int
    finished_unhandled: int = 0
    reconnects: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerPartition(_Published):
    """One partition that a producer has published to.

    Attributes:
        topic: The topic.
        partition: The partition.
        leader: ``host:port`` of the leader, by the latest lookup. None if there is none.
        state: The state of the connection.
        queued: Number of publish calls that are not written yet.
        in_flight: Number of publish commands that are written and not answered.
        published: Number of messages that nsqd has acknowledged.
        failed: Number of messages whose publish failed.
        uncertain: Those of ``failed`` that may be stored nevertheless (``maybe_stored``).
        timed_out: Those of ``failed`` that reached their time limit.
        retries: Number of publish commands that were taken back after a refusal or a lost connection.
        reconnects: Number of connections after the first one.
        heartbeat_age: Seconds since the last heartbeat, or since connecting. None without a connection.
        trouble: Why publishing fails. None if it does not.
    """

    topic: str
    partition: int
    leader: str | None
    state: PartitionState
    heartbeat_age: float | None
    trouble: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerStats(_Published):
    """The state of a producer at one moment.

    The totals include topics that are not in ``partitions`` any more, since nothing was published to them for
    ``idle_timeout``, and messages that were never assigned to a partition.

    Attributes:
        partitions: By topic and number.
        queued: Number of publish calls that are not written yet.
        in_flight: Number of publish commands that are written and not answered.
        pending_bytes: Bytes of the bodies of all publish calls that have not ended.
        published: Number of messages that nsqd has acknowledged.
        failed: Number of messages whose publish failed.
        uncertain: Those of ``failed`` that may be stored nevertheless (``maybe_stored``).
        timed_out: Those of ``failed`` that reached their time limit.
        retries: Number of publish commands that were taken back after a refusal or a lost connection.
        reconnects: Number of connections after the first one of each partition.
        lookups: Number of rounds of lookups, each of one topic at all nsqlookupds that work.
        lookup_failures: Those of ``lookups`` that no nsqlookupd answered.
        lookup_seconds: How long all ``lookups`` took together.
        leader_changes: Number of times that a lookup named another leader of a partition, or none any more.
    """

    partitions: tuple[ProducerPartition, ...]
    pending_bytes: int
    lookups: int = 0
    lookup_failures: int = 0
    lookup_seconds: float = 0.0
    leader_changes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerPartition(_Delivered):
    """One partition that a consumer reads.

    Attributes:
        topic: The topic.
        partition: The partition.
        leader: ``host:port`` of the leader, by the latest lookup. None if there is none.
        state: The state of the subscription; ``connected`` means subscribed.
        queued: Number of messages that arrived and were not handed out.
        in_flight: Number of unanswered messages, queued ones included.
        ready: The RDY count that was sent last.
        delivered: Number of deliveries.
        finished: Number of messages whose FIN was sent, given-up ones included.
        requeued: Number of messages whose REQ was sent.
        timed_out: Number of messages that the server took back, as far as the client noticed, since they were not
            answered within ``msg_timeout``. Copies of a message that is being handled count, too.
        returned: Number of messages that were unanswered when their connection ended; they are delivered again.
        skipped: Number of messages that ``skip_header`` or ``ext_filter`` finished here, not part of ``delivered``.
        finished_unhandled: Number of copies that were finished without a handler, since the message had been finished
            here before and nsqd delivered it again; part of ``finished``.
        reconnects: Number of subscriptions after the first one.
        lag: Seconds from the publish to the arrival of the last message, by the clocks of two machines; 0 if this
            machine's clock is behind that of the nsqd by more than that. None before the first one.
        heartbeat_age: Seconds since the last heartbeat, or since connecting. None without a connection.
        trouble: Why the partition is not read. None if it is.
    """

    topic: str
    partition: int
    leader: str | None
    state: PartitionState
    ready: int
    lag: float | None = None
    heartbeat_age: float | None
    trouble: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStats(_Delivered):
    """The state of a consumer at one moment. The totals include partitions that the topic does not have any more.

    Attributes:
        topic: The topic.
        channel: The channel.
        partitions: By number.
        queued: Number of messages that arrived and were not handed out.
        in_flight: Number of unanswered messages, queued ones included.
        ready: Sum of the RDY counts that were sent last.
        max_in_flight: The present limit.
        max_rate: The present limit of messages a second. None without one.
        limited_seconds: How long messages waited for their turns by ``max_rate`` while a handler or task wanted them:
            a share of the time near 1 means that the limit is what holds this consumer back.
        held_bytes: Bytes of the bodies that wait, or were handed out and are unanswered as far as is known; those that
            were decompressed count as they are now. ``max_in_flight_bytes`` limits them.
        delivered: Number of deliveries.
        finished: Number of messages whose FIN was sent, given-up ones included.
        requeued: Number of messages whose REQ was sent.
        timed_out: Number of messages that the server took back, see :class:`ConsumerPartition`.
        returned: Number of messages that were unanswered when their connection ended.
        skipped: Number of messages that ``skip_header`` or ``ext_filter`` finished here, not part of ``delivered``.
        finished_unhandled: Number of copies that were finished without a handler, see :class:`ConsumerPartition`.
        given_up: Number of messages that the consumer gave up on (``max_attempts``).
        reconnects: Number of subscriptions after the first one of each partition.
        handled: Number of calls of the handler of ``run()`` that ended. Up to 63 quick ones are
            added later, at the latest when ``run()`` ends.
        handler_seconds: How long those calls took together.
        lookups: Number of rounds of lookups, each at all nsqlookupds that work.
        lookup_failures: Those of ``lookups`` that no nsqlookupd answered.
        lookup_seconds: How long all ``lookups`` took together.
        leader_changes: Number of times that a lookup named another leader of a partition, or none any more.
    """

    topic: str
    channel: str
    partitions: tuple[ConsumerPartition, ...]
    ready: int
    max_in_flight: int
    max_rate: float | None = None
    limited_seconds: float = 0.0
    held_bytes: int = 0
    given_up: int
    handled: int = 0
    handler_seconds: float = 0.0
    lookups: int = 0
    lookup_failures: int = 0
    lookup_seconds: float = 0.0
    leader_changes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStats(_Delivered):
    """The state of a :class:`~nsq_ha.Worker` at one moment. Except ``consumers``, all are sums over the consumers.

    Attributes:
        consumers: The statistics of each consumer, in the order in which they were added.
        queued: Number of messages that arrived and were not handed out.
        in_flight: Number of unanswered messages, queued ones included.
        delivered: Number of deliveries.
        finished: Number of messages whose FIN was sent, given-up ones included.
        requeued: Number of messages whose REQ was sent.
        timed_out: Number of messages that the server took back, see :class:`ConsumerPartition`.
        returned: Number of messages that were unanswered when their connection ended.
        skipped: Number of messages that ``skip_header`` or ``ext_filter`` finished here, not part of ``delivered``.
        finished_unhandled: Number of copies that were finished without a handler, see :class:`ConsumerPartition`.
        given_up: Number of messages that the consumer gave up on (``max_attempts``).
        reconnects: Number of subscriptions after the first one of each partition.
    """

    consumers: tuple[ConsumerStats, ...]
    given_up: int
