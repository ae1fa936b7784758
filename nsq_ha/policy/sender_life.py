"""The life of a producer's connection to one partition's leader, as a table.

Every rule about *when* a sender connects, moves, replaces its connection or
closes it is in ``TRANSITIONS``; ``producer.link`` reports events and follows the
table. ``policy.lane`` decides which publish is next.

The invariants, for all events in any order:

* Publishes are written in the states ``WRITING`` and ``REPLACING`` only.
* A connection is opened only if publishes wait, or to replace another one.
* A pause follows each failure, unless another node leads by then; only an answer
  resets the backoff.
* No pause follows a connection closed on purpose, unless nsqd could no longer
  answer on it and publishes wait.

Source: server failures 4.2; server protocol 3.3.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Generic, NamedTuple, TypeVar

from nsq_ha.policy.tls_renewal import Act as Renewal

N = TypeVar("N")


class State(enum.Enum):
    """Where a sender's connection stands. Only ``ENDED`` is final."""

    IDLE = enum.auto()
    """No connection, and none is needed until a publish waits."""
    CONNECTING = enum.auto()
    """A connection to the leader is being opened."""
    WRITING = enum.auto()
    """Connected; publishes are written."""
    REPLACING = enum.auto()
    """As ``WRITING``, while another connection to the same nsqd is being opened."""
    MOVING = enum.auto()
    """Another node leads: nothing more is written, and the old leader gets a moment to answer."""
    EXPIRING = enum.auto()
    """nsqd will soon be unable to write to the connection: nothing more is written, but answers may still come."""
    PAUSED = enum.auto()
    """No connection after a failure; the end of the backoff or another leader ends the pause."""
    ENDED = enum.auto()
    """The producer is closed."""


class Event(enum.Enum):
    """What can happen to a sender's connection."""

    WORK = enum.auto()
    """A publish waits."""
    RESUME = enum.auto()
    """The pause is over."""
    OPENED = enum.auto()
    """The connection is open, after IDENTIFY and, if needed, AUTH."""
    FAILED = enum.auto()
    """There is no leader, no connection is allowed, or connecting failed."""
    OUTDATED = enum.auto()
    """As ``FAILED``, but another node leads now."""
    LOST = enum.auto()
    """The connection is gone: closed, reset, damaged, silent, or its answers are overdue."""
    MOVED = enum.auto()
    """Another node leads."""
    REPLACE = enum.auto()
    """The connection should be replaced, and another one is allowed."""
    EXPIRES = enum.auto()
    """The connection can no longer be used."""
    UNUSED = enum.auto()
    """No publish has been queued or unanswered for long, or another partition needs the connection."""
    LEFT = enum.auto()
    """The connection is closed on purpose; no publish waits."""
    LEFT_WAITING = enum.auto()
    """The connection is closed on purpose; publishes wait."""
    BROKEN = enum.auto()
    """An unexpected error was raised; the connection is closed."""
    CLOSE = enum.auto()
    """The producer closes."""


class Act(enum.Enum):
    """What to do next."""

    WAIT = enum.auto()
    """Wait for a publish."""
    CONNECT = enum.auto()
    """Open a connection to the leader."""
    WRITE = enum.auto()
    """Write until there is something to decide."""
    REPLACE = enum.auto()
    """Open another connection to the same nsqd."""
    SETTLE = enum.auto()
    """Wait for answers for a limited time, then close the connection."""
    PAUSE = enum.auto()
    """Report the failure, look the topic up and wait for the backoff."""
    END = enum.auto()
    """Do nothing."""


class Step(NamedTuple):
    """A row of the table: the next state, and what to do in it."""

    state: State
    act: Act


_S = State
_E = Event
_WAIT: Final = Step(_S.IDLE, Act.WAIT)
_CONNECT: Final = Step(_S.CONNECTING, Act.CONNECT)
_WRITE: Final = Step(_S.WRITING, Act.WRITE)
_MOVE: Final = Step(_S.MOVING, Act.SETTLE)
_EXPIRE: Final = Step(_S.EXPIRING, Act.SETTLE)
_PAUSE: Final = Step(_S.PAUSED, Act.PAUSE)
_END: Final = Step(_S.ENDED, Act.END)

