"""The life of one partition's subscription, as a table.

Every rule about *when* a subscription connects, moves, reconnects or ends is in
``TRANSITIONS``; ``consumer.subscription`` reports events and follows the table. A
silent connection counts as lost (``policy.liveness``).

The invariants, for all events in any order:

* At most one connection is subscribed. It is closed only after a connection to
  the new leader is open.
* If no lookup names a partition, its connection stays in use.
* After each loss and each failure the nsqlookupds are asked at once, and again
  with each attempt, until it is subscribed.
* A node that accepts SUB and then fails is not retried in a tight loop: only a
  connection that lasted for a while counts as progress (``settle_time``).
* It ends only if it is stopped, or if nsqd refuses and retrying cannot help.

Source: server failures 3.7, 3.9, 4.1, 4.3, 4.4.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Generic, NamedTuple, TypeVar

N = TypeVar("N")


class State(enum.Enum):
    """Where a subscription stands. Only ``ENDED`` is final."""

    PAUSED = enum.auto()
    """Not subscribed; the end of the backoff or another leader starts the next attempt."""
    CONNECTING = enum.auto()
    """A connection to the leader is being opened; nothing is subscribed."""
    SUBSCRIBING = enum.auto()
    """SUB was sent and not answered yet; the previous connection is closed."""
    SUBSCRIBED = enum.auto()
    """Messages may arrive."""
    MOVING = enum.auto()
    """Still subscribed to the old leader, while a connection to the new one is being opened."""
    MOVE_PAUSED = enum.auto()
    """Still subscribed to the old leader; connecting to the new one failed and will be retried."""
    DRAINING = enum.auto()
    """CLS was sent: no new messages arrive, but answers are still sent."""
    ENDED = enum.auto()
    """Stopped, or refused permanently."""


class Event(enum.Enum):
    """What can happen to a subscription."""

    LEADER = enum.auto()
    """Time to check, and the leader is another node than the subscribed one."""
    SAME = enum.auto()
    """Time to check, and the subscribed node leads."""
    NOBODY = enum.auto()
    """Time to check, and no lookup names a leader."""
    OPENED = enum.auto()
    """The connection is open, after IDENTIFY and, if needed, AUTH."""
    ACCEPTED = enum.auto()
    """SUB was answered ``OK``."""
    FAILED = enum.auto()
    """Connecting failed, or SUB was refused or not answered, and a retry may succeed."""
    OUTDATED = enum.auto()
    """As ``FAILED``, but another node leads now."""
    FORBIDDEN = enum.auto()
    """nsqd refused, and retrying cannot help."""
    LOST = enum.auto()
    """The subscribed connection is gone: closed (with or without a frame), reset, damaged, or silent for too long."""
    BROKEN = enum.auto()
    """An unexpected error was raised; the connections are closed."""
    STOP = enum.auto()
    """The consumer closes: unanswered messages may still be answered."""
    CLOSE = enum.auto()
    """The time for answers is over, or the subscription's task is cancelled."""


class Act(enum.Enum):
    """What to do next."""

    CONNECT = enum.auto()
    """Open a connection to the leader."""
    SUBSCRIBE = enum.auto()
    """Close the old connection, if there is one, and send SUB on the new one."""
    READ = enum.auto()
    """Read messages; check again when another leader is known."""
    ASK = enum.auto()
    """Ask the nsqlookupds at once; check again after the backoff, or when another leader is known."""
    REPORT = enum.auto()
    """Close the connections and report the error to the application."""
    END = enum.auto()
    """Close the connections."""


class Step(NamedTuple):
    """A row of the table: the next state, and what to do in it."""

    state: State
    act: Act


_S = State
_E = Event
_A = Act

