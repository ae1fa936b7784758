"""What producers and consumers report to the function of the option ``on_event``.

All types are frozen and have keyword arguments only; ``msgspec.structs.asdict`` returns the fields of one.
Later versions may add types and fields, so compare with ``isinstance`` and ignore what you do not know.

A ``channel`` of None stands for a producer. On a plain cluster a partition number stands for one nsqd.
"""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = [
    "BackoffChanged",
    "BackoffState",
    "ChannelsMissing",
    "Connected",
    "Disconnected",
    "Event",
    "FinishedAgain",
    "GaveUp",
    "LeaderChanged",
    "LookupdFailed",
    "LookupdRecovered",
    "LoopBlocked",
    "Recovered",
    "Refused",
    "Repartitioned",
    "Stalled",
]

BackoffState = Literal["paused", "testing", "ended"]
"""``paused``: no message is requested. ``testing``: one message tests the handler. ``ended``: all are requested."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """The base of all events.

    Attributes:
        at: When it was reported, in seconds since the epoch.
    """

    at: float = 0.0


class _OfClient(Event, frozen=True, kw_only=True):
    """What every event of a producer or a consumer says."""

    topic: str
    channel: str | None


class _OfPartition(_OfClient, frozen=True, kw_only=True):
    partition: int


class _OfConnection(_OfPartition, frozen=True, kw_only=True):
    nsqd: str


class _OfConsumer(Event, frozen=True, kw_only=True):
    """What every event of a consumer alone says."""

    topic: str
    channel: str


class _OfOutage(_OfClient, frozen=True, kw_only=True):
    partition: int | None
    seconds: float
    failures: int


class _OfMessage(_OfConsumer, frozen=True, kw_only=True):
    """What every event about one message of a consumer says."""

    partition: int
    nsqd: str
    internal_id: int
    trace_id: int
    attempts: int


class Connected(_OfConnection, frozen=True, kw_only=True):
    """A producer connected to the leader of a partition, or a consumer subscribed there.

    A connection that replaces another one to the same nsqd before its end, as TLS needs it, is not reported.

    Attributes:
        topic: The topic.
        channel: The consumer's channel. None for a producer.
        partition: The partition.
        nsqd: ``host:port`` of the nsqd.
    """


class Disconnected(_OfConnection, frozen=True, kw_only=True):
    """A connection that was reported as :class:`Connected` ended, whoever ended it.

    Attributes:
        topic: The topic.
        channel: The consumer's channel. None for a producer.
        partition: The partition.
        nsqd: ``host:port`` of the nsqd.
        reason: Why it ended.
    """

    reason: str


class LeaderChanged(_OfPartition, frozen=True, kw_only=True):
    """A lookup named another leader of a partition. The first lookup of a topic reports every leader.

    Attributes:
        topic: The topic.
        channel: The channel of the consumer that looked up. None for a producer. The leader itself is that of all
            channels.
        partition: The partition.
        before: ``host:port`` of the leader before. None if there was none.
        after: ``host:port`` of the leader now. None if there is none.
    """

    before: str | None
    after: str | None


class Repartitioned(_OfClient, frozen=True, kw_only=True):
    """A lookup named another number of partitions of a topic. A producer uses it later; then keys move.

    Attributes:
        topic: The topic.
        channel: The channel of the consumer that looked up. None for a producer.
        before: The number before.
        after: The number now.
    """

    before: int
    after: int


class ChannelsMissing(_OfPartition, frozen=True, kw_only=True):
    """A partition has not the channels of the topic's other partitions, and they could not be created.

    What is published to the partition before a consumer creates them is not delivered to them.

    Attributes:
        topic: The topic.
        channel: The channel of the consumer that noticed it. None for a producer.
        partition: The partition.
        missing: The missing channels.
        reason: Why they could not be created.
    """

    missing: tuple[str, ...]
    reason: str


class BackoffChanged(_OfConsumer, frozen=True, kw_only=True):
    """A consumer paused because handlers failed, tests with one message, or continues.

    Attributes:
        topic: The topic.
        channel: The channel.
        state: The new state.
        seconds: How long the pause lasts; 0 for other states.
    """

    state: BackoffState
    seconds: float = 0.0


class GaveUp(_OfMessage, frozen=True, kw_only=True):
    """A consumer gave a message up, or tried to.

    Attributes:
        topic: The topic.
        channel: The channel.
        partition: The partition.
        nsqd: ``host:port`` of the nsqd that delivered it.
        internal_id: The server's id of the message.
        trace_id: The publisher's trace id; 0 if there is none.
        attempts: Number of its deliveries.
        policy: ``drop``, ``republish``, ``dead_letter``, or ``function``.
        error: Why giving up failed; the message will be redelivered. None if giving up succeeded.
    """

    policy: Literal["drop", "republish", "dead_letter", "function"]
    error: str | None


class FinishedAgain(_OfMessage, frozen=True, kw_only=True):
    """nsqd delivered a message again that this consumer had finished; the copy is finished without a handler.

    The FIN before was refused, came too late, or was lost with its connection.

    Attributes:
        topic: The topic.
        channel: The channel.
        partition: The partition.
        nsqd: ``host:port`` of the nsqd that delivered the copy.
        internal_id: The server's id of the message.
        trace_id: The publisher's trace id; 0 if there is none.
        attempts: Number of its deliveries.
    """


class Refused(_OfConnection, frozen=True, kw_only=True):
    """An nsqd answered with an error. Each refusal is reported, including those of retries.

    Attributes:
        topic: The topic.
        channel: The consumer's channel. None for a producer.
        partition: The partition.
        nsqd: ``host:port`` of the nsqd.
        code: The error's code, such as ``E_FAILED_ON_NOT_LEADER``.
        text: The whole error.
    """

    code: str
    text: str


class Stalled(_OfOutage, frozen=True, kw_only=True):
    """Nothing could be published to a partition, or read from it, for some seconds.

    It is reported together with the warning in the log: after 5 seconds, then less and less often.

    Attributes:
        topic: The topic.
        channel: The consumer's channel. None for a producer.
        partition: The partition. None for the whole topic.
        seconds: How long this has lasted.
        failures: Number of failed attempts.
        reason: The last failure.
    """

    reason: str


class Recovered(_OfOutage, frozen=True, kw_only=True):
    """What was reported as :class:`Stalled` works again.

    Attributes:
        topic: The topic.
        channel: The consumer's channel. None for a producer.
        partition: The partition. None for the whole topic.
        seconds: How long it did not work.
        failures: Number of failed attempts.
    """


class LoopBlocked(_OfConsumer, frozen=True, kw_only=True):
    """The event loop of a consumer stood still for long, and no heartbeat was answered meanwhile.

    The application blocked it, or, if ``waited`` is most of the time, the machine was too busy.

    Attributes:
        topic: The topic.
        channel: The channel.
        seconds: How long.
        handler: Name of the handler that ran. None if unknown, or if the machine was too busy.
        waited: Seconds for which it could have run and waited for a CPU. None if the system does not tell.
    """

    seconds: float
    handler: str | None
    waited: float | None


class LookupdFailed(Event, frozen=True, kw_only=True):
    """An nsqlookupd gave no usable answer. Only the first of several failures in a row is reported.

    Attributes:
        lookupd: Its base URL.
        reason: Why.
    """

    lookupd: str
    reason: str


class LookupdRecovered(Event, frozen=True, kw_only=True):
    """An nsqlookupd that was reported as :class:`LookupdFailed` answers again.

    Attributes:
        lookupd: Its base URL.
    """

    lookupd: str