TRANSITIONS: Final[Mapping[tuple[State, Event], Step]] = MappingProxyType(
    {
        (_S.IDLE, _E.WORK): _CONNECT,
        (_S.CONNECTING, _E.OPENED): _WRITE,
        (_S.CONNECTING, _E.FAILED): _PAUSE,
        (_S.CONNECTING, _E.OUTDATED): _WAIT,
        (_S.CONNECTING, _E.LOST): _PAUSE,
        (_S.WRITING, _E.LOST): _PAUSE,
        (_S.WRITING, _E.MOVED): _MOVE,
        (_S.WRITING, _E.REPLACE): Step(_S.REPLACING, Act.REPLACE),
        (_S.WRITING, _E.EXPIRES): _EXPIRE,
        (_S.WRITING, _E.UNUSED): _WAIT,
        (_S.REPLACING, _E.OPENED): _WRITE,
        (_S.REPLACING, _E.FAILED): _WRITE,
        (_S.REPLACING, _E.LOST): _PAUSE,
        (_S.REPLACING, _E.UNUSED): _WAIT,
        # A loss ends the wait for answers; then LEFT or LEFT_WAITING follows.
        (_S.MOVING, _E.LOST): _MOVE,
        (_S.MOVING, _E.UNUSED): _WAIT,
        (_S.MOVING, _E.LEFT): _WAIT,
        (_S.MOVING, _E.LEFT_WAITING): _WAIT,
        (_S.EXPIRING, _E.LOST): _EXPIRE,
        (_S.EXPIRING, _E.UNUSED): _WAIT,
        (_S.EXPIRING, _E.LEFT): _WAIT,
        (_S.EXPIRING, _E.LEFT_WAITING): _PAUSE,
        (_S.PAUSED, _E.RESUME): _WAIT,
        # An attempt or a wait that ends after the connection was lost or closed has no effect.
        **{
            (state, event): step
            for state, step in ((_S.IDLE, _WAIT), (_S.PAUSED, _PAUSE))
            for event in (_E.OPENED, _E.FAILED, _E.OUTDATED, _E.LOST, _E.LEFT, _E.LEFT_WAITING)
        },
        **{(state, _E.BROKEN): _PAUSE for state in _S if state is not _S.ENDED},
        **{(state, _E.CLOSE): _END for state in _S},
    }
)
"""Maps state and event to the next step; a missing pair cannot happen."""

WRITABLE: Final = frozenset((_S.WRITING, _S.REPLACING))
"""States in which publishes are written."""


class Life(Generic[N]):
    """One sender's position in the table; ``N`` is the type of a node.

    Attributes:
        state: Where its connection stands.
        act: What to do next.
        may_write: Whether publishes may be written.
        node: The connected node, or the one being connected to, set by the caller. None without either.
        failures: Failures since the last answer, for the backoff.
    """

    __slots__ = ("act", "failures", "may_write", "node", "state")

    def __init__(self) -> None:
        self.state: State = State.IDLE
        self.act: Act = Act.WAIT
        self.may_write: bool = False
        self.node: N | None = None
        self.failures: int = 0

    def work(self) -> None:
        """Record that a publish waits."""
        self._take(Event.WORK)

    def opened(self) -> None:
        """Record that the connection is open."""
        self._take(Event.OPENED)

    def failed(self, *, is_outdated: bool = False) -> None:
        """Record that no connection could be opened.

        Args:
            is_outdated: Another node leads now.
        """
        self._take(Event.OUTDATED if is_outdated else Event.FAILED)

    def answered(self) -> None:
        """Record that a publish was stored, or refused because of the message."""
        self.failures = 0

    def look(self, *, is_moved: bool, is_unused: bool, renewal: Renewal, has_old: bool, may_replace: bool) -> None:
        """Decide what to do with the current connection.

        Args:
            is_moved: Another node leads.
            is_unused: No publish has been queued or unanswered for long.
            renewal: What to do because of the connection's age.
            has_old: Publishes are unanswered on the previous connection, which must end first.
            may_replace: Another connection is allowed.
        """
        if is_moved:
            self._take(Event.MOVED)
        elif is_unused:
            self._take(Event.UNUSED)
        elif renewal is Renewal.REPLACE and (has_old or may_replace):
            if not has_old:
                self._take(Event.REPLACE)
        elif renewal is not Renewal.USE:
            self._take(Event.EXPIRES)

    def unused(self) -> None:
        """Record that the unused connection was closed."""
        self._take(Event.UNUSED)

    def lost(self) -> None:
        """Record that the connection is gone."""
        self._take(Event.LOST)

    def left(self, *, is_waiting: bool) -> None:
        """Record that the connection was closed on purpose.

        Args:
            is_waiting: Publishes wait.
        """
        self._take(Event.LEFT_WAITING if is_waiting else Event.LEFT)

    def resume(self) -> None:
        """Record that the pause is over."""
        self._take(Event.RESUME)

    def broken(self) -> None:
        """Record an unexpected error."""
        self._take(Event.BROKEN)

    def close(self) -> None:
        """Record that the producer closes."""
        self._take(Event.CLOSE)

    def _take(self, event: Event) -> None:
        before = self.state
        self.state, self.act = TRANSITIONS[before, event]
        self.may_write = self.state in WRITABLE
        if self.state is State.PAUSED and before is not State.PAUSED:
            self.failures += 1
        if self.state in _UNCONNECTED:
            self.node = None


_UNCONNECTED: Final = frozenset((_S.IDLE, _S.PAUSED, _S.ENDED))