TRANSITIONS: Final[Mapping[tuple[State, Event], Step]] = MappingProxyType(
    {
        (_S.PAUSED, _E.LEADER): Step(_S.CONNECTING, _A.CONNECT),
        (_S.PAUSED, _E.NOBODY): Step(_S.PAUSED, _A.ASK),
        (_S.CONNECTING, _E.OPENED): Step(_S.SUBSCRIBING, _A.SUBSCRIBE),
        (_S.CONNECTING, _E.FAILED): Step(_S.PAUSED, _A.ASK),
        (_S.CONNECTING, _E.OUTDATED): Step(_S.CONNECTING, _A.CONNECT),
        (_S.SUBSCRIBING, _E.ACCEPTED): Step(_S.SUBSCRIBED, _A.READ),
        (_S.SUBSCRIBING, _E.FAILED): Step(_S.PAUSED, _A.ASK),
        (_S.SUBSCRIBING, _E.OUTDATED): Step(_S.CONNECTING, _A.CONNECT),
        (_S.SUBSCRIBED, _E.LEADER): Step(_S.MOVING, _A.CONNECT),
        (_S.SUBSCRIBED, _E.SAME): Step(_S.SUBSCRIBED, _A.READ),
        (_S.SUBSCRIBED, _E.NOBODY): Step(_S.SUBSCRIBED, _A.READ),
        (_S.SUBSCRIBED, _E.LOST): Step(_S.PAUSED, _A.ASK),
        (_S.MOVING, _E.OPENED): Step(_S.SUBSCRIBING, _A.SUBSCRIBE),
        (_S.MOVING, _E.FAILED): Step(_S.MOVE_PAUSED, _A.ASK),
        (_S.MOVING, _E.OUTDATED): Step(_S.MOVING, _A.CONNECT),
        (_S.MOVING, _E.LOST): Step(_S.CONNECTING, _A.CONNECT),
        (_S.MOVE_PAUSED, _E.LEADER): Step(_S.MOVING, _A.CONNECT),
        (_S.MOVE_PAUSED, _E.SAME): Step(_S.SUBSCRIBED, _A.READ),
        (_S.MOVE_PAUSED, _E.NOBODY): Step(_S.MOVE_PAUSED, _A.ASK),
        (_S.MOVE_PAUSED, _E.LOST): Step(_S.PAUSED, _A.ASK),
        (_S.DRAINING, _E.LOST): Step(_S.ENDED, _A.END),
        **{(state, _E.FORBIDDEN): Step(_S.ENDED, _A.REPORT) for state in (_S.CONNECTING, _S.SUBSCRIBING, _S.MOVING)},
        **{(state, _E.STOP): Step(_S.ENDED, _A.END) for state in (_S.PAUSED, _S.CONNECTING, _S.SUBSCRIBING)},
        **{(state, _E.STOP): Step(_S.DRAINING, _A.READ) for state in (_S.SUBSCRIBED, _S.MOVING, _S.MOVE_PAUSED)},
        **{(state, _E.CLOSE): Step(_S.ENDED, _A.END) for state in _S},
        **{(state, _E.BROKEN): Step(_S.PAUSED, _A.ASK) for state in _S if state not in (_S.DRAINING, _S.ENDED)},
        **{(state, _E.BROKEN): Step(_S.ENDED, _A.END) for state in (_S.DRAINING, _S.ENDED)},
        # Events of an attempt that was running at the stop have no effect.
        **{
            (_S.DRAINING, event): Step(_S.DRAINING, _A.READ)
            for event in (_E.LEADER, _E.SAME, _E.NOBODY, _E.OPENED, _E.FAILED, _E.OUTDATED, _E.FORBIDDEN, _E.STOP)
        },
        **{
            (_S.ENDED, event): Step(_S.ENDED, _A.END)
            for event in (_E.OPENED, _E.ACCEPTED, _E.FAILED, _E.OUTDATED, _E.FORBIDDEN, _E.STOP)
        },
    }
)
"""Maps state and event to the next step; a missing pair cannot happen."""

READING: Final = frozenset((_S.SUBSCRIBED, _S.MOVING, _S.MOVE_PAUSED, _S.DRAINING))
"""States in which a connection is subscribed."""


SETTLED_INTERVALS: Final = 2
"""Heartbeat intervals after which a subscription counts as working."""

LONGEST_SETTLING: Final = 10.0
"""Most seconds until it counts as working, even with long heartbeat intervals."""


