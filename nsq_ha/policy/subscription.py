"""The life of one partition's subscription, as a table.

Every rule about *when* a subscription connects, moves, comes back or ends is in
``TRANSITIONS``; who runs one (``consumer.subscription``) tells what happened and
does what the table says. Silence of a connection counts as its loss
(``policy.liveness``).

The invariants, whatever happens in whatever order:

* At most one connection is subscribed; the one that reads is left only after
  the new leader has been connected to.
* A partition that no look-up names is no reason to leave its connection.
* After each loss and each failure the nsqlookupds are asked at once, and again
  with each further try, until it is subscribed.
* A node that accepts SUB and then fails is not retried in a tight loop: only a
  connection that lived for a while counts as progress (``settle_time``).
* It ends only when it is told to, or by a refusal that no retry cures.

Source: failures reference 3.7, 3.9, 4 (Consumer 1-3, Discovery 3, 4; Both 2).
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
    """Not subscribed, and waiting for its next try: the end of the back-off, or news of another leader."""
    CONNECTING = enum.auto()
    """A connection to the leader is being made; nothing is subscribed."""
    SUBSCRIBING = enum.auto()
    """SUB is sent, its answer outstanding; the connection before this one is left."""
    SUBSCRIBED = enum.auto()
    """Messages may arrive."""
    MOVING = enum.auto()
    """Still subscribed where it was, while a connection to the new leader is being made."""
    MOVE_PAUSED = enum.auto()
    """Still subscribed where it was; the new leader was not to be had, and waits for its next try."""
    DRAINING = enum.auto()
    """CLS is sent: nothing new is asked for, answers still go."""
    ENDED = enum.auto()
    """Told to stop, or refused for good."""


class Event(enum.Enum):
    """What can happen to a subscription."""

    LEADER = enum.auto()
    """Its turn has come, and a node leads that it is not subscribed at."""
    SAME = enum.auto()
    """Its turn has come, and the node leads that it is subscribed at."""
    NOBODY = enum.auto()
    """Its turn has come, and no look-up names a leader."""
    OPENED = enum.auto()
    """The connection is made: IDENTIFY, and AUTH where it is asked for."""
    ACCEPTED = enum.auto()
    """SUB was answered ``OK``."""
    FAILED = enum.auto()
    """The connection was not to be had, or SUB was refused or not answered, and a retry may cure it."""
    OUTDATED = enum.auto()
    """As ``FAILED``, and another node leads meanwhile."""
    FORBIDDEN = enum.auto()
    """A refusal that no retry cures."""
    LOST = enum.auto()
    """The subscribed connection went: closed with a frame or without, reset, damaged, or silent for two heartbeats."""
    BROKEN = enum.auto()
    """An unexpected error was raised; its connections are closed."""
    STOP = enum.auto()
    """The consumer closes: what is unanswered may still be answered."""
    CLOSE = enum.auto()
    """The time for that is over, or whoever runs it is cancelled."""


class Act(enum.Enum):
    """What is to be done next."""

    CONNECT = enum.auto()
    """Open a connection to the node that leads."""
    SUBSCRIBE = enum.auto()
    """Leave the old connection, if there is one, and send SUB on the new one."""
    READ = enum.auto()
    """Take what arrives; the next turn is with news of another leader."""
    ASK = enum.auto()
    """Ask the nsqlookupds at once; the next turn is after the back-off, or with news of another leader."""
    TELL = enum.auto()
    """Leave all, and tell the application why."""
    END = enum.auto()
    """Leave all."""


class Step(NamedTuple):
    """A row of the table: the state that follows, and what is to be done."""

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
        **{(state, _E.FORBIDDEN): Step(_S.ENDED, _A.TELL) for state in (_S.CONNECTING, _S.SUBSCRIBING, _S.MOVING)},
        **{(state, _E.STOP): Step(_S.ENDED, _A.END) for state in (_S.PAUSED, _S.CONNECTING, _S.SUBSCRIBING)},
        **{(state, _E.STOP): Step(_S.DRAINING, _A.READ) for state in (_S.SUBSCRIBED, _S.MOVING, _S.MOVE_PAUSED)},
        **{(state, _E.CLOSE): Step(_S.ENDED, _A.END) for state in _S},
        **{(state, _E.BROKEN): Step(_S.PAUSED, _A.ASK) for state in _S if state not in (_S.DRAINING, _S.ENDED)},
        **{(state, _E.BROKEN): Step(_S.ENDED, _A.END) for state in (_S.DRAINING, _S.ENDED)},
        # What was under way when it was told to stop comes to its end, and changes nothing.
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
"""State and event to what follows; what is missing cannot happen."""

READING: Final = frozenset((_S.SUBSCRIBED, _S.MOVING, _S.MOVE_PAUSED, _S.DRAINING))
"""States in which a connection is subscribed."""


SETTLED_INTERVALS: Final = 2
"""Heartbeat intervals after which a subscription counts as working."""

LONGEST_SETTLING: Final = 10.0
"""Maximum seconds after which it counts as working, even with long heartbeat intervals."""


def settle_time(heartbeat_interval: float) -> float:
    """Return how long a subscription must live before its loss counts as the first failure.

    An accepted SUB is no progress, and neither is an answered message: a node may deliver some messages and then one
    that ends the connection, again and again. The effect of each event on the two counters:

    ======================  ==============================  ==============
    event                   short lives in a row            failures
    ======================  ==============================  ==============
    SUB accepted            as before                       = short lives
    lost before it settled  one more                        short lives + 1
    lost later              0                               1
    a failed attempt        as before                       one more
    ======================  ==============================  ==============

    So the client reconnects at once after a leader moved or one connection closed; the tenth loss in a row waits for
    the longest back-off.
    """
    return min(SETTLED_INTERVALS * heartbeat_interval, LONGEST_SETTLING)


class Life(Generic[N]):
    """One subscription's way through the table; ``N`` is what a node is.

    Attributes:
        state: Where it stands.
        act: What is to be done next by whoever runs it.
        node: Where it is subscribed, or is subscribing. None elsewhere.
        target: Where the connection goes that is being made. None when none is.
        failures: Failures in a row, for the back-off.
        short_lives: Subscriptions in a row that were lost before they settled.
        settled_at: When the last accepted subscription counts as working.
    """

    __slots__ = ("_settling", "act", "failures", "node", "settled_at", "short_lives", "state", "target")

    def __init__(self, settling: float) -> None:
        """Begin: the first turn is due.

        Args:
            settling: Seconds, see :func:`settle_time`.
        """
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
        """Tell whether the connection that is being made still leads to the leader, as far as is known."""
        return leader in (None, self.target)

    def turn(self, leader: N | None) -> None:
        """Take its turn: at the beginning, after the back-off, or with news.

        Args:
            leader: Who leads the partition by the newest view. None while nobody is named.
        """
        if leader is None:
            # The first turn, too, has found nobody: the pause after it grows as after any failure.
            self.failures += self.state is not State.SUBSCRIBED
            self._take(Event.NOBODY)
        elif leader == self.node:
            self._take(Event.SAME)
        else:
            self._take(Event.LEADER)
            if self.act is Act.CONNECT:
                self.target = leader

    def opened(self) -> None:
        """Note that the connection is made."""
        self._take(Event.OPENED)
        if self.act is Act.SUBSCRIBE:
            self.node, self.target = self.target, None

    def accepted(self, now: float) -> None:
        """Record that SUB was answered ``OK``."""
        self._take(Event.ACCEPTED)
        self.failures = self.short_lives
        self.settled_at = now + self._settling

    def failed(self, leader: N | None, *, for_good: bool = False) -> None:
        """Note that the node was not to be had.

        Args:
            leader: Who leads by the newest view; another one than was tried is tried at once.
            for_good: No retry cures it.
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
        """Record that the subscribed connection went."""
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
        """Note that the consumer closes, and answers still go."""
        self._take(Event.STOP)

    def close(self) -> None:
        """Note that all is over."""
        self._take(Event.CLOSE)

    def _take(self, event: Event) -> None:
        self.state, self.act = TRANSITIONS[self.state, event]
