"""The life of a connection to the leader of one partition, as a table.

Every rule about *when* a connection is opened, replaced, moved, left or closed is in
``TRANSITIONS``, for publishing and for subscribing; ``engine.link`` reports events and
follows the table. A silent connection counts as lost (``policy.liveness``).

The invariants, for all events in any order:

* At most one connection is in use. Publishes are written, and messages requested,
  only over that one.
* A connection is opened only if it is needed, or to take the place of another one.
* A pause follows each failure, unless another node leads by then. Each pause asks the
  nsqlookupds.
* Only progress resets the backoff: an answer to a publish, or a subscription that
  lasted for a while (``settle_time``).
* A publisher stops writing to an old leader before it connects to the new one. A
  subscriber connects to the new leader first. If no lookup names a partition, the
  connection stays in use.
* A connection that is replaced stays in use until the other one can take its place.
* It ends only if the client closes, or if nsqd refuses and retrying cannot help.

Source: server failures 3.7, 3.9, 4.1, 4.2, 4.3, 4.4; server protocol 3.3.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Generic, NamedTuple, TypeVar

N = TypeVar("N")


class LinkState(enum.Enum):
    """Where a connection stands. Only ``ENDED`` is final."""

    IDLE = enum.auto()
    """No connection. One is opened when it is needed: to publish, if a publish waits; to subscribe, at once."""
    CONNECTING = enum.auto()
    """A connection to the leader is being opened; none is in use."""
    JOINING = enum.auto()
    """The connection is open and not in use yet: SUB is not answered. An earlier connection is closed."""
    IN_USE = enum.auto()
    """Publishes are written, or messages may arrive."""
    REPLACING = enum.auto()
    """As ``IN_USE``, while another connection to the same nsqd is being opened."""
    SWITCHING = enum.auto()
    """The other connection is open. The one in use gets the rest of its answers: nothing more is written, or CLS is."""
    MOVING = enum.auto()
    """Still subscribed to the old leader, while a connection to the new one is being opened."""
    MOVE_PAUSED = enum.auto()
    """Still subscribed to the old leader; connecting to the new one failed and will be retried."""
    LEAVING = enum.auto()
    """Another node leads: nothing more is published, and the old leader gets a moment to answer."""
    EXPIRING = enum.auto()
    """nsqd will soon be unable to write to the connection, which could not be replaced: it gets the rest of its
    answers."""
    DRAINING = enum.auto()
    """The consumer closes: CLS was sent, and messages are still answered."""
    PAUSED = enum.auto()
    """No connection after a failure; the end of the backoff or another leader ends the pause."""
    ENDED = enum.auto()
    """Closed, or refused permanently."""


class LinkEvent(enum.Enum):
    """What can happen to a connection."""

    NEEDED = enum.auto()
    """A connection is needed."""
    OPENED = enum.auto()
    """A connection is open, after IDENTIFY and, if needed, AUTH."""
    JOINED = enum.auto()
    """It may be used: SUB was answered ``OK``, or there is nothing to ask; a replaced one has got its answers."""
    FAILED = enum.auto()
    """There is no leader, no connection is allowed, or connecting or SUB failed; a retry may succeed."""
    OUTDATED = enum.auto()
    """As ``FAILED``, but another node leads now."""
    FORBIDDEN = enum.auto()
    """nsqd refused, and retrying cannot help."""
    SAME = enum.auto()
    """The node that is subscribed to leads again."""
    LOST = enum.auto()
    """The connection in use is gone: closed, reset, damaged, silent, or its answers are overdue."""
    MOVED = enum.auto()
    """Another node leads; a subscriber connects to it first."""
    SUPERSEDED = enum.auto()
    """Another node leads; a publisher stops writing first."""
    REPLACE = enum.auto()
    """The connection should be replaced, and another one is allowed."""
    EXPIRES = enum.auto()
    """The connection can no longer be used."""
    UNUSED = enum.auto()
    """The connection is not needed any more: unused for long, or given up in favour of another one."""
    LEFT = enum.auto()
    """The connection is closed on purpose, and none is needed."""
    LEFT_WAITING = enum.auto()
    """The connection is closed on purpose, and another one is needed."""
    RESUME = enum.auto()
    """The pause is over."""
    BROKEN = enum.auto()
    """An unexpected error was raised; all connections are closed."""
    STOP = enum.auto()
    """The consumer closes: messages may still be answered."""
    CLOSE = enum.auto()
    """The client is closed, or its task is cancelled."""


class Act(enum.Enum):
    """What to do next."""

    WAIT = enum.auto()
    """Wait until a connection is needed."""
    CONNECT = enum.auto()
    """Open a connection to the leader."""
    JOIN = enum.auto()
    """Close the earlier connection, if there is one, and prepare the new one for its use."""
    USE = enum.auto()
    """Use the connection until there is something to decide."""
    REPLACE = enum.auto()
    """Open another connection to the same nsqd."""
    SWITCH = enum.auto()
    """Prepare the other connection, let the one in use get its answers, then use the other one."""
    SETTLE = enum.auto()
    """Wait for answers for a limited time, then close the connection."""
    PAUSE = enum.auto()
    """Report the failure, look the topic up and wait for the backoff."""
    END = enum.auto()
    """Close all connections."""


class Step(NamedTuple):
    """A row of the table: the next state, and what to do in it."""

    state: LinkState
    act: Act


_S = LinkState
_E = LinkEvent
_WAIT: Final = Step(_S.IDLE, Act.WAIT)
_CONNECT: Final = Step(_S.CONNECTING, Act.CONNECT)
_JOIN: Final = Step(_S.JOINING, Act.JOIN)
_USE: Final = Step(_S.IN_USE, Act.USE)
_MOVE: Final = Step(_S.MOVING, Act.CONNECT)
_MOVE_PAUSE: Final = Step(_S.MOVE_PAUSED, Act.PAUSE)
_LEAVE: Final = Step(_S.LEAVING, Act.SETTLE)
_EXPIRE: Final = Step(_S.EXPIRING, Act.SETTLE)
_DRAIN: Final = Step(_S.DRAINING, Act.USE)
_PAUSE: Final = Step(_S.PAUSED, Act.PAUSE)
_END: Final = Step(_S.ENDED, Act.END)

WRITABLE: Final = frozenset((_S.IN_USE, _S.REPLACING))
"""States in which publishes are written."""

READABLE: Final = frozenset(
    (_S.IN_USE, _S.REPLACING, _S.SWITCHING, _S.EXPIRING, _S.MOVING, _S.MOVE_PAUSED, _S.DRAINING)
)
"""States in which a subscriber's connection delivers messages."""