def settle_time(heartbeat_interval: float) -> float:
    """Return how long a subscription must last before its loss counts as the first failure.

    An accepted SUB is no progress, and neither is an answered message: a node may repeatedly deliver some messages and
    then one that ends the connection. The effect of each event on the two counters:

    ======================  ==============================  ==============
    event                   short lives in a row            failures
    ======================  ==============================  ==============
    SUB accepted            as before                       = short lives
    lost before it settled  one more                        short lives + 1
    lost later              0                               1
    a failed attempt        as before                       one more
    ======================  ==============================  ==============

    So the client reconnects at once after the leader moved or one connection closed; the tenth loss in a row waits for
    the longest backoff.
    """
    return min(SETTLED_INTERVALS * heartbeat_interval, LONGEST_SETTLING)


class Life(Generic[N]):
    """One subscription's position in the table; ``N`` is the type of a node. It starts with a check that is due.

    Args:
        settling: Seconds, see :func:`settle_time`.

    Attributes:
        state: Where it stands.
        act: What to do next.
        node: The node it is subscribed or subscribing to. None without one.
        target: The node that is being connected to. None without one.
        failures: Failures in a row, for the backoff.
        short_lives: Subscriptions in a row that were lost before they settled.
        settled_at: When the last accepted subscription counts as working.
    """

    __slots__ = ("_settling", "act", "failures", "node", "settled_at", "short_lives", "state", "target")

    def __init__(self, settling: float) -> None:
        self.state: State = State.PAUSED
        self.act: Act = Act.ASK
        self.node: N | None = None
        self.target: N | None = None
        self.failures: int = 0
        self.short_lives: int = 0
        self.settled_at: float = 0.0
        self._settling = settling

    @property
    def is_reading(self) -> bool:
        """Whether a connection is subscribed."""
        return self.state in READING

    def is_wanted(self, leader: N | None) -> bool:
        """Return whether the connection being opened still goes to the leader, as far as is known."""
        return leader in (None, self.target)

    def check(self, leader: N | None) -> None:
        """Check which node leads: at the start, after the backoff, or when another leader is known.

        Args:
            leader: The partition's leader in the newest view. None if there is none.
        """
        if leader is None:
            # This is a failure from the first check on, so that the pauses grow.
            self.failures += self.state is not State.SUBSCRIBED
            self._take(Event.NOBODY)
        elif leader == self.node:
            self._take(Event.SAME)
        else:
            self._take(Event.LEADER)
            if self.act is Act.CONNECT:
                self.target = leader

    def opened(self) -> None:
        """Record that the connection is open."""
        self._take(Event.OPENED)
        if self.act is Act.SUBSCRIBE:
            self.node, self.target = self.target, None

    def accepted(self, now: float) -> None:
        """Record that SUB was answered ``OK``."""
        self._take(Event.ACCEPTED)
        self.failures = self.short_lives
        self.settled_at = now + self._settling

    def failed(self, leader: N | None, *, for_good: bool = False) -> None:
        """Record that connecting or subscribing failed.

        Args:
            leader: The leader in the newest view; if it is another node, it is tried at once.
            for_good: Retrying cannot help.
        """
        tried = self.node if self.target is None else self.target
        self.target = None
        self.failures += 1
        if self.state is State.SUBSCRIBING:
            self.node = None
        if for_good:
            self._take(Event.FORBIDDEN)
        elif leader not in (None, tried, self.node):
            self._take(Event.OUTDATED)
            self.target = leader if self.act is Act.CONNECT else None
        else:
            self._take(Event.FAILED)

    def lost(self, now: float) -> None:
        """Record that the subscribed connection is lost."""
        self.node = None
        self.short_lives = self.short_lives + 1 if now < self.settled_at else 0
        if self.state is State.SUBSCRIBED:
            self.failures = self.short_lives + 1
        self._take(Event.LOST)

    def broken(self) -> None:
        """Start again after an unexpected error, as after a failure."""
        self.node = self.target = None
        self.failures += 1
        self._take(Event.BROKEN)

    def stop(self) -> None:
        """Record that the consumer closes, and answers are still sent."""
        self._take(Event.STOP)

    def close(self) -> None:
        """Record the end."""
        self._take(Event.CLOSE)

    def _take(self, event: Event) -> None:
        self.state, self.act = TRANSITIONS[self.state, event]
