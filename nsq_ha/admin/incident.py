"""Something that is wrong in a cluster, as a value. ``causes`` and ``consuming`` find it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from nsq_ha.admin.memory import TopicPartition
from nsq_ha.admin.words import span

Trouble = Literal[
    "unanswered",  # no nsqlookupd answers
    "gone",  # an nsqd that is known is not listed, and does not answer
    "silent",  # an nsqd that is listed does not answer
    "cut",  # an nsqd answers, but no nsqlookupd lists it
    "ill",  # an nsqd says that it is not healthy
    "slow",  # an nsqd answers much later than the others
    "behind",  # an nsqd that answers lacks messages of partitions
    "lookupd",  # an nsqlookupd does not answer
    "leading",  # no nsqlookupd leads
    "disagree",  # nsqlookupds list different nsqds
    "leaderless",  # partitions have no leader, and no nsqd is missing
    "unstable",  # the cluster is unstable, for no reason that is known
    "unread",  # messages wait in a channel, and nobody consumes it
    "blocked",  # one message holds up a channel of an ordered partition
    "stuck",  # messages wait, there are consumers, and none is finished
    "failing",  # messages of a channel are requeued, or time out
    "lagging",  # a channel gets more than its consumers finish, or has hours of work left
    "stopped",  # an operator paused or skipped a channel
]
"""What can be wrong for a while."""

OF_CHANNELS: Final[tuple[Trouble, ...]] = ("unread", "blocked", "stuck", "failing", "lagging", "stopped")
"""What concerns the consumers of one channel, the worst first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Something that is wrong, with what follows from it.

    Attributes:
        trouble: What kind it is.
        subject: The address of the nsqd, the URL of the nsqlookupd, ``topic/channel``, or ``cluster``.
        cause: What is wrong, as the beginning of a sentence.
        since: When it began, in Unix seconds. None if that is unknown.
        is_older: It began before ``since``, when it was first looked at.
        effects: What follows from it.
        remedy: What to do.
        detail: What a server, or the network, said; empty if nothing did.
        is_bad: It stops something; otherwise something may fail next.
        unled: The partitions that have no leader because of it.
    """

    trouble: Trouble
    subject: str
    cause: str
    since: float | None = None
    effects: tuple[str, ...] = ()
    remedy: str = ""
    detail: str = ""
    is_bad: bool = True
    unled: frozenset[TopicPartition] = field(default_factory=frozenset)
    is_older: bool = False

    @property
    def level(self) -> Literal["bad", "warning"]:
        """How much it matters."""
        return "bad" if self.is_bad else "warning"

    def lasts(self, now: float) -> str:
        """Return for how long it lasts, with a space before it; empty if that is unknown."""
        return "" if self.since is None else f" for {'at least ' if self.is_older else ''}{span(now - self.since)}"

    def sentence(self, now: float) -> str:
        """Return all of it in one sentence; ``now`` in Unix seconds."""
        return "; ".join((self.cause + self.lasts(now), *self.effects))