TRANSITIONS: Final[Mapping[tuple[LinkState, LinkEvent], Step]] = MappingProxyType(
    {
        (_S.IDLE, _E.NEEDED): _CONNECT,
        (_S.CONNECTING, _E.OPENED): _JOIN,
        (_S.CONNECTING, _E.FAILED): _PAUSE,
        (_S.CONNECTING, _E.OUTDATED): _WAIT,
        (_S.JOINING, _E.JOINED): _USE,
        (_S.JOINING, _E.FAILED): _PAUSE,
        (_S.JOINING, _E.OUTDATED): _WAIT,
        (_S.IN_USE, _E.LOST): _PAUSE,
        (_S.IN_USE, _E.MOVED): _MOVE,
        (_S.IN_USE, _E.SUPERSEDED): _LEAVE,
        (_S.IN_USE, _E.REPLACE): Step(_S.REPLACING, Act.REPLACE),
        (_S.IN_USE, _E.EXPIRES): _EXPIRE,
        (_S.IN_USE, _E.UNUSED): _WAIT,
        (_S.REPLACING, _E.OPENED): Step(_S.SWITCHING, Act.SWITCH),
        (_S.REPLACING, _E.FAILED): _USE,
        (_S.REPLACING, _E.LOST): _PAUSE,
        (_S.REPLACING, _E.UNUSED): _WAIT,
        (_S.SWITCHING, _E.JOINED): _USE,
        (_S.SWITCHING, _E.FAILED): _USE,
        (_S.SWITCHING, _E.LOST): _PAUSE,
        (_S.SWITCHING, _E.UNUSED): _WAIT,
        (_S.MOVING, _E.OPENED): _JOIN,
        (_S.MOVING, _E.FAILED): _MOVE_PAUSE,
        (_S.MOVING, _E.OUTDATED): _MOVE,
        (_S.MOVING, _E.SAME): _USE,
        (_S.MOVING, _E.LOST): _CONNECT,
        (_S.MOVE_PAUSED, _E.RESUME): _MOVE,
        (_S.MOVE_PAUSED, _E.LOST): _PAUSE,
        # A loss ends the wait for answers; then LEFT or LEFT_WAITING follows.
        (_S.LEAVING, _E.LOST): _LEAVE,
        (_S.LEAVING, _E.UNUSED): _WAIT,
        (_S.LEAVING, _E.LEFT): _WAIT,
        (_S.LEAVING, _E.LEFT_WAITING): _WAIT,
        (_S.EXPIRING, _E.LOST): _EXPIRE,
        (_S.EXPIRING, _E.UNUSED): _WAIT,
        (_S.EXPIRING, _E.LEFT): _WAIT,
        (_S.EXPIRING, _E.LEFT_WAITING): _PAUSE,
        (_S.DRAINING, _E.LOST): _END,
        (_S.PAUSED, _E.RESUME): _WAIT,
        **{(state, _E.FORBIDDEN): _END for state in (_S.CONNECTING, _S.JOINING, _S.MOVING)},
        **{(state, _E.STOP): _END for state in (_S.IDLE, _S.CONNECTING, _S.JOINING, _S.PAUSED)},
        **{(state, _E.STOP): _DRAIN for state in READABLE},
        # Events of an attempt that was running at the stop have no effect.
        **{(_S.DRAINING, event): _DRAIN for event in (_E.OPENED, _E.FAILED, _E.OUTDATED, _E.FORBIDDEN)},
        **{(_S.ENDED, event): _END for event in (_E.OPENED, _E.JOINED, _E.FAILED, _E.FORBIDDEN, _E.STOP)},
        **{(state, _E.BROKEN): _END if state in (_S.DRAINING, _S.ENDED) else _PAUSE for state in _S},
        **{(state, _E.CLOSE): _END for state in _S},
    }
)
"""Maps state and event to the next step; a missing pair cannot happen."""

