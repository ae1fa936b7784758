"""Decide to which of two clusters a publish goes while a topic moves from one to the other.

Owns the choice for a key, the round robin of messages without a key, and the moves of keys. ``migrate`` publishes.

The invariants: a key has publishes under way at one cluster only, and they start in the order of their calls. A key
is remembered only while a publish of it is under way or waits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, Literal

import mmh3

from nsq_ha.checks import is_number, shown
from nsq_ha.errors import ConfigError

Cluster = Literal["previous", "current"]
"""One of the two clusters of a migration."""

Mover = tuple[str, bytes | int]
"""What moves as a whole: a topic with a key, or with the number of a named partition."""

WHOLE: Final = 100.0
"""The share of a topic that has moved completely, in percent."""

_SEED: Final = 0x6D6F7665
"""Another seed than that of sharding, or the keys of one partition would move together."""


def check_share(share: object, what: str = "share") -> float:
    """Return a share in percent.

    Args:
        share: The number to check.
        what: Its name, for the error.

    Raises:
        ConfigError: It is not a number of 0..100.
    """
    if not is_number(share) or not 0 <= share <= WHOLE:
        raise ConfigError(f"{what} must be a number of percent, 0..100, not {shown(share)}")
    return float(share)


def cluster_of_key(key: bytes, share: float) -> Cluster:
    """Return the cluster of a key.

    Each key has a fixed point between 0 and 100, and is at the current cluster while the share is above it. So a
    higher share moves only keys to the current cluster, and a lower one moves the same keys back.

    Args:
        key: The key as bytes.
        share: Percent of the keys that the current cluster gets.
    """
    return "current" if mmh3.hash(key, _SEED, signed=False) * WHOLE < share * 2**32 else "previous"


def cluster_of_partition(share: float) -> Cluster:
    """Return the cluster of publishes that name a partition.

    Its number is one of the previous cluster's until the topic has moved completely.
    """
    return "current" if share >= WHOLE else "previous"


class RoundRobin:
    """Deals messages without a key to the two clusters by their shares, evenly and without chance."""

    def __init__(self) -> None:
        self._owed: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._owed)

    def choose(self, topic: str, share: float) -> Cluster:
        """Return the cluster of the next message of a topic."""
        if share <= 0 or share >= WHOLE:
            self._owed.pop(topic, None)
            return "current" if share > 0 else "previous"
        owed = self._owed.get(topic, 0.0) + share
        is_due = owed >= WHOLE
        self._owed[topic] = owed - WHOLE if is_due else owed
        return "current" if is_due else "previous"


@dataclass(eq=False, slots=True)
class Ticket:
    """The place of one publish, or of one batch, in the order of its keys.

    Attributes:
        movers: Its keys, each once.
        blocked_at: Index of the key that it waits for.
        has_started: It is under way.
    """

    movers: tuple[Mover, ...]
    blocked_at: int = 0
    has_started: bool = False


@dataclass(slots=True)
class _Key:
    """A key with publishes under way or waiting.

    Attributes:
        cluster: Where its publishes are under way.
        running: Number of tickets under way.
        waiting: Tickets in the order of their calls. The first one may have started, see :meth:`Moves.pass_on`.
    """

    cluster: Cluster = "previous"
    running: int = 0
    waiting: OrderedDict[Ticket, None] = field(default_factory=OrderedDict)


class Moves:
    """Lets each key move from one cluster to the other only after its publishes there are answered.

    A publish takes a ticket with all of its keys at once, in the order of the calls, so two batches never wait for
    each other. The states of a key, for a ticket whose turn it is:

    ======================  ==================================  ==================  =======================
    state                   a publish for the same cluster      for the other one   the last answer
    ======================  ==================================  ==================  =======================
    idle                    starts: running                     starts: running     -
    running                 starts: running                     waits: moving       idle
    moving                  waits behind the first one: moving  waits: moving       the first one starts
    ======================  ==================================  ==================  =======================

    An idle key is not remembered. If the share changes back while a key is moving, the first waiting publish starts at
    the old cluster.
    """

    def __init__(self) -> None:
        self._keys: dict[Mover, _Key] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def enter(self, movers: Iterable[Mover]) -> Ticket:
        """Return a ticket behind those of earlier calls. Call :meth:`start` at once, and :meth:`leave` at the end."""
        ticket = Ticket(tuple(dict.fromkeys(movers)))
        for mover in ticket.movers:
            key = self._keys.get(mover)
            if key is None:
                key = self._keys[mover] = _Key()
            key.waiting[ticket] = None
        return ticket

    def start(self, ticket: Ticket, cluster_of: Callable[[Mover], Cluster]) -> Mapping[Mover, Cluster] | None:
        """Start a publish if all of its keys allow it.

        Later tickets of these keys still wait; call :meth:`pass_on` once the publish is queued.

        Args:
            ticket: A ticket that has not started.
            cluster_of: Returns the cluster that a key belongs to now.

        Returns:
            The cluster for each key. None if the ticket waits: try again when :meth:`next_of` returns it.
        """
        clusters: dict[Mover, Cluster] = {}
        # From the key that blocked it before: a large batch is not checked from its beginning for each answer.
        for index in chain(range(ticket.blocked_at, len(ticket.movers)), range(ticket.blocked_at)):
            mover = ticket.movers[index]
            key = self._keys[mover]
            cluster = cluster_of(mover)
            if next(iter(key.waiting)) is not ticket or (key.running and key.cluster != cluster):
                ticket.blocked_at = index
                return None
            clusters[mover] = cluster
        for mover, cluster in clusters.items():
            key = self._keys[mover]
            key.cluster = cluster
            key.running += 1
        ticket.has_started = True
        return clusters

    def pass_on(self, ticket: Ticket) -> None:
        """Give the turn of a started ticket to the next ones."""
        for mover in ticket.movers:
            del self._keys[mover].waiting[ticket]

    def leave(self, ticket: Ticket) -> None:
        """Forget a ticket: its publish was answered, failed, or was given up while it waited."""
        for mover in ticket.movers:
            key = self._keys[mover]
            key.waiting.pop(ticket, None)
            key.running -= ticket.has_started
            if not key.running and not key.waiting:
                del self._keys[mover]

    def next_of(self, ticket: Ticket) -> list[Ticket]:
        """Return the tickets that may be able to start after ``ticket`` passed its turn on, or left."""
        found: dict[Ticket, None] = {}
        for mover in ticket.movers:
            key = self._keys.get(mover)
            if key is None or not key.waiting:
                continue
            first = next(iter(key.waiting))
            if not first.has_started and first.movers[first.blocked_at] == mover:
                found[first] = None
        return list(found)
