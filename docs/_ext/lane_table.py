"""What each event does to a publish in its lane, as a table for the page of states.

Looking this up for each publish would be too slow, so ``nsq_ha.producer.machine`` does without it. Its tests check row
by row that it does exactly this.

Source: server failures 1.1, 4.2.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from nsq_ha.producer.state import PublishRequest


class Standing(enum.Enum):
    """Where a publish stands, and whether its caller still waits."""

    OUTSIDE = enum.auto()
    """In no lane: not queued yet, or on its way to another partition's lane."""
    BLOCKED = enum.auto()
    """Not written; an earlier publish of one of its keys is not done."""
    READY = enum.auto()
    """May be written, for the first time or again."""
    SENT = enum.auto()
    """Written, not answered."""
    ORPHANED = enum.auto()
    """Written, not answered, and its caller has stopped waiting. It keeps its keys and its place among answers."""
    DONE = enum.auto()
    """Stored, failed, or given up; its keys are free."""


class LaneEvent(enum.Enum):
    """What can happen to a publish."""

    SUBMIT = enum.auto()
    """It is queued and all of its keys are free."""
    SUBMIT_BEHIND = enum.auto()
    """It is queued behind another publish of one of its keys."""
    FREED = enum.auto()
    """The last publish before it is done."""
    WRITE = enum.auto()
    """It is written to the leader's connection."""
    ANSWER = enum.auto()
    """The leader has stored it."""
    REFUSE = enum.auto()
    """The leader refuses it, and retrying cannot help."""
    REFUSE_AGAIN = enum.auto()
    """The leader refuses it, and a retry may succeed."""
    LOSE = enum.auto()
    """The connection is gone: lost, silent, or closed because of another leader."""
    GIVE_UP = enum.auto()
    """Its caller stops waiting: cancelled, or at its time limit."""
    ASK = enum.auto()
    """It is written once more, over another connection, since its leader is silent."""
    WITHDRAW = enum.auto()
    """It has no key and was not written; this partition is in trouble and another one is healthy."""
    DIVERT = enum.auto()
    """It has no key and its answer is late; it goes to another partition and leaves an orphan here."""


class Doubt(enum.Enum):
    """Whether the publish may be stored after an event. Doubt never ends."""

    NONE = enum.auto()
    """It changes nothing."""
    IF_LATE = enum.auto()
    """In doubt if the event came more than a second after the write."""
    ALWAYS = enum.auto()
    """In doubt from now on."""


class LaneStep(NamedTuple):
    """A row of the table: the next standing, and whether the event leaves doubt."""

    standing: Standing
    doubt: Doubt


_S = Standing
_E = LaneEvent
_D = Doubt

STEPS: Final[Mapping[tuple[Standing, LaneEvent], LaneStep]] = MappingProxyType(
    {
        (_S.OUTSIDE, _E.SUBMIT): LaneStep(_S.READY, _D.NONE),
        (_S.OUTSIDE, _E.SUBMIT_BEHIND): LaneStep(_S.BLOCKED, _D.NONE),
        (_S.BLOCKED, _E.FREED): LaneStep(_S.READY, _D.NONE),
        (_S.BLOCKED, _E.GIVE_UP): LaneStep(_S.DONE, _D.NONE),
        (_S.READY, _E.WRITE): LaneStep(_S.SENT, _D.NONE),
        (_S.READY, _E.GIVE_UP): LaneStep(_S.DONE, _D.NONE),
        (_S.READY, _E.WITHDRAW): LaneStep(_S.OUTSIDE, _D.NONE),
        (_S.SENT, _E.ANSWER): LaneStep(_S.DONE, _D.NONE),
        (_S.SENT, _E.REFUSE): LaneStep(_S.DONE, _D.IF_LATE),
        (_S.SENT, _E.REFUSE_AGAIN): LaneStep(_S.READY, _D.IF_LATE),
        (_S.SENT, _E.LOSE): LaneStep(_S.READY, _D.ALWAYS),
        (_S.SENT, _E.GIVE_UP): LaneStep(_S.ORPHANED, _D.ALWAYS),
        (_S.SENT, _E.ASK): LaneStep(_S.SENT, _D.ALWAYS),
        (_S.SENT, _E.DIVERT): LaneStep(_S.OUTSIDE, _D.ALWAYS),
        (_S.ORPHANED, _E.ANSWER): LaneStep(_S.DONE, _D.NONE),
        (_S.ORPHANED, _E.REFUSE): LaneStep(_S.DONE, _D.NONE),
        (_S.ORPHANED, _E.REFUSE_AGAIN): LaneStep(_S.DONE, _D.NONE),
        (_S.ORPHANED, _E.LOSE): LaneStep(_S.DONE, _D.NONE),
        (_S.ORPHANED, _E.GIVE_UP): LaneStep(_S.ORPHANED, _D.NONE),
        (_S.DONE, _E.GIVE_UP): LaneStep(_S.DONE, _D.NONE),
    }
)
"""Maps standing and event to the next step; a missing pair cannot happen."""


def standing_of(request: PublishRequest) -> Standing:
    """Return the standing of a publish."""
    if request.conn is not None:
        return Standing.ORPHANED if request.is_over else Standing.SENT
    if request.is_over:
        return Standing.DONE
    if request.lane is None:
        return Standing.OUTSIDE
    return Standing.BLOCKED if request.blocked else Standing.READY