_PAUSES: Final = frozenset((_S.PAUSED, _S.MOVE_PAUSED))
_UNCONNECTED: Final = frozenset((_S.IDLE, _S.CONNECTING, _S.PAUSED, _S.ENDED))
_SEEKING: Final = frozenset((_S.CONNECTING, _S.MOVING))

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
    """One link's position in the table; ``N`` is the type of a node.

    Args:
        settling: Seconds that a subscription must last, see :func:`settle_time`. None for publishing.

    Attributes:
        state: Where the connection stands.
        act: What to do next.
        may_write: Whether publishes may be written.
        node: The node that is connected to. None without a connection.
        target: The node that is being connected to. None without one.
        failures: Pauses since the last progress, for the backoff.
        short_lives: Subscriptions in a row that were lost before they settled.
        settled_at: When the last accepted subscription counts as working.
    """

    __slots__ = ("_settling", "act", "failures", "may_write", "node", "settled_at", "short_lives", "state", "target")

    def __init__(self, settling: float | None = None) -> None:
        self.state: LinkState = LinkState.IDLE
        self.act: Act = Act.WAIT
        self.may_write: bool = False
        self.node: N | None = None
        self.target: N | None = None
        self.failures: int = 0
        self.short_lives: int = 0
        self.settled_at: float = 0.0
        self._settling = settling

    @property
    def is_reading(self) -> bool:
        """Whether a subscriber's connection delivers messages."""
        return self.state in READABLE

    def aim(self, leader: N) -> None:
        """Begin to connect to ``leader``; if the connection in use leads to it, keep that one."""
        if leader == self.node:
            self.take(LinkEvent.SAME)
        else:
            self.target = leader

    def opened(self) -> None:
        """Record that the connection that was asked for is open."""
        self.take(LinkEvent.OPENED)
        if self.act is Act.JOIN:
            self.node, self.target = self.target, None

    def joined(self, now: float) -> None:
        """Record that the opened connection may be used."""
        is_first = self.state is LinkState.JOINING
        self.take(LinkEvent.JOINED)
        if is_first and self._settling is not None:
            self.failures = self.short_lives
            self.settled_at = now + self._settling

    def answered(self) -> None:
        """Record that a publish was stored, or refused because of the message."""
        self.failures = 0

    def failed(self, leader: N | None, *, for_good: bool = False) -> None:
        """Record that connecting to a leader or joining it failed.

        Args:
            leader: The leader in the newest view; if it is another node, it is tried at once.
            for_good: Retrying cannot help.
        """
        tried = self.node if self.target is None else self.target
        self.target = None
        if for_good:
            self.take(LinkEvent.FORBIDDEN)
        elif tried is not None and leader not in (None, tried, self.node):
            self.take(LinkEvent.OUTDATED)
        else:
            self.take(LinkEvent.FAILED)

    def look(
        self, *, is_moved: bool = False, is_unused: bool = False, is_due: bool = False, is_expiring: bool = False
    ) -> None:
        """Decide what to do with the connection in use.

        Args:
            is_moved: Another node leads.
            is_unused: It has not been used for long.
            is_due: It should be replaced, and another one is allowed.
            is_expiring: It can no longer be used.
        """
        if is_moved:
            self.take(LinkEvent.SUPERSEDED if self._settling is None else LinkEvent.MOVED)
        elif is_unused:
            self.take(LinkEvent.UNUSED)
        elif is_due:
            self.take(LinkEvent.REPLACE)
        elif is_expiring:
            self.take(LinkEvent.EXPIRES)

    def lost(self, now: float) -> None:
        """Record that the connection in use is lost."""
        if self._settling is not None:
            self.short_lives = self.short_lives + 1 if now < self.settled_at else 0
            if self.state not in (LinkState.MOVING, LinkState.MOVE_PAUSED):
                self.failures = self.short_lives
        self.take(LinkEvent.LOST)

    def take(self, event: LinkEvent) -> None:
        """Record an event; those that need more than their name have methods of their own."""
        before = self.state
        self.state, self.act = TRANSITIONS[before, event]
        self.may_write = self.state in WRITABLE
        if self.state in _PAUSES and (before not in _PAUSES or event is LinkEvent.BROKEN):
            self.failures += 1
        if self.state in _UNCONNECTED:
            self.node = None
        if self.state not in _SEEKING and self.act is not Act.JOIN:
            self.target = None
